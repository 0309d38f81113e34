"""What a tokenizer is made from: tokenizer.json, older vocabularies, SentencePiece's files, tiktoken's ranks, GGUF."""
