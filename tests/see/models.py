"""Tiny models of every family, with tokenizers, each beside its reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

import glassformer
from tests.parity import reference
from tests.see.test_views import TOKENIZERS

CAUSAL = ("gpt2", "llama", "qwen3", "gemma3_text")
WRITERS = {**dict.fromkeys(CAUSAL, "causal"), "t5": "seq2seq", "bart": "seq2seq"}
PAIR: dict[str, Any] = {
    "decoder_start_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "forced_eos_token_id": 1,
}
EXECUTORS = ("plain", "cpu")
TEXT = "the cat sat on the mat"
MORE: dict[str, dict[str, Any]] = {
    **{family: PAIR for family in reference.PAIRS if family not in ("t5", "mt5", "umt5")},
    **{family: {"bos_token_id": 0, "eos_token_id": 0} for family in reference.DECODERS},
}


@dataclass(frozen=True)
class Both:
    """Ours and the reference."""

    model: Any
    reference: Any
    family: str

    @property
    def sourced(self) -> bool:
        return self.family in reference.PAIRS

    def reading(self, text: str = TEXT, target: str | None = "a dog sat") -> Any:
        return self.model.read(text, target) if self.sourced else self.model.read(text)

    def run(self, reading: Any) -> Any:
        """The reference over the same tokens."""
        ids = torch.tensor([reading.ids])
        with torch.no_grad():
            if self.sourced:
                source = torch.tensor([reading.source])
                return self.reference(source, decoder_input_ids=ids, output_attentions=True, output_hidden_states=True)
            return self.reference(ids, output_attentions=True, output_hidden_states=True)

    def unembedded(self, states: torch.Tensor) -> torch.Tensor:
        """The reference's last norm and head over states that left some block."""
        m = self.reference
        with torch.no_grad():
            if self.family == "gpt2":
                return m.lm_head(m.transformer.ln_f(states))
            if self.family == "t5":
                return m.lm_head(m.decoder.final_layer_norm(states) * m.config.d_model**-0.5)
            if self.family == "bart":
                return m.lm_head(states) + m.final_logits_bias
            return m.lm_head(m.model.norm(states))


@cache
def folder(family: str, head: str) -> tuple[Path, Any]:
    place = Path(mkdtemp())
    kind = "t5" if family in reference.PAIRS else "bert" if family in reference.ENCODERS else "gpt2"
    tokenizer, named = TOKENIZERS[kind]()
    made = reference.write(place, family, head, vocab_size=tokenizer.get_vocab_size(), **MORE.get(family, {}))
    tokenizer.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps(named))
    return place, made


@cache
def both(family: str, executor: str = "plain") -> Both:
    place, made = folder(family, "seq2seq" if family in reference.PAIRS else "causal")
    extra = {"cache": "f32"} if executor == "cpu" else {}
    return Both(glassformer.load(place, executor=executor, **extra), made, family)


@cache
def encoder(family: str = "bert", head: str = "masked") -> Both:
    place, made = folder(family, head)
    return Both(glassformer.load(place), made, family)
