"""What can be seen: a file or folder for each topic, with its data, how it is drawn and computed, and who may ask."""
