"""Settings: what is refused and why, what is in force, and where each value came from."""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.blueprints import read_config
from glassformer.decoding import GenerationConfig, Policy, Recipe
from glassformer.decoding.rules import TextIds
from glassformer.decoding.settings import HARMLESS, LOAD_ARGUMENTS
from glassformer.decoding.settings_table import RULES, SETTINGS, parameters_of
from glassformer.ground.errors import SettingError, UnknownArgument
from tests.parity import reference
from tests.parity.compare import load
from tests.strange_numbers import STRANGE, failures, limited


def test_the_example_of_a_needed_setting_is_valid() -> None:
    needed = {info.needs for info in SETTINGS.values()} - {None}
    assert needed == {name for name, info in SETTINGS.items() if info.title and info.example is not None}
    for name in needed - {"assistant_model"}:
        changes: dict[str, Any] = {}
        while name is not None:
            changes[name] = SETTINGS[name].example
            name = SETTINGS[name].needs
        GenerationConfig().merged(changes)


def test_neutral_values_are_accepted() -> None:
    quiet = {"num_beams": 1, "length_penalty": 1.0, "temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    found = GenerationConfig().merged({**quiet, "use_cache": True, "diversity_penalty": 0.0, "guidance_scale": 1.0})
    assert not [name for name in RULES if found.is_active(name)]


def test_what_a_models_file_asks_for_can_be_switched_off() -> None:
    model = GenerationConfig.from_dict({"num_beams": 4})
    with pytest.raises(SettingError, match="num_beams=1"):
        model.merged({"prompt_lookup_num_tokens": 3})
    assert model.merged({"prompt_lookup_num_tokens": 3, "num_beams": 1}).strategy == "greedy, prompt lookup"


def test_a_config_of_ones_own_takes_the_models_place() -> None:
    model = GenerationConfig.from_dict({"do_sample": True, "temperature": 0.6, "eos_token_id": 7})
    found = model.merged({"generation_config": GenerationConfig(max_new_tokens=5), "repetition_penalty": 1.2})
    assert found.in_force == {
        "max_new_tokens": (5, "set by hand"),
        "eos_token_id": (7, "generation_config.json"),
        "repetition_penalty": (1.2, "this call"),
    }


def test_another_librarys_generation_config_is_taken() -> None:
    from transformers import GenerationConfig as Theirs

    found = GenerationConfig().merged({"generation_config": Theirs(max_new_tokens=5, num_beams=3)})
    assert found.in_force["max_new_tokens"] == (5, "generation_config")
    assert found.strategy == "3 beams"


def test_numpy_and_torch_numbers_become_pythons() -> None:
    import torch

    found = GenerationConfig().merged(
        {"max_new_tokens": np.int64(3), "seed": torch.tensor(5), "repetition_penalty": np.float32(2)}
    )
    assert (found.max_new_tokens, found.seed, found.repetition_penalty) == (3, 5, 2.0)


def test_the_message_for_another_librarys_name_has_ours() -> None:
    for name, ours in (("stop", "stop_strings"), ("n", "num_return_sequences"), ("guided_json", "json_schema")):
        with pytest.raises(UnknownArgument, match=f"'{name}'.*'{ours}'"):
            GenerationConfig().merged({name: 1})


def test_empty_lists_ask_for_nothing() -> None:
    empty = {"stop_strings": [], "suppress_tokens": [], "logit_bias": {}, "bad_words": [], "logits_processor": []}
    found = GenerationConfig().merged(empty)
    assert Recipe.of(found).rules == ()
    assert Recipe.of(found).stops == ()
    telling = {"json_schema": {}, "choices": [], "allowed_tokens": []}
    assert all(GenerationConfig(**{name: value}).is_active(name) for name, value in telling.items())


def test_a_drawn_seed_is_in_force_and_marked_drawn() -> None:
    found = GenerationConfig().merged({"do_sample": True})
    found.draw_seed()
    assert found.in_force["seed"] == (found.seed, "drawn")
    again = GenerationConfig().merged({"do_sample": True, "seed": 7})
    again.draw_seed()
    assert again.in_force["seed"] == (7, "this call")


def test_a_models_file_may_hold_what_has_no_effect() -> None:
    found = GenerationConfig.from_dict({"do_sample": False, "temperature": 0.6, "length_penalty": 2.0})
    assert found.merged({"max_new_tokens": 3}).temperature == 0.6
    assert not found.is_active("temperature")
    assert not found.is_active("length_penalty")


def test_mirostat_takes_the_place_of_what_the_file_cuts_by() -> None:
    found = GenerationConfig.from_dict({"do_sample": True, "top_p": 0.9}).merged({"mirostat": 2})
    assert [name for name in RULES if found.is_active(name)] == ["mirostat"]


def test_an_unknown_setting_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError):
        GenerationConfig().max_new_token = 5  # type: ignore[attr-defined]


