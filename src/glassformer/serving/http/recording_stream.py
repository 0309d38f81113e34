"""POST /glass/record as server-sent events: a recording while it is being made.

```
start  {…}                                  the recording so far: model, settings, prompt, shapes; no step yet
step   {"step": {…}, "text": " cat"}        a step, without its lens, and the text that is whole with it
lens   {"first": 0, "lens": [{…}, …]}       after the last step: what each layer would have predicted, for some steps
end    {"text": …, "tokens_per_second": …, "finish": "eos"}
error  {"error": {"message": …}}            instead of everything that is missing
```

Tokens come as fast as in any other stream: the lens, which takes longer than a token, is read when the text is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request

from glassformer.decoding import StepDetail
from glassformer.ground.sites import Watch
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.see.recording import CANDIDATES, RecordedLens, record_lenses, record_steps, start_recording
from glassformer.see.view import plain_data
from glassformer.serving.http.answers import ServedAnswer, Submission, start
from glassformer.serving.http.clients import client_of
from glassformer.serving.http.dialects.openai_chat import error_body
from glassformer.serving.http.errors import Problem
from glassformer.serving.http.streaming import EventStream, sse

LENS_STEPS = 32  # in one pass: their logits of every layer are in memory together


async def stream_recording(request: Request, model_name: str | None, prepare: Callable[[Model], Run]) -> EventStream:
    """The run that `prepare` makes of a model, recorded as it is written."""

    def submissions(model: Model) -> list[Submission]:
        run = prepare(model)
        changes = run.model.changes
        return [Submission((run,), StepDetail.of(CANDIDATES), Watch(changes=changes) if changes else None)]

    answer = await start(request, model_name, submissions)
    return EventStream(answer, _events(answer), _error_event)


async def _events(answer: ServedAnswer) -> AsyncGenerator[bytes]:
    (text,) = answer.texts
    run = text.run
    yield sse((await asyncio.to_thread(start_recording, run)).to_dict(), "start")
    async for piece in answer:
        first = len(run.steps) - len(piece.steps)
        steps = record_steps(answer.model.tokenizer, piece.steps, first)
        for index, step in enumerate(steps, 1):
            yield sse({"step": plain_data(step), "text": piece.text if index == len(steps) else ""}, "step")
    for first in range(0, len(run.steps), LENS_STEPS):
        answer.check_client()
        indices = range(len(run.steps))[first : first + LENS_STEPS]
        job = answer.served.scheduler.call(partial(_lenses, run, indices), client_of(answer.request))
        lenses = await asyncio.wrap_future(job)
        yield sse({"first": first, "lens": plain_data(lenses)}, "lens")
    finish = None if text.finish is None else text.finish.value
    yield sse({"text": run.text, "tokens_per_second": run.tokens_per_second, "finish": finish}, "end")


def _lenses(run: Run, indices: Sequence[int], model: Model) -> Sequence[RecordedLens | None]:
    """On the scheduler's thread of jobs, with the model whose passes take turns with those of others."""
    changed = model.changed(run.model.changes) if run.model.changes else model
    return record_lenses(replace(run, model=changed), indices)


def _error_event(problem: Problem) -> bytes:
    return sse(error_body(problem), "error")
