"""The from-scratch model of the course, by the course's own names: `Model(h_params)`, `logits, loss = model(x, targets)`.

    checkpoint = torch.load("model.ckpt")
    model = Model(checkpoint["h_params"])
    model.load_state_dict(checkpoint["model_state_dict"])
    model.eval()
    y = model.generate(x, max_new_tokens=200, temperature=0.5, top_k=None)

It is the same family that `AutoModelForCausalLM.from_pretrained("model.ckpt")` gives, under other names. Importing this
module lets `tiktoken.get_encoding("cl100k_base")` find the ranks that `glass models pull cl100k_base` has fetched.

Shapes: x, targets (batch, length); logits (batch, length, vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blueprints.scratch import Config
from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.scratch import OUTPUT, SPELLINGS, TABLE, chapter_name
from glassformer.compat.auto import model_class
from glassformer.ground.errors import ConfigError, InputError, SettingError
from glassformer.torch.cache import DynamicCache
from glassformer.torch.heads import token_loss

VOCABULARY = 100256  # of cl100k_base, when h_params say nothing

tiktoken_ranks.set_tiktoken_cache()


class Model(model_class("scratch", "ForCausalLM")):  # type: ignore[misc]
    """The chapter's model. `h_params` is its dictionary, in the chapter's words or in the repository's."""

    config: Any

    def __init__(self, h_params: Mapping[str, Any] | Config) -> None:
        super().__init__(h_params if isinstance(h_params, Config) else config_from_h_params(h_params))

    @property
    def context_length(self) -> int:
        """How many tokens the model sees at once."""
        length: int = self.config.max_position_embeddings
        return length

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The scores of every position, and the mean loss against `targets` (the tokens that follow) if they are given."""
        logits: Tensor | None = super().forward(idx, use_cache=False).logits
        assert logits is not None
        return logits, token_loss(logits, targets)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take over a state dict, in either spelling; an output layer that shares the table's memory goes on sharing it."""
        stored = {chapter_name(name): value for name, value in state_dict.items()}
        pair = stored.get(TABLE), stored.get(OUTPUT)
        table, output = self.token_embedding_lookup_table, self.model_out_linear_layer
        both = all(isinstance(tensor, Tensor) for tensor in pair)
        shared = both and _share_memory(*pair)
        if both and not shared and output.weight is table.weight:  # an earlier one shared it; now each has its own
            output.weight = nn.Parameter(output.weight.detach().clone(), output.weight.requires_grad)
        result = super().load_state_dict(stored, strict, assign)
        if shared:
            output.weight = table.weight
        if both:
            self.config = self.base_model.config = self.config.with_changes({"tie_word_embeddings": shared})
        return result

    @torch.no_grad()
    def generate(self, idx: Tensor, max_new_tokens: int = 100, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
        """Draw tokens one by one, from torch's random numbers, each seeing at most the last `context_length` before it.

        Args:
            idx: the prompt's ids, (batch, length).
            max_new_tokens: how many tokens are drawn.
            temperature: below 1 sharpens the probabilities, above 1 flattens them.
            top_k: draw only from the best k.

        Returns:
            The prompt and what was drawn, (batch, length + max_new_tokens).
        """
        self.base_model.check_inputs(idx, None)
        _check_temperature(temperature)
        if top_k is not None and top_k < 1:
            raise SettingError(f"top_k is {top_k!r}; it must be at least 1, or None.")
        cache, fed = DynamicCache(), idx[:, -self.context_length :]
        for _ in range(max_new_tokens):
            if cache.get_seq_length() + fed.shape[1] > self.context_length:  # every position shifts: start over
                cache, fed = DynamicCache(), idx[:, -self.context_length :]
            logits = super().forward(fed, past_key_values=cache, logits_to_keep=1).logits
            assert logits is not None
            scores = logits[:, -1] / temperature
            if top_k is not None:
                worst = scores.topk(min(top_k, scores.shape[-1])).values[:, -1:]
                scores = scores.masked_fill(scores < worst, -torch.inf)
            fed = torch.multinomial(scores.softmax(-1), num_samples=1)
            idx = torch.cat((idx, fed), dim=1)
        return idx


def config_from_h_params(h_params: Mapping[str, Any]) -> Config:
    """The config that a dictionary of hyperparameters describes."""
    if not isinstance(h_params, Mapping):
        raise ConfigError(f"h_params is a dictionary, not {type(h_params).__name__}.")
    raw: dict[str, Any] = {"model_type": "scratch", "vocab_size": VOCABULARY}
    for name, spellings in SPELLINGS.items():
        value = next((h_params[spelling] for spelling in spellings if spelling in h_params), None)
        if value is None:
            raise ConfigError(f"h_params lack {spellings[0]!r}.")
        raw[name] = value
    for spelling, name in {"vocab_size": "vocab_size", "max_token_value": "vocab_size", "dropout": "dropout"}.items():
        if spelling in h_params:
            raw[name] = h_params[spelling]
    return Config.read(raw)


def _share_memory(table: Any, output: Any) -> bool:
    """Whether two tensors are the same numbers in memory; those without memory are not."""
    places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in (table, output)]
    return places[0] == places[1] and places[0][0] != 0


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise SettingError(f"temperature is {temperature!r}; it must be above 0.")


@torch.no_grad()
def generate_with_trace(model: Model, x: Tensor, max_new_tokens: int = 10, temperature: float = 1.0) -> Tensor:
    """Generate as the chapter does, printing the five best candidates of each step, the choice, and the text so far."""
    from glassformer.model_files import AutoTokenizer

    model.base_model.check_inputs(x, None)
    _check_temperature(temperature)
    if len(x) != 1:
        raise InputError("a trace follows one text; give it a batch of one.")
    text = AutoTokenizer.from_pretrained(tiktoken_ranks.NAME).decode
    print(f"Initial prompt: {text(x[0])}\n---")
    for step in range(1, max_new_tokens + 1):
        logits, _ = model(x[:, -model.context_length :])
        probabilities = (logits[:, -1] / temperature).softmax(-1)
        print(f"Step {step} candidates:")
        best = probabilities[0].topk(min(5, probabilities.shape[-1]))
        for probability, token in zip(best.values, best.indices, strict=True):
            print(f"  '{text(token)}': {probability:.3f}")
        chosen = torch.multinomial(probabilities, num_samples=1)
        x = torch.cat((x, chosen), dim=1)
        print(f"  -> selected: '{text(chosen[0])}'\n  current sequence: {text(x[0])}\n---")
    return x


__all__ = ["Model", "generate_with_trace"]
