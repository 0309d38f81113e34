"""Activation patching: pairs of texts × places × metric × method, one view."""
