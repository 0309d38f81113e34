"""Training: from text to a model that speaks, from labels to a head that classifies."""
