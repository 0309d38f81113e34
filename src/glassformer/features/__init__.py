"""Features: sparse autoencoders and transcoders, their files, and what they do to a model that they are attached to."""