def test_unknown_names_are_noticed_when_settings_are_made() -> None:
    assert set(LOAD_ARGUMENTS) < set(inspect.signature(glassformer.load).parameters)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_text_is_accepted_and_ignored(name: str) -> None:
    assert GenerationConfig().merged({name: "hybrid"}) == GenerationConfig()
    stored = GenerationConfig.from_dict({name: "hybrid"})
    assert not stored.unsupported
    assert stored.to_dict() == {name: "hybrid"}


def test_outputs_of_a_models_config_are_no_settings() -> None:
    config = read_config({"model_type": "llama", **reference.TINY["llama"], "output_hidden_states": True})
    assert not GenerationConfig.from_model_config(config).unsupported


def test_the_strategy_in_a_word() -> None:
    def told(**changes: Any) -> str:
        return GenerationConfig().merged(changes).strategy

    assert told() == "greedy"
    assert told(num_beams=3, do_sample=True) == "3 beams, sampled"
    assert told(guidance_scale=2.0, regex="a") == "greedy, guided, regex"
    assert told(do_sample=True, prompt_lookup_num_tokens=3) == "sampled, prompt lookup"


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(SettingError, match="max_length=3"):
        Policy(Recipe.of(GenerationConfig(max_length=3)), [1, 2, 3, 4], context=9)


def test_a_calls_max_length_outranks_the_models_max_new_tokens() -> None:
    found = GenerationConfig(max_new_tokens=100).merged({"max_length": 6})
    assert found.room(4, 50) == 2


def test_generation_config_files_are_read_and_checked() -> None:
    raw = {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": [3, 4], "odd": 1, "seed": None}
    found = GenerationConfig.from_dict(raw)
    assert found.eos == {3, 4}
    assert found.extra == {"odd": 1}
    assert found.to_dict().items() >= {"odd": 1, "top_k": 20, "eos_token_id": [3, 4]}.items()


def test_files_are_read_kindly_where_nothing_is_lost() -> None:
    assert GenerationConfig.from_dict({"temperature": 0.0, "do_sample": True}).merged({}).strategy == "greedy"
    assert GenerationConfig.from_dict({"temperature": 0.0}).merged({"do_sample": True}).temperature == 1.0
    assert not GenerationConfig.from_dict({"do_sample": True, "top_k": -1}).is_active("top_k")
    assert GenerationConfig.from_dict({"top_p": 0.0}).merged({"do_sample": True}).top_p == 1.0


def test_a_file_gets_back_what_it_held_and_nothing_of_one_call() -> None:
    raw = {"do_sample": True, "temperature": 0.6, "num_beams": 4, "bad_words_ids": [[1, 2]], "sequence_bias": [[[5], 1.0]]}
    found = GenerationConfig.from_dict(raw).merged({"cancel": threading.Event(), "return_dict_in_generate": True, "seed": 3})
    held = json.loads(json.dumps(found.to_dict()))
    assert held == raw


class TestOrigins:
    def test_each_value_knows_where_it_came_from(self) -> None:
        model = GenerationConfig.from_dict({"do_sample": True, "temperature": 0.6, "eos_token_id": 2})
        model.top_p = 0.9
        found = model.merged({"max_new_tokens": 7, "temperature": 0.8})
        assert found.in_force == {
            "max_new_tokens": (7, "this call"),
            "eos_token_id": (2, "generation_config.json"),
            "do_sample": (True, "generation_config.json"),
            "temperature": (0.8, "this call"),
            "top_k": (50, "default"),
            "top_p": (0.9, "set by hand"),
        }
        assert model.origin("temperature") == "generation_config.json"
        assert str(found).splitlines()[0].split() == ["max_new_tokens", "7", "this", "call"]
        assert repr(model) == "GenerationConfig(eos_token_id=2, do_sample=True, temperature=0.6, top_k=50, top_p=0.9)"

    def test_the_default_length_is_in_force(self) -> None:
        assert GenerationConfig().in_force == {"max_new_tokens": (256, "default")}

    def test_settings_come_from_a_models_folder(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "llama")
        (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.7}))
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
        found = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path).generation_config
        assert found.origin("temperature") == "generation_config.json"
        assert found.origin("eos_token_id") == "config.json"


def test_settings_that_name_texts_need_a_tokenizer() -> None:
    for change in (
        {"stop_strings": "x"},
        {"bad_words": ["x"]},
        {"regex": "x"},
        {"logit_bias": {"x": 1.0}},
        {"forced_tokens": {0: "x"}},
    ):
        with pytest.raises(SettingError, match="tokenizer=tokenizer"):
            Recipe.of(GenerationConfig().merged(change))


