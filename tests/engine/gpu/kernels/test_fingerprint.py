"""Fingerprints of memory: the same for the same bytes, another for any other."""

from __future__ import annotations

import torch
from torch import Tensor

from glassformer.engine.gpu.kernels.fingerprint import SPAN, ParameterWatch, fingerprint


def numbers(*tensors: Tensor, aligned: bool = False) -> list[int]:
    addresses, counts = torch.tensor([(tensor.data_ptr(), tensor.nbytes // 2) for tensor in tensors]).T.contiguous()
    values: list[int] = fingerprint(addresses, counts, aligned).tolist()
    return values


def test_equal_bytes_have_equal_numbers_wherever_they_lie() -> None:
    values = torch.randn(33, 67)
    assert len(set(numbers(values, values.clone(), values.T.contiguous().T.contiguous()))) == 1


def test_aligned_memory_is_read_to_the_same_numbers() -> None:
    values = torch.randn(33, 64)
    assert numbers(values, aligned=True) == numbers(values)


def test_any_other_bytes_have_other_numbers() -> None:
    values = torch.randn(40, 130).to(torch.bfloat16)
    others = [values.neg(), values.flip(0), values.flip(1), values.roll(1), values.roll(2048), values[:, :-1].contiguous()]
    for at in (0, 2047, 2048, 5199):
        other = values.clone()
        other.view(-1)[at] += 0.25
        others.append(other)
    assert len(set(numbers(values, *others))) == 1 + len(others)


def test_a_watch_notices_other_bytes_addresses_and_names() -> None:
    tensors = {"a": torch.zeros(SPAN // 4 + 3), "b": torch.ones(2, 5), "empty": torch.empty(0), "odd": torch.ones(9)[1:]}
    tensors["shared"] = tensors["b"]
    watch = ParameterWatch(tensors)
    assert watch.unchanged(dict(tensors))
    assert not watch.unchanged({**tensors, "b": tensors["b"].clone()})
    assert not watch.unchanged({name: tensors[name] for name in ("a", "b")})
    for name, at in (("a", -1), ("a", 0), ("a", SPAN // 4), ("b", 0), ("odd", 3)):
        before = tensors[name][at].clone()
        tensors[name][at] = 1e-30
        assert not watch.unchanged(tensors)
        tensors[name][at] = before
        assert watch.unchanged(tensors)
