"""Tool calls: how a model's chat template writes them, and how its text is read back into them."""

from glassformer.text.chat.tool_calls.format import ToolCallFormat
from glassformer.text.chat.tool_calls.parser import ContentDelta, ParsedMessage, ToolCall, ToolCallDelta, ToolCallParser
from glassformer.text.chat.tool_calls.prompt import ChatPrompt, ToolUse, chat_prompt, template_messages

__all__ = [
    "ChatPrompt",
    "ContentDelta",
    "ParsedMessage",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallFormat",
    "ToolCallParser",
    "ToolUse",
    "chat_prompt",
    "template_messages",
]
