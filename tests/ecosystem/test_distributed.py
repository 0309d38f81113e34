"""torch's wrappers for several processes: the same losses as one process has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import glassformer
from tests.ecosystem.models import load_pair, make_batches, train
from tests.patience import patience

ROOT = Path(__file__).parent.parent.parent
WRAPPERS = ("ddp", "fsdp", "fsdp2")


def test_data_parallel_calls_the_model(model_folder: Callable[[str, str], Path]) -> None:
    model = load_pair(model_folder("llama", "causal"), "causal").ours
    batches = make_batches("causal")
    expected = train(load_pair(model_folder("llama", "causal"), "causal").ours, batches)
    assert train(nn.DataParallel(model), batches) == pytest.approx(expected, abs=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("family", "head"), [("llama", "causal"), ("gpt2", "causal"), ("bart", "seq2seq")])
def test_two_processes_learn_what_one_learns(
    wrapper: str, family: str, head: str, model_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = model_folder(family, head)
    expected = train(load_pair(folder, head).ours, [_twice(batch) for batch in make_batches(head)])
    settings = {
        "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }  # fmt: skip
    command = [sys.executable, "-m", __name__, wrapper, str(folder), head, str(tmp_path)]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=patience(240))[1].decode()[-3000:] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    losses = torch.load(tmp_path / "losses.pt")
    assert losses == pytest.approx(expected, abs=1e-4)


def _twice(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch whose halves, one for each process, are alike."""
    return {name: torch.cat((value, value)) for name, value in batch.items()}


def wrap(model: Any, wrapper: str) -> Any:
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if wrapper == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    return fully_shard(model)


def main(wrapper: str, folder: str, head: str, results: str) -> None:
    torch.set_num_threads(1)
    rendezvous = Path(results, "rendezvous").as_uri()
    distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    kinds = {"causal": glassformer.AutoModelForCausalLM, "seq2seq": glassformer.AutoModelForSeq2SeqLM}
    model = kinds[head].from_pretrained(folder, use_cache=False)
    losses = train(wrap(model, wrapper), make_batches(head))
    if distributed.get_rank() == 0:
        torch.save(losses, Path(results, "losses.pt"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
