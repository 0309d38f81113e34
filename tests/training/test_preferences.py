"""Direct preference optimization: loss and gradients by the plain definition, on the reference's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from glassformer import AutoModelForCausalLM
from glassformer.ground.errors import InputError
from glassformer.training import fine_tuning
from glassformer.training.events import Evaluated, StepDone
from glassformer.training.fine_tuning import PreferenceRequest
from glassformer.training.objectives.answers import Pair, Preferences
from glassformer.training.packing import TrainingRow
from glassformer.training.sharding import Ranks
from glassformer.training.training_folder import TrainingFolder
from tests.training.chat_models import FORGETFUL, write_chat_model, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = [{"prompt": f"Is {n} even?", "chosen": "Yes." if n % 2 == 0 else "No.", "rejected": "Maybe, who knows."}
        for n in range(40)]  # fmt: skip
QUICK = {"steps": 8, "batch_size": 4, "learning_rate": 3e-3, "warmup_steps": 0, "evaluate_every": 4, "save_every": 3}


def request(folder: Path, **changes: Any) -> PreferenceRequest:
    data = write_rows(folder / "pairs.jsonl", ROWS)
    return PreferenceRequest(**{"data": data, "init": str(folder / "base"), "held_out": 0.2, "settings": QUICK, **changes})


def log_probability(model: Any, row: TrainingRow) -> torch.Tensor:
    """Of an answer, token by token, by a reference model."""
    logs = model(torch.tensor([list(row.ids)])).logits[0].log_softmax(-1)
    places = [place for place, predicted in enumerate(row.predicted) if predicted]
    return torch.stack([logs[place - 1, row.ids[place]] for place in places]).sum()


def some_pairs() -> list[Pair]:
    draw = torch.Generator().manual_seed(2)

    def answer(prompt: list[int], length: int) -> TrainingRow:
        ids = torch.randint(3, 250, (length,), generator=draw).tolist()
        return TrainingRow([*prompt, *ids], [*(False for _ in prompt), *(True for _ in ids)])

    prompts = [[5, 6, 7], [9, 4], [8, 8, 8, 8]]
    return [(answer(prompt, 2 + number), answer(prompt, 5 - number)) for number, prompt in enumerate(prompts)]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("pack", [True, False])
def test_loss_and_gradients_are_those_of_the_definition(pack: bool, smoothing: float, tmp_path: Path) -> None:
    start = write_chat_model(tmp_path).double()
    theirs = write_chat_model(tmp_path).double()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    changed = ("model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight")
    with torch.no_grad():
        for model in (theirs, ours):
            for name in changed:
                model.get_parameter(name).mul_(1.3)
    pairs, beta = some_pairs(), 0.3
    objective = Preferences(pairs, [], "test", beta, pack)
    objective.label_smoothing = smoothing
    with torch.no_grad():
        reference = torch.stack([torch.stack([log_probability(start, row) for row in pair]) for pair in pairs])
    objective.use_reference(reference, torch.zeros(0, 2))
    batch = objective.batch([0, 2, 1])
    loss = objective.loss(ours, batch)
    loss.backward()
    assert batch.count == 3
    margins = []
    for (chosen, rejected), (chosen_start, rejected_start) in zip(pairs, reference, strict=True):
        better = log_probability(theirs, chosen) - chosen_start
        worse = log_probability(theirs, rejected) - rejected_start
        margins.append(beta * (better - worse))
    margin = torch.stack(margins)
    expected = -((1 - smoothing) * F.logsigmoid(margin) + smoothing * F.logsigmoid(-margin)).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)  # the reference's norms are float32
    for name in changed:
        torch.testing.assert_close(ours.get_parameter(name).grad, theirs.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
    sums = objective.sums(ours, batch)
    torch.testing.assert_close(sums["reward_margin"], margin.sum(), rtol=1e-5, atol=1e-6)
    assert int(sums["reward_accuracy"]) == int((margin > 0).sum())


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "lora"])
def test_what_is_preferred_becomes_likelier_and_resuming_changes_nothing(
    lora: dict[str, Any] | None, tmp_path: Path
) -> None:
    base = write_chat_model(tmp_path / "base")
    asked = request(tmp_path, lora=lora, settings={**QUICK, "learning_rate": 3e-3 if lora is None else 0.03})
    whole = asked.prepare(TrainingFolder(tmp_path / "whole"), Ranks())
    objective: Any = whole.trainer.objective
    row = objective.data[0][0]
    with torch.no_grad():
        expected = log_probability(base, row)
    torch.testing.assert_close(objective._reference[0][0, 0].float(), expected, rtol=1e-4, atol=1e-4)
    events = list(whole.trainer.run())
    steps = [event for event in events if isinstance(event, StepDone)]
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    assert steps[0].loss == pytest.approx(0.6931, abs=1e-3)  # nothing is preferred yet
    assert evaluations[-1].loss < 0.6
    assert evaluations[-1].measures["reward_accuracy"] > 0.9
    assert evaluations[-1].measures["reward_margin"] > 0.1
    broken = TrainingFolder(tmp_path / "broken")
    for event in asked.prepare(broken, Ranks()).trainer.run():
        if isinstance(event, StepDone) and event.step == 5:
            break
    again = asked.prepare(broken, Ranks(), resume=True)  # the start is read again, not what is trained by now
    list(again.trainer.run())
    first, second = whole.trainer.weights(), again.trainer.weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_start_is_kept_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_chat_model(tmp_path / "base")
    request(tmp_path).prepare(TrainingFolder(tmp_path / "out"), Ranks())
    (file,) = (tmp_path / "out").glob("reference-*.safetensors")
    assert file.stat().st_size < 40 * 2 * 8 + 500
    monkeypatch.setattr(Preferences, "log_probabilities", None)  # nobody computes them again
    again = request(tmp_path).prepare(TrainingFolder(tmp_path / "out"), Ranks(), resume=True)
    assert "reference" in again.trainer.objective.batch([0]).inputs


def test_preferences_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "base", template=FORGETFUL)
    answers = [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "b"},
    ]
    data = write_rows(tmp_path / "long.jsonl", [{"prompt": "x", "chosen": answers, "rejected": "c"}])
    with pytest.raises(InputError, match="long.jsonl, row 1: the chat template writes its answers in another way"):
        request(tmp_path, data=data, held_out=0.0).prepare(TrainingFolder(tmp_path / "out"), Ranks())


def test_damaged_numbers_of_the_start_are_computed_again(tmp_path: Path) -> None:
    tensors = {"pairs": torch.ones(3, 2, dtype=torch.float64), "held_out": torch.zeros(1, 2, dtype=torch.float64)}
    path = tmp_path / "reference.safetensors"
    save_file(tensors, path, {"crc32": fine_tuning._checksum(tensors)})
    assert torch.equal(fine_tuning._stored(path)["pairs"], tensors["pairs"])
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert fine_tuning._stored(path) == {}
    path.write_bytes(b"")
    assert fine_tuning._stored(path) == {}
    save_file(tensors, path)  # as older ones are
    assert fine_tuning._stored(path).keys() == tensors.keys()
