"""Text to ids and back: tokenizer, chat template, incremental decode. Needs no torch."""

from glassformer.text.encoding import BatchEncoding
from glassformer.text.pieces import Pieces
from glassformer.text.template import ChatTemplate
from glassformer.text.tokenizer import Tokenizer

__all__ = ["BatchEncoding", "ChatTemplate", "Pieces", "Tokenizer"]
