"""Dictionaries of features: their files, and their numbers against a slow statement of the same."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from glassformer.features.dictionary import FeatureDictionary
from glassformer.features.files import (
    feature_of,
    hook_of_site,
    is_dictionary,
    read_dictionary,
    site_of_hook,
    write_dictionary,
)
from glassformer.ground.errors import CheckpointError, GlassError
from tests.features.dictionaries import KINDS, SIZE, WIDTH, random_tensors, write_folder

INPUTS = np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)


def slow(tensors: dict[str, Any], x: Any, kind: str, *, subtracts: bool, norm: str, rescaled: bool, k: int = 7) -> Any:
    """One token's activations and reconstruction, in float64, feature by feature."""
    w_enc, w_dec = tensors["W_enc"].astype(np.float64), tensors["W_dec"].astype(np.float64)
    scale, offset, normed = 1.0, 0.0, x.astype(np.float64)
    if norm == "constant_norm_rescale":
        scale = np.sqrt((normed**2).sum()) / np.sqrt(WIDTH)
        normed = normed / scale
    if norm == "layer_norm":
        offset = normed.mean()
        scale = np.sqrt(((normed - offset) ** 2).sum() / (WIDTH - 1))
        normed = (normed - offset) / (scale + 1e-5)
    if subtracts:
        normed = normed - tensors["b_dec"]
    lengths = [np.sqrt((row**2).sum()) for row in w_dec]
    activations = np.zeros(SIZE)
    for f in range(SIZE):
        product = sum(normed[i] * w_enc[i, f] for i in range(WIDTH))
        if kind == "gated":
            opened = product + tensors["b_gate"][f] > 0
            activations[f] = max(0, product * np.exp(tensors["r_mag"][f]) + tensors["b_mag"][f]) if opened else 0
            continue
        before = (product + tensors["b_enc"][f]) * (lengths[f] if rescaled else 1)
        activations[f] = before if before > tensors.get("threshold", np.zeros(SIZE))[f] else 0
    if kind == "topk":
        kept = sorted(range(SIZE), key=lambda f: -activations[f])[:k]
        activations = np.array([value if f in kept else 0 for f, value in enumerate(activations)])
    rebuilt = np.zeros(WIDTH) + tensors["b_dec"]
    for f in range(SIZE):
        rebuilt += activations[f] * w_dec[f] / (lengths[f] if rescaled else 1)
    return activations, rebuilt * scale + offset


