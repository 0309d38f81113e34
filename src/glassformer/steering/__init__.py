"""Steering: vectors and features that are added to what a model thinks, by name, and the files that hold them."""
