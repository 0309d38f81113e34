"""Dictionaries of features in the formats that they are published in, and written in SAELens' own.

- SAELens' folders (https://github.com/decoderesearch/SAELens): cfg.json and sae_weights.safetensors;
- those of sparsify (https://github.com/EleutherAI/sparsify): cfg.json and sae.safetensors, named after their layer;
- Gemma Scope's params.npz (https://huggingface.co/google/gemma-scope), and plain .safetensors files with the same names.

Where a file does not say which site it is for, a cfg.json beside it can, with `hook_name`; or whoever opens it.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from glassformer.blueprints.synonyms import IN_BLOCK
from glassformer.checkpoint.folder import pack_matrices, read_safetensors, unpack_matrices
from glassformer.features.dictionary import FeatureDictionary, FeatureGate, FeatureLabel, Normalization
from glassformer.ground.errors import CheckpointError, InputError, reason_of, shortened
from glassformer.ground.files import open_regular, read_regular, write_bytes, write_text
from glassformer.ground.typecheck import brief

HOOKS: Mapping[str, str] = {  # in block N; what files name is what they were trained on, whatever a family makes of it
    **IN_BLOCK, "hook_mlp_in": "mlp.input", "ln2.hook_normalized": "mlp.input", "mlp.hook_out": "mlp.update",
}  # fmt: skip


def hook_of_site(site: str) -> str:
    """TransformerLens' name of a site; the site's own where it has none.

    >>> hook_of_site("blocks.8.residual"), hook_of_site("final")
    ('blocks.8.hook_resid_post', 'final')
    """
    block, _, name = site.partition(".")[2].partition(".")
    hook = next((hook for hook, known in HOOKS.items() if known == name), None)
    return f"blocks.{block}.{hook}" if site.startswith("blocks.") and hook is not None else site


def site_of_hook(hook: str) -> str | None:
    """The site that a hook's name means; None where it is none that is known.

    >>> site_of_hook("blocks.8.hook_resid_pre"), site_of_hook("layers.8"), site_of_hook("blocks.3.residual")
    ('blocks.7.residual', 'blocks.8.residual', 'blocks.3.residual')
    """
    if hook in ("hook_embed", "blocks.0.hook_resid_pre", "embedding"):
        return "embedding"
    if match := re.fullmatch(r"blocks\.(\d{1,5})\.(.+)", hook):
        block, name = int(match[1]), match[2]
        if name == "hook_resid_pre":
            return f"blocks.{block - 1}.residual"
        return f"blocks.{block}.{HOOKS.get(name, name)}" if name in HOOKS or "hook" not in name else None
    if match := re.fullmatch(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d{1,5})(\.mlp)?", hook):
        return f"blocks.{match[1]}.{'mlp.update' if match[2] else 'residual'}"
    return hook if hook.startswith("encoder.") else None


MAX_RATIO = 50  # of bytes unpacked to bytes of the file: numbers hardly shrink
LEAST_ROOM = 1 << 24  # bytes that a small file may unpack to whatever its size
MAX_ARRAYS = 64
MAX_HEADER = 10_000  # bytes


def read_npz(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays of real numbers, as float32, by name."""
    descriptor = open_regular(path)
    try:
        with os.fdopen(descriptor, "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            room = max(LEAST_ROOM, MAX_RATIO * path.stat().st_size)
            if len(members) > MAX_ARRAYS or sum(member.file_size for member in members) > room:
                raise CheckpointError(f"{path}: would unpack to more than such a file can hold. It is not opened.")
            return {member.filename.removesuffix(".npy"): _array(archive, member, path) for member in members}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged, or no .npz file ({reason_of(error)}). Fetch it again.") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> npt.NDArray[np.float32]:
    data = archive.read(member)
    stream = io.BytesIO(data)
    shape, fortran, dtype = _header(stream)
    if dtype.kind not in "fiu" or any(size < 0 for size in shape):
        kind = shortened(str(dtype), 60)
        raise CheckpointError(f"{path}: {brief(member.filename)} holds {kind}, and no numbers. It is not opened.")
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise CheckpointError(f"{path}: {brief(member.filename)} is cut short or damaged. Fetch it again.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).astype(np.float32)
    return values.reshape(shape, order="F" if fortran else "C")


def _header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """An array's shape, whether its columns lie together, and its type; numpy would read headers of Python 2, and warn."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of its format")
    length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
    try:
        fields = ast.literal_eval(stream.read(min(length, MAX_HEADER)).decode("latin-1").strip())
        shape, fortran, dtype = fields["shape"], fields["fortran_order"], np.dtype(fields["descr"])
        if not isinstance(fortran, bool) or not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
            raise TypeError("its shape or its order")
    except (SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("a header that is none") from error
    return shape, fortran, dtype


Floats: TypeAlias = npt.NDArray[np.float32]
CONFIG, WEIGHTS, LABELS = "cfg.json", "sae_weights.safetensors", "labels.json"
WEIGHT_FILES = (WEIGHTS, "sae.safetensors", "params.npz", "params.safetensors", "model.safetensors")
SUFFIXES = (".safetensors", ".npz")
MAX_CONFIG, MAX_LABELS = 1 << 20, 1 << 25  # bytes
MAX_LABEL, MAX_CONTEXT = 60, 200  # characters
NORMALIZATIONS = ("none", "layer_norm", "constant_norm_rescale", "expected_average_only_in")
KINDS = ("standard", "jumprelu", "topk", "batchtopk", "gated")


def is_dictionary(path: Path) -> bool:
    """Whether something looks like a dictionary: a folder with weights, or a file of them."""
    if path.is_dir():
        return any((path / name).is_file() for name in WEIGHT_FILES)
    return path.suffix in SUFFIXES and path.is_file()


def read_dictionary(path: Path, site: str | None = None, site_out: str | None = None) -> FeatureDictionary:
    """The dictionary of a folder or a file; `site`: where it is attached, whatever its file says."""
    weights = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None) if path.is_dir() else path
    if weights is None:
        raise CheckpointError(f"{path}: holds none of {', '.join(WEIGHT_FILES)}. Name the folder of an autoencoder.")
    config = _read_config(weights.parent / CONFIG) if (weights.parent / CONFIG).is_file() else {}
    labels = read_labels(path / LABELS) if (path / LABELS).is_file() else ()
    from_npz = weights.suffix == ".npz"
    tensors = read_npz(weights) if from_npz else unpack_matrices(read_safetensors(weights), weights)
    name = path.name if path.is_dir() else path.stem
    dictionary = _Tensors(weights, tensors, config).dictionary(name, site, site_out)
    if labels and len(labels) != dictionary.size:
        raise CheckpointError(
            f"{path / LABELS}: has {len(labels)} labels for {dictionary.size} features. Remove it, or fetch it again."
        )
    return replace(dictionary, labels=labels)


def _read_json(path: Path, largest: int) -> Any:
    if path.stat().st_size > largest:
        raise CheckpointError(f"{path}: has {path.stat().st_size} bytes, too many for what it holds. It is not read.")
    try:
        return json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON ({reason_of(error)}). Fetch it again.") from error


def read_labels(path: Path) -> tuple[FeatureLabel, ...]:
    """What each feature of a dictionary is most active at, as `write_labels` wrote it."""
    labels = _read_json(path, MAX_LABELS)
    if not isinstance(labels, list) or not all(
        isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in labels
    ):
        raise CheckpointError(f"{path}: is no list of a label and a context for each feature. Remove it, or fetch it again.")
    return tuple(FeatureLabel(shortened(label, MAX_LABEL), shortened(context, MAX_CONTEXT)) for label, context in labels)


def write_labels(folder: Path, labels: Sequence[FeatureLabel]) -> None:
    """Write what each feature is most active at beside a dictionary."""
    lines = ",\n".join(json.dumps([each.label, each.context], ensure_ascii=False) for each in labels)
    write_text(folder / LABELS, f"[\n{lines}\n]\n")


def _read_config(path: Path) -> dict[str, Any]:
    config = _read_json(path, MAX_CONFIG)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds {brief(config)} in the place of fields. Fetch it again.")
    metadata = config.get("metadata")
    return {**(metadata if isinstance(metadata, dict) else {}), **config}


@dataclass(frozen=True)
class _Tensors:
    """What a file holds, to be made a dictionary."""

    path: Path
    tensors: Mapping[str, Floats]
    config: Mapping[str, Any]

    def dictionary(self, name: str, site: str | None, site_out: str | None) -> FeatureDictionary:
        encoder, decoder = self._encoder(), self._matrix("W_dec")
        width, size = encoder.shape
        if decoder.shape[0] != size:
            raise self._wrong(f"W_enc has {size} features and W_dec {decoder.shape[0]}")
        kind, transcodes = self._kind()
        out = decoder.shape[1]
        if (factor := self._vector("finetuning_scaling_factor", size)) is not None:
            decoder = decoder * factor[:, None]
        site, site_out = self._sites(name, site, site_out, transcodes=transcodes)
        subtracts = self._flag("apply_b_dec_to_input", self._subtracts_by_default)
        if site == site_out and width != out:
            raise self._wrong(f"it reads {width} numbers and writes {out}, as a transcoder does, and does not say where")
        return FeatureDictionary(
            encoder,
            self._or_zeros("b_enc", size),
            decoder,
            self._or_zeros("b_dec", out),
            site=site,
            site_out=site_out,
            name=name,
            threshold=self._threshold(kind, size),
            k=self._k(kind),
            gate=self._gate(size) if kind == "gated" else None,
            skip=self._skip(out, width),
            subtracts_bias=subtracts and site == site_out,
            normalization=self._normalization(),
            rescaled=self._flag("rescale_acts_by_decoder_norm", False),
            model=str(self.config.get("model_name", ""))[:200],
        )

    # Weights ----------------------------------------------------------------------------------------------------

    def _encoder(self) -> Floats:
        if "encoder.weight" in self.tensors:  # sparsify's, the other way round
            return np.ascontiguousarray(self._matrix("encoder.weight").T)
        return self._matrix("W_enc")

    def _tensor(self, name: str) -> Floats | None:
        for spelling in (name, name.replace("W_", "w_"), {"b_enc": "encoder.bias"}.get(name, name)):
            if (tensor := self.tensors.get(spelling)) is not None:
                if not np.isfinite(tensor).all():
                    raise self._wrong(f"{spelling} is not all numbers")
                return tensor
        return None

    def _matrix(self, name: str) -> Floats:
        tensor = self._tensor(name)
        if tensor is None:
            raise self._wrong(f"it lacks {name}; it has {', '.join(sorted(self.tensors)) or 'nothing'}"[:300])
        if tensor.ndim != 2 or not tensor.size:
            raise self._wrong(f"{name} has the shape {list(tensor.shape)}, and a matrix is needed")
        return tensor

    def _vector(self, name: str, size: int) -> Floats | None:
        tensor = self._tensor(name)
        if tensor is not None and tensor.shape != (size,):
            raise self._wrong(f"{name} has the shape {list(tensor.shape)}, not [{size}]")
        return tensor

    def _or_zeros(self, name: str, size: int) -> Floats:
        tensor = self._vector(name, size)
        return np.zeros(size, np.float32) if tensor is None else tensor

    def _threshold(self, kind: str, size: int) -> Floats | None:
        if (logarithms := self._vector("log_threshold", size)) is not None:  # of a training that was not finished
            thresholds: Floats = np.exp(logarithms)
            return thresholds
        threshold = self._vector("threshold", size)
        if threshold is None and kind == "jumprelu":
            raise self._wrong("it lacks threshold, which a JumpReLU has")
        return threshold

    def _gate(self, size: int) -> FeatureGate:
        parts = [self._vector(name, size) for name in ("b_gate", "r_mag", "b_mag")]
        if any(part is None for part in parts):
            raise self._wrong("it lacks b_gate, r_mag or b_mag, which a gated autoencoder has")
        return FeatureGate(*cast(list[Floats], parts))

    def _skip(self, out: int, width: int) -> Floats | None:
        skip = self._tensor("W_skip")
        if skip is not None and skip.shape != (out, width):
            raise self._wrong(f"W_skip has the shape {list(skip.shape)}, not [{out}, {width}]")
        return skip

    # Config -----------------------------------------------------------------------------------------------------

    def _kind(self) -> tuple[str, bool]:
        """What its activation is, and whether it is a transcoder."""
        named = self.config.get("architecture")
        transcodes = self._flag("transcode", False) or (isinstance(named, str) and named.endswith("transcoder"))
        if named is None:
            topk = self._k_field() is not None
            return ("jumprelu" if "threshold" in self.tensors else "topk" if topk else "standard"), transcodes
        if not isinstance(named, str):
            raise self._wrong(f"its architecture is {brief(named)}")
        kind = named.removesuffix("transcoder").removesuffix("skip_").removesuffix("_") or "standard"
        if kind == "standard" and self.config.get("activation_fn_str", self.config.get("activation_fn")) == "topk":
            kind = "topk"
        if kind not in KINDS:
            raise self._wrong(f"its architecture is {brief(named)}; known are {', '.join(KINDS)} and their transcoders")
        return kind, transcodes

    def _k_field(self) -> Any:
        nested = self.config.get("activation_fn_kwargs")
        k = self.config.get("k")
        return nested.get("k") if k is None and isinstance(nested, dict) else k

    def _k(self, kind: str) -> int | None:
        if kind != "topk":
            return None
        k = self._k_field()
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise self._wrong(f"k is {brief(k)}; it must be a whole number of at least 1")
        return k

    def _sites(self, name: str, site: str | None, site_out: str | None, *, transcodes: bool) -> tuple[str, str]:
        """Where it reads and writes: as the caller says, its config, or its name."""
        site = site or self._site("hook_name", "hook_point") or site_of_hook(name)
        if not site:
            raise InputError(f"{self.path} does not say at which site it reads. Name it, such as blocks.3.residual.")
        site_out = site_out or (self._site("hook_name_out") if transcodes else None)
        if transcodes and not site_out and site.endswith((".mlp.input", ".mlp.update")):  # of an MLP, as most are
            block = site.rpartition(".mlp.")[0]
            return f"{block}.mlp.input", f"{block}.mlp.update"
        if transcodes and not site_out:
            raise InputError(f"{self.path} is a transcoder, and does not say which site it predicts. Name it.")
        return site, site_out or site

    def _site(self, *fields: str) -> str:
        hook = next((self.config[name] for name in fields if self.config.get(name)), None)
        if hook is None:
            return ""
        if not isinstance(hook, str) or (site := site_of_hook(hook)) is None:
            raise self._wrong(f"its {fields[0]} is {brief(hook)}, which is no site that is known")
        if self.config.get("hook_head_index") is not None:
            raise self._wrong("it reads a single head (hook_head_index), which is not supported")
        return site

    def _flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(f"{name} is {brief(value)}, not true or false")
        return value

    @property
    def _subtracts_by_default(self) -> bool:
        """SAELens' and sparsify's do; Gemma Scope's, which has no config, does not."""
        return bool(self.config) or "encoder.weight" in self.tensors

    def _normalization(self) -> Normalization:
        named = self.config.get("normalize_activations", "none")
        if named not in NORMALIZATIONS:
            raise self._wrong(f"normalize_activations is {brief(named)}; known are {', '.join(NORMALIZATIONS)}")
        # An expected average is folded into the weights when a training ends, and the name may stay.
        return "none" if named == "expected_average_only_in" else cast(Normalization, named)

    def _wrong(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}. Fetch it again, or choose another.")


def write_dictionary(
    dictionary: FeatureDictionary, folder: Path, about: Mapping[str, Any] | None = None, *, packed: bool = False
) -> Path:
    """Write an autoencoder or a transcoder as SAELens reads it; `about`: more fields of the metadata.

    `packed`: with matrices in 8 bits, which only we read, in a quarter of the space.
    """
    from safetensors.numpy import save

    kind = "topk" if dictionary.k is not None else "jumprelu" if dictionary.threshold is not None else "standard"
    if dictionary.is_transcoder:
        kind = {"standard": "transcoder"}.get(kind, f"{kind}_transcoder")
    config: dict[str, Any] = {
        "architecture": kind, "d_in": dictionary.encoder.shape[0], "d_sae": dictionary.size, "dtype": "float32",
        "device": "cpu", "apply_b_dec_to_input": dictionary.subtracts_bias,
        "normalize_activations": dictionary.normalization, "reshape_activations": "none",
        "metadata": {"hook_name": hook_of_site(dictionary.site), "model_name": dictionary.model, **(about or {})},
    }  # fmt: skip
    tensors = {
        "W_enc": dictionary.encoder, "b_enc": dictionary.encoder_bias, "W_dec": dictionary.decoder,
        "b_dec": dictionary.decoder_bias,
    }  # fmt: skip
    if dictionary.is_transcoder:
        config |= {"d_out": dictionary.decoder.shape[1]}
        config["metadata"] |= {"hook_name_out": hook_of_site(dictionary.site_out)}
    if dictionary.k is not None:
        config |= {"k": dictionary.k, "rescale_acts_by_decoder_norm": dictionary.rescaled}
    if dictionary.threshold is not None:
        tensors["threshold"] = dictionary.threshold
    folder.mkdir(parents=True, exist_ok=True)
    arrays = pack_matrices(tensors) if packed else tensors
    write_bytes(folder / WEIGHTS, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    return folder


def feature_of(name: str) -> tuple[str, int]:
    """A feature's dictionary and index, out of DICTIONARY/NUMBER."""
    dictionary, slash, feature = name.rpartition("/")
    if not slash or not dictionary or not feature.isdecimal() or len(feature) > 9:
        raise InputError(f"a feature is named DICTIONARY/NUMBER, such as resid-8/123, not {name!r}.")
    return dictionary, int(feature)
