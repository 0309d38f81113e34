"""Looking inside: everything of a model that can be seen, each view by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import InputError
from glassformer.loaded import Loaded, Prompt
from glassformer.observe.answers import Answer, gaps, label, passage, tags
from glassformer.observe.cautions import cautions, words
from glassformer.observe.clock import CHOSEN, SCORED, Clock
from glassformer.observe.journey import Journey, Pass, encoded, journey, next_token, sizes
from glassformer.observe.parameters import Parameters, Progress, parameters
from glassformer.observe.reading import Reading
from glassformer.observe.tree import Tell, Tree, grow


class Looking(Loaded):
    """A model, and the views of what it makes of a text."""

    def read(
        self,
        prompt: Prompt,
        target: str | None = None,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> Reading:
        """A text under the glass, for its trace, attention, lens and more; `target`: what an encoder-decoder is to write."""
        _, ids = self.encode(prompt, raw=raw, system=system, **(template or {}))
        if len(ids) > self.config.context:
            raise InputError(
                f"a text of {len(ids)} tokens does not fit into the model's context of {self.config.context}. Shorten it."
            )
        if self.start is None:
            if target is not None:
                raise InputError(f"{self.name} is no encoder-decoder, so it has no target. Put both into one text.")
            return Reading(self, ids, None, len(ids))
        after = () if target is None else tuple(self.tokenizer(text_target=target)["input_ids"])
        return Reading(self, (self.start, *after), ids, 1 + len(after))

    def look(
        self,
        prompt: Prompt,
        *,
        pair: str | None = None,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> Journey:
        """A prompt's journey to the next token, without generating more than that.

        `pair`: a second text, for a model that reads two: the passage that answers a question, or what is compared with.
        """
        if pair is not None:
            return self.journey_of(*self._paired(prompt, pair), pair=pair, said=[str(prompt), pair])
        text, ids = self.encode(prompt, raw=raw, system=system, **(template or {}))
        return self.journey_of(text, ids, said=[*([] if system is None else [system]), *words(prompt)])

    def _paired(self, prompt: Prompt, pair: str) -> tuple[str, tuple[int, ...]]:
        if self.writes:
            raise InputError(f"{self.name} goes on with one text, and reads no second one. Put both into the prompt.")
        if not isinstance(prompt, str) or not prompt or not pair:
            raise InputError("two texts are two strings, neither of them empty.")
        return prompt, tuple(self.tokenizer(prompt, pair)["input_ids"])

    def tree(
        self,
        prompt: Prompt,
        *,
        width: int = 3,
        depth: int = 3,
        at: Sequence[int] | None = None,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        tell: Tell | None = None,
    ) -> Tree:
        """The likeliest ways on from a prompt: `width` tokens after each one, `depth` tokens on each path.

        `at`: a node, by child numbers, that is grown on by as much again. `tell`: called as (nodes so far, nodes in all).
        """
        self._check_writes()
        found = grow(self, *self.encode(prompt, raw=raw, system=system, **(template or {})), width, depth, tell)
        return found if at is None else found.grown(at, tell=tell)

    def parameters(
        self,
        *,
        only: str | None = None,
        stats: bool = False,
        histogram: bool = False,
        progress: Progress | None = None,
    ) -> Parameters:
        """Every tensor with its shape, kind and bytes, summed up by module; headers are read, and numbers on request.

        Args:
            only: a name, a module, or a pattern with wildcards such as '*.q_proj.weight'.
            stats: mean, deviation, extremes, zeros and outliers of each.
            histogram: the same, with counts in 21 bins.
            progress: called as (tensor, numbers so far, numbers in all) while numbers are read.
        """
        return parameters(self, only=only, stats=stats, histogram=histogram, progress=progress)

    def journey_of(
        self, text: str, ids: Sequence[int], *, pair: str | None = None, said: Sequence[str] | None = None
    ) -> Journey:
        """The journey of an encoded prompt; one pass. `said`: what was given, before a template was put around it."""
        tokenizer, clock, start = self.tokenizer, Clock(self.blueprint, self.changes), self.start
        written = self.writes
        done = next_token(tokenizer, self.executor, clock, ids, start) if written else self._read(text, ids, pair, clock)
        context, wanted = self.config.context if self.head == "causal" else None, self.settings.max_new_tokens
        wrong = [*cautions(tokenizer, text, ids, said, writes=written, context=context, wanted=wanted)]
        if self.head == "question" and pair is None:
            wrong.append("This model looks for the answer to a question in a second text: give that with --pair, or pair=….")
        return journey(
            tokenizer, self.blueprint, text, ids, done, name=self.name, pair=pair, start=start, stored=sizes(self),
            warnings=wrong,
        )  # fmt: skip

    def _read(self, text: str, ids: Sequence[int], pair: str | None, clock: Clock) -> Pass:
        """What a head that does not write says of a text: of each gap, of each token, of the whole, or where the answer is.

        Where there is nothing to choose from, a word on why.
        """
        import torch

        module, (found, _, _) = self.module, encoded(self.tokenizer, text, pair, ids)
        inputs = {"input_ids": ids} | ({"token_type_ids": found["token_type_ids"]} if "token_type_ids" in found else {})
        given = {name: torch.tensor([list(values)], device=module.device) for name, values in inputs.items()}
        with torch.inference_mode():
            clock.start()
            output = module(**given, watch=clock.watch)
        clock.lap(SCORED, output.to_tuple()[0])
        answers, about = self._answers(output, ids, text if pair is None else pair, found, pair is not None)
        if answers:
            clock.lap(CHOSEN)
        dtype = str(module.dtype).removeprefix("torch.")
        return Pass(answers, about, clock.seconds, dtype, f"PyTorch (on {module.device}, {dtype})")

    def _answers(
        self, output: Any, ids: Sequence[int], text: str, found: Any, second: bool
    ) -> tuple[tuple[Answer, ...], str]:
        """What a head's output says, and of what; `text`: where a passage is looked for."""
        if self.head == "question":
            own = [owner == int(second) for owner in found.sequence_ids()]
            places = found["offset_mapping"]
            if not any(own):
                return (), "There are no tokens in which an answer could be found."
            starts, ends = (one[0].float().cpu().numpy() for one in (output.start_logits, output.end_logits))
            best = passage(own, starts, ends, lambda first, last: text[places[first][0] : places[last][1]])
            return (best,), best.about
        if self.head == "base":
            return (), "This model ends with the states of its tokens."
        scores = output.logits[0].float().cpu().numpy()
        if self.head == "sequence":
            return (label(scores, self.label, self.config.problem_type),), "the label"
        if self.head == "token":
            tagged = tags(self.tokenizer, ids, scores, self.label)
            return tagged, "the label of each token" if tagged else "There are no tokens that could have a label."
        filled = gaps(self.tokenizer, ids, scores)
        said = f"Put {self.tokenizer.mask_token} into the text to see what this model would fill in."
        return filled, "the masked token" if filled else said
