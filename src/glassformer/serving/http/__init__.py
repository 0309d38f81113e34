"""The HTTP API: OpenAI's routes and those of others, over one registry of models. Only `glass serve` imports it."""
