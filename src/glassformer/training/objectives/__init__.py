"""What a model can be trained to do; one file each."""
