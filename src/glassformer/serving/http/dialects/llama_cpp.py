"""Texts and tokens without a pass of the model: /tokenize, /detokenize, /apply-template, as llama.cpp's server has them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AliasChoices, BaseModel, Field
from starlette.requests import Request

from glassformer.ground.errors import check_ids
from glassformer.runtime.model import Model
from glassformer.serving.http.answers import check_conversation, check_listed
from glassformer.serving.http.context import call_model
from glassformer.serving.http.dialects.openai_chat import ChatMessage, ChatTool, dumped
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import example_answer, schema_answer
from glassformer.text.chat.tool_calls import chat_prompt

router = APIRouter(tags=["text"])


class TokenizeRequest(BaseModel):
    """POST /tokenize"""

    model: str | None = None
    content: str = Field(validation_alias=AliasChoices("content", "prompt"))
    add_special: bool = Field(default=False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    with_pieces: bool = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[int]


class TemplateRequest(BaseModel):
    """POST /apply-template"""

    model: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[ChatTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


TOKENS_ANSWER = {
    "type": "object",
    "properties": {
        "tokens": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "object"}]}},  # with_pieces: objects
        "count": {"type": "integer"}, "max_model_len": {"type": ["integer", "null"]},
    },
    "required": ["tokens", "count", "max_model_len"],
}  # fmt: skip


@router.post("/tokenize", responses=schema_answer(TOKENS_ANSWER))
async def tokenize(request: Request, body: TokenizeRequest) -> Json:
    """A text's token ids, with each one's text if asked for."""

    def work(model: Model) -> dict[str, Any]:
        ids = model.tokenizer(body.content, add_special_tokens=body.add_special)["input_ids"]
        check_listed(request, len(ids))
        pieces = [{"id": token, "piece": _piece(model, token)} for token in ids] if body.with_pieces else ids
        return {"tokens": pieces, "count": len(ids), "max_model_len": model.config.context}

    return Json(await call_model(request, body.model, work, passes=False))


@router.post("/detokenize", responses=example_answer({"content": "how are you?"}))
async def detokenize(request: Request, body: DetokenizeRequest) -> Json:
    """The text of token ids."""

    def work(model: Model) -> dict[str, Any]:
        check_ids(body.tokens, model.config.vocab_size)
        return {"content": model.tokenizer.decode(body.tokens)}

    return Json(await call_model(request, body.model, work, passes=False))


@router.post("/apply-template", responses=example_answer({"prompt": "<|im_start|>user\n"}))
async def apply_template(request: Request, body: TemplateRequest) -> Json:
    """A conversation as the model reads it."""
    messages, tools = dumped(body.messages), dumped(body.tools)
    check_conversation(request, messages, tools)

    def work(model: Model) -> str:
        prompt = chat_prompt(model.tokenizer, messages, tools=tools, template=body.chat_template_kwargs)
        return model.render(prompt.messages, template=prompt.template)

    return Json({"prompt": await call_model(request, body.model, work, passes=False)})


def _piece(model: Model, token: int) -> Any:
    """A token's text; its bytes where they are no text by themselves."""
    raw = model.tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
