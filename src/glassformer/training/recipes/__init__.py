"""Trainings that are known by name: data, model and settings together, so that anybody can repeat them."""
