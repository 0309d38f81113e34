"""The neutral document: what a picture consists of (`document`), how numbers read in it (`format`), and its renderers."""
