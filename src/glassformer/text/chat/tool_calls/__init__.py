"""Tool calls: how a model's chat template writes them, and how its text is read back into them."""

from glassformer.text.chat.tool_calls.format import ToolCallFormat
from glassformer.text.chat.tool_calls.messages import template_messages
from glassformer.text.chat.tool_calls.parser import ContentDelta, ParsedMessage, ToolCall, ToolCallDelta, ToolCallParser

__all__ = [
    "ContentDelta",
    "ParsedMessage",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallFormat",
    "ToolCallParser",
    "template_messages",
]