class Letters:
    """A tokenizer of single letters."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": {99: 1.0}},
        {"forced_tokens": {0: 99}},
        {"sequence_bias": {(5, 99): 1.0}},
        {"bad_words_ids": [[5, -2]]},
        {"allowed_tokens": [99]},
        {"suppress_tokens": [-1, 99]},
        {"forced_bos_token_id": 99},
        {"forced_eos_token_id": [3, 99]},
    ],
)
def test_ids_outside_the_vocabulary_are_refused(changes: dict[str, Any]) -> None:
    settings = GenerationConfig().merged(changes)
    with pytest.raises(SettingError, match=r"the id (99|-2)"):
        Recipe.of(settings, size=50)
    assert Recipe.of(settings, size=None).rules
    Recipe.of(GenerationConfig(suppress_tokens=[-1]), size=50)


def test_a_text_of_digits_is_a_text() -> None:
    """An id is a number; JSON, which has no numbers for keys, can say it in pairs."""
    policy = Policy(Recipe.of(GenerationConfig(logit_bias={"5": 9.0, 7: 8.0}), Letters()), [1], context=9)
    assert policy.shape(np.zeros(99, np.float32)).scores[[5, 7, ord("5")]].tolist() == [0.0, 8.0, 9.0]
    pairs = Recipe.of(GenerationConfig().merged({"logit_bias": [[7, 8.0]]}))
    assert Policy(pairs, [1], context=9).shape(np.zeros(99, np.float32)).scores[7] == 8.0


@pytest.mark.parametrize("name", ["num_return_sequences", "num_beams", "temperature", "do_sample", "repetition_penalty"])
def test_none_is_a_settings_default(name: str) -> None:
    told = GenerationConfig(num_beams=4, num_return_sequences=2, do_sample=True, temperature=0.5, repetition_penalty=1.2)
    other = {"num_beams": {"num_return_sequences": 1}}.get(name, {})
    assert getattr(told.merged({name: None, **other}), name) == getattr(GenerationConfig(), name)


# Strange numbers ------------------------------------------------------------------------------------------------

NUMBERED = [name for name, info in SETTINGS.items() if info.neutral is not True and not info.per_call]
LISTED: tuple[Any, ...] = (
    [[2**63]],
    [[5, math.inf]],
    [[[5], math.nan]],
    [[[math.inf], 1.0]],
    {"5": math.nan},
    1e-300,
    1e300,
)
CONTEXTS: tuple[dict[str, Any], ...] = ({}, {"do_sample": True, "seed": 1}, {"num_beams": 2})


def with_needs(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings, and those without which the named one has no effect."""
    needs = SETTINGS[name].needs
    return settings if needs is None else with_needs(needs, {needs: SETTINGS[needs].example, **settings})


def strange_settings() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NUMBERED:
        for value in (*STRANGE, *LISTED):
            for context in CONTEXTS:
                yield f"{name}={value!r}"[:60], with_needs(name, {"max_new_tokens": 3, **context, name: value})


def test_strange_numbers_in_settings_are_refused_or_harmless() -> None:
    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for case, settings in strange_settings():
            yield case, lambda: Recipe.of(GenerationConfig().merged(settings), size=160)  # noqa: B023
            yield f"{case} (a file)", lambda: Recipe.of(GenerationConfig.from_dict(settings), size=160)  # noqa: B023

    assert limited(lambda: failures(cases())) == []


@pytest.mark.sweep
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_generation_with_strange_numbers(family: str, tmp_path: Path) -> None:
    head = reference.HEADS[family][1]
    reference.write(tmp_path, family, head)
    model = load(tmp_path, head)

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for case, settings in strange_settings():
            yield case, lambda: model.generate(torch.tensor([[5, 9, 14]]), **settings)  # noqa: B023

    assert limited(lambda: failures(cases())) == []


@pytest.mark.parametrize(("settings", "message"), [
    ({"num_beams": 10**12}, "num_beams is 1000000000000"),
    ({"max_new_tokens": 2**40}, "max_new_tokens is 1099511627776"),
    ({"max_new_tokens": 10**5000}, "max_new_tokens"),
    ({"do_sample": True, "temperature": -math.inf}, "temperature is -inf"),
    ({"do_sample": True, "temperature": 1e300}, "temperature is 1e[+]300"),
    ({"eos_token_id": [2, 2**63]}, "eos_token_id is .2, 9223372036854775808."),
    ({"logit_bias": [[[5], 1.0]]}, "logit_bias names .5."),
    ({"sequence_bias": [[[5], math.nan]]}, "sequence_bias is"),
])  # fmt: skip
def test_what_is_said_of_a_strange_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Recipe.of(GenerationConfig().merged(settings), size=160)
    with pytest.raises(SettingError, match=message):
        Recipe.of(GenerationConfig.from_dict(settings), size=160)


def test_rules_are_made_of_what_has_a_name() -> None:
    named = {*SETTINGS, *TextIds._fields, "eos", "min_keep"}
    for name in RULES:
        maker = SETTINGS[name].rule
        assert maker is not None
        assert set(parameters_of(maker)) <= named, name
