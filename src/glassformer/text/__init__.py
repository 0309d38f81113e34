"""Text to ids and back: tokenizer, chat template, incremental decode. Needs no torch.

tokenizer_files/   what a tokenizer is made from: the files of every kind
chat/              conversations through a template
the rest           what it does: inputs, rows and windows, the batch that comes out, ids back to text
"""

from tokenizers import AddedToken

from glassformer.text.chat.template import ChatTemplate
from glassformer.text.chat.tools import get_json_schema
from glassformer.text.encoding import BatchEncoding
from glassformer.text.streaming import Detokenizer
from glassformer.text.tokenizer import Tokenizer

__all__ = ["AddedToken", "BatchEncoding", "ChatTemplate", "Detokenizer", "Tokenizer", "get_json_schema"]
