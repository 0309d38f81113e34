"""Models behind an interface that many clients share: a registry of models, a scheduler for each, and the HTTP API."""
