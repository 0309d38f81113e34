"""Looking inside: everything of a model that can be seen, each view by one call.

Views are imported when they are asked for, so that who only wants an answer does not wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from glassformer.errors import InputError
from glassformer.loaded import Loaded, Prompt

if TYPE_CHECKING:
    from glassformer.observe.journey import Journey
    from glassformer.observe.parameters import Parameters, Progress
    from glassformer.observe.patching import Part, Patching
    from glassformer.observe.reading import Reading
    from glassformer.observe.tokens import Batch, Cut
    from glassformer.observe.tree import Tell, Tree


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
        from glassformer.observe.reading import Reading

        _, ids = self.encode(prompt, raw=raw, system=system, **self.variables(template))
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
        from glassformer.observe.cautions import words

        if pair is not None:
            return self.journey_of(*self._paired(prompt, pair), pair=pair, said=[str(prompt), pair])
        text, ids = self.encode(prompt, raw=raw, system=system, **self.variables(template))
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
        from glassformer.observe.tree import grow

        self._check_writes()
        found = grow(self, *self.encode(prompt, raw=raw, system=system, **self.variables(template)), width, depth, tell)
        return found if at is None else found.grown(at, tell=tell)

    def patch(
        self,
        first: Prompt,
        second: Prompt,
        part: Part = "residual",
        positions: Sequence[int | str] | int | None = None,
        *,
        answer: int | str | None = None,
        against: int | str | None = None,
        target: str | None = None,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        tell: Tell | None = None,
    ) -> Patching:
        """Which places inside make the first text lead elsewhere than the second, which has as many tokens.

        Args:
            part: what is carried over: 'residual', 'attention', 'mlp'; by head: 'heads', 'query', 'key', 'value', 'pattern'.
            positions: where, by number or token; everywhere it could matter, unless they are named.
            answer: the token that is to come back; what the first text leads to, unless it is named.
            against: the one it is held against; what the second text leads to, unless it is named.
            target: what an encoder-decoder has written already.
            tell: called as (places so far, places in all).
        """
        from glassformer.observe.patching import patching

        one, other = (self.read(text, target, raw=raw, system=system, template=template) for text in (first, second))
        return patching(one, other, part, positions, answer=answer, against=against, tell=tell)

    def tokens(self, text: str, pair: str | None = None, *, special: bool = True) -> Cut:
        """A text's tokens: what each is, its bytes, where it stands; `special`: with those that the model puts around it."""
        from glassformer.observe.tokens import cut

        return cut(self.tokenizer, text, pair, special=special, name=self.name, blueprint=self.blueprint)

    def batch(self, texts: Sequence[str], *, side: Literal["left", "right"] | None = None, special: bool = True) -> Batch:
        """Several texts as the padded batch that a model takes, with its mask."""
        from glassformer.observe.tokens import batch

        return batch(self.tokenizer, texts, side=side, special=special, name=self.name, blueprint=self.blueprint)

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
        from glassformer.observe.parameters import parameters

        return parameters(self, only=only, stats=stats, histogram=histogram, progress=progress)

    def journey_of(
        self, text: str, ids: Sequence[int], *, pair: str | None = None, said: Sequence[str] | None = None
    ) -> Journey:
        """The journey of an encoded prompt; one pass. `said`: what was given, before a template was put around it."""
        from glassformer.observe.travels import travel

        return travel(self, text, ids, pair, said)
