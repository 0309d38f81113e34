"""Streamers: what `generate` hands each new id to, so that a text can be seen while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from queue import Queue
from typing import Any, Protocol

from torch import Tensor

from glassformer.ground.errors import InputError


class Streamer(Protocol):
    """Receives the prompt's ids first, then each new id; `end` comes last."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class TextStreamer:
    """Prints text as it is generated: `model.generate(**tokens, streamer=TextStreamer(tokenizer))`.

    To do something else with the text, override `on_finalized_text`.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, skip_special_tokens: bool = False) -> None:
        self.tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._skip_prompt = skip_prompt
        self._begin()

    def _begin(self) -> None:
        self._pieces = self.tokenizer.detokenizer(self._skip_special_tokens)
        self._skip_next = self._skip_prompt

    def put(self, value: Tensor) -> None:
        skip, self._skip_next = self._skip_next, False
        if skip:
            return
        if text := "".join(self._pieces.feed(token) for token in _one_row(value)):
            self.on_finalized_text(text)

    def end(self) -> None:
        rest = self._pieces.finish()
        self._begin()  # one streamer serves one text after the other
        self.on_finalized_text(rest, stream_end=True)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Called with each piece of text that will not change any more, and with the rest, maybe "", at the end."""
        print(text, end="\n" if stream_end else "", flush=True)


class _WithTimeout(TextStreamer):
    """A streamer that is read from elsewhere, where somebody may not want to wait for ever."""

    def __init__(
        self,
        tokenizer: Any,
        skip_prompt: bool = False,
        timeout: float | None = None,
        skip_special_tokens: bool = False,
    ) -> None:
        super().__init__(tokenizer, skip_prompt, skip_special_tokens)
        self.timeout = timeout


class TextIteratorStreamer(_WithTimeout):
    """Hands the pieces of a text that another thread generates to a `for` loop.

    `timeout`: how many seconds the loop waits for a piece before it raises `queue.Empty`; None: for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text_queue: Queue[str | None] = Queue()  # None: the text has ended

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text_queue.put(text)
        if stream_end:
            self.text_queue.put(None)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = self.text_queue.get(timeout=self.timeout)
        if text is None:
            raise StopIteration
        return text


class AsyncTextIteratorStreamer(_WithTimeout):
    """A `TextIteratorStreamer` for an `async for` loop; make it inside the event loop that it is read in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise InputError("an AsyncTextIteratorStreamer is made inside a running event loop.") from error
        self.text_queue: asyncio.Queue[str | None] = asyncio.Queue()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._loop.call_soon_threadsafe(self.text_queue.put_nowait, text)
        if stream_end:
            self._loop.call_soon_threadsafe(self.text_queue.put_nowait, None)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        text = await asyncio.wait_for(self.text_queue.get(), self.timeout)
        if text is None:
            raise StopAsyncIteration
        return text


def _one_row(value: Tensor) -> list[int]:
    """The ids of a prompt, or a single id."""
    if value.dim() > 1 and len(value) > 1:
        raise InputError(f"a TextStreamer follows one text; it was given ids of shape {tuple(value.shape)}.")
    ids: list[int] = value.flatten().tolist()
    return ids


__all__ = ["AsyncTextIteratorStreamer", "Streamer", "TextIteratorStreamer", "TextStreamer"]
