"""The sizes of a vocabulary: three numbers that are all called "vocabulary size", and why they differ.

    trained ─ tokens added later, such as <|im_start|> ▶ listed ─ padding that stands for no text ▶ scored

Qwen3 has 151,643, then 151,669, then 151,936. In many models two of them, or all three, are the same. A tokenizer knows the
first two; the third is the model's: one score for each id, and as many rows in the table that turns ids into vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.ground.arguments import checked_class


@checked_class
@dataclass(frozen=True)
class VocabularySizes:
    """How many tokens were trained, how many the tokenizer lists, how many ids the model embeds and scores."""

    trained: int  # tokenizer.vocab_size
    listed: int  # len(tokenizer): with the tokens that were added
    embedded: int | None = None  # rows of the embedding table; None without a model
    scored: int | None = None  # None: the model scores no tokens
    beyond: int = 0  # listed tokens without a row in the embedding table

    @property
    def unused(self) -> int:
        """Ids that the model embeds and that stand for no text."""
        return 0 if self.embedded is None else max(0, self.embedded - (self.listed - self.beyond))

    def summary(self) -> str:
        """The sizes in one line.

        >>> VocabularySizes(151_643, 151_669, 151_936, 151_936).summary()
        'trained 151,643 · with added tokens 151,669 · scores 151,936'
        """
        last = "" if self.embedded is None else f" · embedded {self.embedded:,}"
        if self.scored is not None:
            last = f" · scores {self.scored:,}"
        return f"trained {self.trained:,} · with added tokens {self.listed:,}{last}"

    def why(self) -> str:
        """Why they differ, in a sentence; empty where they do not.

        >>> VocabularySizes(32_000, 32_100, 32_128, 32_128).why()
        '28 ids stand for no text: the scores are padded to a size that hardware likes.'
        """
        if self.beyond:
            return f"The model's table ends before {self.beyond:,} of the tokens: it can neither read nor write those."
        if self.unused:
            what = "table is" if self.scored is None else "scores are"
            return f"{self.unused:,} ids stand for no text: the {what} padded to a size that hardware likes."
        return ""

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.why()}".rstrip()
