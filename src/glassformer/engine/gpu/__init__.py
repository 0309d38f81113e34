"""The GPU engine."""
