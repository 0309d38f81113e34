"""A tokenizer of the training's own texts: byte-level BPE, with the special tokens that the kind of model needs.

A decoder needs an end of text; an encoder a start, a separator and a mask; an encoder-decoder an end and sentinels, which
stand for the spans that its pretraining takes out (T5's `<extra_id_0>`, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from glassformer.blueprints import Head
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.config_fields import NO_LIMIT
from glassformer.training.sharding import Ranks
from glassformer.training.training_folder import TrainingFolder

END = "<|endoftext|>"
SENTINELS = tuple(f"<extra_id_{index}>" for index in range(100))  # as T5's own tokenizer has them
GAPS = ("[MASK]", *SENTINELS)  # stand for what was taken out together with the space before it


@dataclass(frozen=True)
class SpecialTokens:
    roles: Mapping[str, str]
    single: str = ""  # around one text, in the tokenizers library's template language
    pair: str = ""  # around two
    additional: tuple[str, ...] = ()  # without a role


SPECIAL_TOKENS: Mapping[Head, SpecialTokens] = {  # by the head that a family was trained with
    "causal": SpecialTokens({"bos_token": END, "eos_token": END, "pad_token": END}),
    "masked": SpecialTokens(
        {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    "seq2seq": SpecialTokens({"pad_token": "<pad>", "eos_token": "</s>"}, "$A </s>", "$A </s> $B </s>", SENTINELS),
}  # fmt: skip


def new_tokenizer(
    texts: Iterable[str], vocabulary: int, head: Head = "causal", max_length: int = NO_LIMIT, token_types: bool = False
) -> Tokenizer:
    """A byte-level BPE of some texts: any text can be written with it, and what is frequent in these is short.

    Args:
        texts: are read once.
        vocabulary: how many tokens there are, at most; but all bytes and all special tokens are among them.
        head: that the model's family was trained with.
        max_length: how many tokens the model reads.
        token_types: tell which of two texts a token belongs to.
    """
    special = SPECIAL_TOKENS[head]
    tokens = list(dict.fromkeys((*special.roles.values(), *special.additional)))
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, lstrip=token in GAPS, special=True) for token in tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if special.single:
        ids = [(token, backend.token_to_id(token)) for token in tokens]
        template = processors.TemplateProcessing(single=special.single, pair=special.pair, special_tokens=ids)
        backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return Tokenizer(
        backend,
        special=special.roles,
        additional=special.additional,
        model_max_length=max_length,
        token_types=token_types,
    )


def add_gap_tokens(tokenizer: Tokenizer, head: Head) -> int:
    """Give a tokenizer that exists what a model with a head is trained with, and say how many tokens were new."""
    special = SPECIAL_TOKENS[head]
    needed = {"masked": ("mask_token", "pad_token"), "seq2seq": ("eos_token", "pad_token")}.get(head, ())
    new: dict[str, Any] = {role: special.roles[role] for role in needed if getattr(tokenizer, role) is None}
    if special.additional and not sentinel_ids(tokenizer):
        new["extra_special_tokens"] = [*tokenizer.additional_special_tokens, *special.additional]
    return tokenizer.add_special_tokens(new) if new else 0


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of the sentinels that a tokenizer has, in their order."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in SENTINELS if token in vocabulary]


def tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before a text and after it."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    first = special.index(0)
    last = len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]


def kept_tokenizer(folder: TrainingFolder, ranks: Ranks, make: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer of a training: made once by the first process, and read by the others, and when it goes on."""
    path = folder.path / "tokenizer"
    if ranks.first and not (folder.begun and (path / "tokenizer.json").exists()):  # one of a try that failed may not fit
        make().save_pretrained(path)
    ranks.wait()
    return Tokenizer.from_folder(path)