@pytest.mark.parametrize("norm", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("subtracts", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every_combination
def test_folders_of_saelens(kind: str, subtracts: bool, norm: str, tmp_path: Path) -> None:
    tensors, rescaled = random_tensors(kind), kind == "topk" and subtracts
    more = {"rescale_acts_by_decoder_norm": True} if rescaled else {}
    folder = write_folder(
        tmp_path / "sae", kind, tensors, apply_b_dec_to_input=subtracts, normalize_activations=norm, **more
    )
    dictionary = read_dictionary(folder)
    assert (dictionary.site, dictionary.site_out, dictionary.size) == ("blocks.0.residual", "blocks.0.residual", SIZE)
    assert (dictionary.name, dictionary.model, dictionary.is_transcoder) == ("sae", "tiny", False)
    activations = dictionary.encode(INPUTS)
    rebuilt = dictionary.decode(activations, INPUTS)
    for row, x in enumerate(INPUTS):
        expected, output = slow(tensors, x, kind, subtracts=subtracts, norm=norm, rescaled=rescaled)
        np.testing.assert_allclose(activations[row], expected, atol=1e-4)
        np.testing.assert_allclose(rebuilt[row], output, atol=1e-4)
    np.testing.assert_allclose(dictionary.encode_some(INPUTS, [5, 2, 90]), activations[:, [5, 2, 90]], atol=1e-5)


def test_the_same_as_saelens_gives(tmp_path: Path) -> None:
    """The library itself, where it is installed."""
    sae_lens = pytest.importorskip("sae_lens")
    import torch

    for kind in KINDS:
        folder = write_folder(tmp_path / kind, kind)
        theirs = sae_lens.SAE.load_from_disk(str(folder))
        ours = read_dictionary(folder)
        with torch.no_grad():
            activations = theirs.encode(torch.from_numpy(INPUTS))
            np.testing.assert_allclose(ours.encode(INPUTS), activations.numpy(), atol=1e-5)
            rebuilt = theirs.decode(activations).numpy()
        np.testing.assert_allclose(ours.decode(ours.encode(INPUTS), INPUTS), rebuilt, atol=1e-5)


def test_gemma_scopes_npz(tmp_path: Path) -> None:
    tensors = random_tensors("jumprelu")
    path = tmp_path / "params.npz"
    np.savez(path, **tensors)
    dictionary = read_dictionary(path, "blocks.1.residual")
    expected, _ = slow(tensors, INPUTS[0], "jumprelu", subtracts=False, norm="none", rescaled=False)
    np.testing.assert_allclose(dictionary.encode(INPUTS)[0], expected, atol=1e-4)
    np.savez_compressed(path, **{name.replace("W_", "w_"): np.asfortranarray(value) for name, value in tensors.items()})
    (tmp_path / "cfg.json").write_text(json.dumps({"hook_name": "blocks.1.hook_mlp_out", "apply_b_dec_to_input": False}))
    again = read_dictionary(tmp_path)
    assert again.site == "blocks.1.mlp.update"
    np.testing.assert_allclose(again.encode(INPUTS), dictionary.encode(INPUTS), rtol=1e-5)  # whose rows lie otherwise


def test_folders_of_sparsify(tmp_path: Path) -> None:
    tensors = random_tensors("topk")
    folder = tmp_path / "layers.1"
    folder.mkdir()
    stored = {"encoder.weight": np.ascontiguousarray(tensors["W_enc"].T), "encoder.bias": tensors["b_enc"],
              "W_dec": tensors["W_dec"], "b_dec": tensors["b_dec"]}  # fmt: skip
    save_file(stored, folder / "sae.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"k": 7, "num_latents": SIZE, "d_in": WIDTH}))
    dictionary = read_dictionary(folder)
    expected, _ = slow(tensors, INPUTS[0], "topk", subtracts=True, norm="none", rescaled=False)
    assert dictionary.site == "blocks.1.residual"
    np.testing.assert_allclose(dictionary.encode(INPUTS)[0], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"])
def test_transcoders(kind: str, tmp_path: Path) -> None:
    tensors = random_tensors(kind, out=20)
    if "skip" in kind:
        tensors["W_skip"] = np.random.default_rng(1).normal(size=(20, WIDTH)).astype(np.float32)
    hooks = {"hook_name": "blocks.0.ln2.hook_normalized", "hook_name_out": "blocks.0.hook_mlp_out"}
    dictionary = read_dictionary(write_folder(tmp_path / "t", kind, tensors, metadata=hooks))
    assert (dictionary.site, dictionary.site_out) == ("blocks.0.mlp.input", "blocks.0.mlp.update")
    before = INPUTS @ tensors["W_enc"] + tensors["b_enc"]
    activations = before * (before > tensors.get("threshold", 0)) * (before > 0)
    expected = activations @ tensors["W_dec"] + tensors["b_dec"] + (INPUTS @ tensors["W_skip"].T if "skip" in kind else 0)
    np.testing.assert_allclose(dictionary.decode(dictionary.encode(INPUTS), INPUTS), expected, atol=1e-4)
    assert dictionary.clamp({1: 0.0}).keys() == {"blocks.0.mlp.update"}
    del hooks["hook_name_out"]
    assert read_dictionary(write_folder(tmp_path / "t", kind, tensors, metadata=hooks)).site_out == "blocks.0.mlp.update"
    with pytest.raises(GlassError, match="a transcoder"):
        read_dictionary(write_folder(tmp_path / "t", kind, tensors, metadata={"hook_name": "blocks.0.hook_resid_mid"}))


@pytest.mark.parametrize("kind", ["standard", "jumprelu", "topk"])
def test_what_is_written_is_read_again(kind: str, tmp_path: Path) -> None:
    dictionary = read_dictionary(write_folder(tmp_path / "first", kind))
    again = read_dictionary(write_dictionary(dictionary, tmp_path / "second"))
    np.testing.assert_array_equal(again.encode(INPUTS), dictionary.encode(INPUTS))
    assert (again.site, again.k, again.subtracts_bias) == (dictionary.site, dictionary.k, True)
    assert json.loads((tmp_path / "second" / "cfg.json").read_text())["metadata"]["hook_name"] == "blocks.0.hook_resid_post"


def test_an_older_config(tmp_path: Path) -> None:
    fields: Any = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "hook_point": "blocks.1.hook_resid_pre",
                   "metadata": {}, "normalize_activations": "expected_average_only_in"}  # fmt: skip
    tensors = {**random_tensors(), "finetuning_scaling_factor": np.full(SIZE, 2, np.float32)}
    dictionary = read_dictionary(write_folder(tmp_path / "sae", "standard", tensors, **fields))
    assert (dictionary.k, dictionary.site, dictionary.normalization) == (3, "blocks.0.residual", "none")
    np.testing.assert_array_equal(dictionary.decoder, 2 * tensors["W_dec"])
    log = {**random_tensors(), "log_threshold": np.full(SIZE, -1, np.float32)}
    unfinished = read_dictionary(write_folder(tmp_path / "sae", "jumprelu", log))
    np.testing.assert_allclose(unfinished.threshold, np.exp(-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("hook", "site"),
    [
        ("blocks.0.hook_resid_pre", "embedding"), ("blocks.3.hook_resid_pre", "blocks.2.residual"),
        ("blocks.3.hook_resid_mid", "blocks.3.middle"), ("blocks.3.attn.hook_z", "blocks.3.attention.heads"),
        ("model.layers.5", "blocks.5.residual"), ("layers.5.mlp", "blocks.5.mlp.update"),
        ("transformer.h.2", "blocks.2.residual"), ("blocks.1.mlp.hidden", "blocks.1.mlp.hidden"),
        ("encoder.blocks.1.residual", "encoder.blocks.1.residual"), ("blocks.1.hook_unheard_of", None), ("nonsense", None),
    ],
)  # fmt: skip
def test_hooks_are_sites(hook: str, site: str | None) -> None:
    assert site_of_hook(hook) == site
    if site is not None:
        assert site_of_hook(hook_of_site(site)) == site


def spoiled(name: str, value: Any) -> dict[str, Any]:
    tensors = random_tensors("jumprelu")
    return {key: tensor for key, tensor in {**tensors, name: value}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (spoiled("W_enc", None), {}, "lacks W_enc"),
        (spoiled("W_dec", np.zeros((SIZE + 1, WIDTH), np.float32)), {}, "W_dec 97"),
        (spoiled("W_dec", np.zeros(3, np.float32)), {}, "a matrix is needed"),
        (spoiled("W_dec", np.zeros((SIZE, 5), np.float32)), {}, "as a transcoder does"),
        (spoiled("b_enc", np.zeros(3, np.float32)), {}, r"not \[96\]"),
        (spoiled("b_enc", np.full(SIZE, np.nan, np.float32)), {}, "not all numbers"),
        (spoiled("threshold", None), {}, "lacks threshold"),
        (spoiled("W_skip", np.zeros((2, 2), np.float32)), {}, "W_skip has the shape"),
        (None, {"architecture": "temporal"}, "known are standard"),
        (None, {"architecture": 3}, "its architecture is 3"),
        (None, {"architecture": "gated"}, "lacks b_gate"),
        (None, {"architecture": "topk", "k": "many"}, "k is 'many'"),
        (None, {"apply_b_dec_to_input": 3}, "not true or false"),
        (None, {"normalize_activations": "unheard of"}, "normalize_activations is"),
        (None, {"metadata": {"hook_name": "nowhere"}}, "no site that is known"),
        (None, {"metadata": {"hook_name": "blocks.0.hook_q", "hook_head_index": 3}}, "no site"),
        (None, {"hook_head_index": 3}, "single head"),
        (None, {"metadata": {}}, "does not say at which site"),
    ],
    ids=str,
)
def test_folders_that_cannot_be_used_are_refused(tensors: Any, config: Any, message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sae", "jumprelu", tensors)
    (folder / "cfg.json").write_text(json.dumps({**json.loads((folder / "cfg.json").read_text()), **config}))
    with pytest.raises(GlassError, match=message):
        read_dictionary(folder)


def test_files_that_are_no_dictionaries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GlassError, match="holds none of"):
        read_dictionary(tmp_path)
    assert not is_dictionary(tmp_path)
    folder = write_folder(tmp_path / "sae")
    assert is_dictionary(folder)
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "in the place of fields"),
        (" " * (1 << 21), "too many for what it holds"),
    ):
        (folder / "cfg.json").write_text(text)
        with pytest.raises(GlassError, match=message):
            read_dictionary(folder)


def test_npz_files_that_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "params.npz"
    np.savez(path, W_enc=np.array([{"a": 1}], object))
    with pytest.raises(GlassError, match="holds object"):
        read_dictionary(path, "blocks.0.residual")
    np.savez_compressed(path, W_enc=np.zeros((4096, 4096), np.float32))
    with pytest.raises(GlassError, match="would unpack to more"):
        read_dictionary(path, "blocks.0.residual")
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(GlassError, match="damaged"):
        read_dictionary(path, "blocks.0.residual")
    np.save(tmp_path / "one.npy", np.zeros((2, 3), np.float32))
    cut = (tmp_path / "one.npy").read_bytes()[:-4]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("W_enc.npy", cut)
    with pytest.raises(GlassError, match="cut short"):
        read_dictionary(path, "blocks.0.residual")


def test_a_damaged_archive_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Names in it, which can be as long as anything, are cut."""
    path = tmp_path / "params.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("\x01" * 30_000, b"")
    data = bytearray(path.read_bytes())
    data[40] ^= 1  # the name in the file is not that of the directory
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="no .npz file") as error:
        read_dictionary(path, "blocks.0.residual")
    assert len(str(error.value)) < 400 + len(str(path))
    np.savez(path, **{"x" * 60_000: np.array([{"a": 1}], object)})
    with pytest.raises(CheckpointError, match="holds object") as error:
        read_dictionary(path, "blocks.0.residual")
    assert len(str(error.value)) < 400 + len(str(path))


def test_names_of_features() -> None:
    assert feature_of("models/resid-8/123") == ("models/resid-8", 123)
    for name in ("resid-8", "resid-8/", "/3", "resid-8/x", "resid-8/-1"):
        with pytest.raises(GlassError, match="DICTIONARY/NUMBER"):
            feature_of(name)


def test_features_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    dictionary: FeatureDictionary = read_dictionary(write_folder(tmp_path / "sae"))
    for feature in (SIZE, -1, True):
        with pytest.raises(GlassError, match="has no feature"):
            dictionary.clamp({feature: 1.0})
