"""A step inside a model: its numbers level by level, down to one multiplication."""
