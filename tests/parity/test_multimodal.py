"""Models of texts and images, as the reference saves them: their text parts open, and score texts as the whole models do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from glassformer import AutoModelForCausalLM
from glassformer.blueprints import read_text_config
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import ConfigError
from glassformer.model_files import open_model
from tests.parity import reference
from tests.parity.compare import close, ids_for

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
QWEN = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
QWEN_IMAGES = {"depth": 1, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 1}
TOKENS = {
    "image_token_id": 5,
    "image_token_index": 5,
    "vision_start_token_id": 6,
    "vision_end_token_id": 7,
    "video_token_id": 8,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {  # the text part's family, and the config
    "gemma3": (
        "gemma3_text",
        {"text_config": {**TEXT, "sliding_window": 5}, "vision_config": IMAGES, "mm_tokens_per_image": 4, **TOKENS},
    ),
    "gemma4": (
        "gemma4_text",
        {"text_config": {**TEXT, "num_hidden_layers": 3, "sliding_window": 5, "global_head_dim": 16,
                         "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 120,
                         "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         "vision_config": None, "audio_config": None, **TOKENS},
    ),
    "qwen2_vl": (
        "qwen2", {"text_config": QWEN, "vision_config": {**QWEN_IMAGES, "embed_dim": 16, "hidden_size": 32}, **TOKENS},
    ),
    "qwen2_5_vl": (
        "qwen2",
        {"text_config": QWEN, **TOKENS,
         "vision_config": {**QWEN_IMAGES, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32,
                           "fullatt_block_indexes": [0]}},
    ),
    "mistral3": ("mistral", {"text_config": {**TEXT, "model_type": "mistral"}, "vision_config": IMAGES, **TOKENS}),
    "llama4": (
        "llama4_text",
        {"text_config": {**TEXT, "intermediate_size_mlp": 48, "num_local_experts": 4, "attention_chunk_size": 5},
         "vision_config": {**IMAGES, "intermediate_size": 64, "vision_output_dim": 16, "projector_input_dim": 16,
                           "projector_output_dim": 16},
         "boi_token_index": 5, "eoi_token_index": 6, "image_token_index": 7},
    ),
    "llava": ("llama", {"text_config": {**TEXT, "model_type": "llama"}, "vision_config": IMAGES, **TOKENS}),
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any, Path]:
    _, fields = CONFIGS[request.param]
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(request.param, **fields)
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    return request.param, model, tmp_path


@torch.no_grad()
def test_texts_are_scored_as_by_the_whole_model(saved: tuple[str, Any, Path], caplog: pytest.LogCaptureFixture) -> None:
    name, theirs, folder = saved
    ours = AutoModelForCausalLM.from_pretrained(folder)
    assert ours.config.model_type == CONFIGS[name][0]
    ids = ids_for(ours, 2, 17).clamp(min=10)
    close(ours(ids).logits, theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)
    (notice,) = caplog.messages
    left_out = "visual" if name.startswith("qwen") else "multi_modal_projector and vision_tower"
    left_out = "multi_modal_projector and vision_model" if name == "llama4" else left_out
    left_out = "" if name == "gemma4" else f", without {left_out}"  # which has no part for images here
    assert notice.endswith(f"only the text part of this {name} model is opened{left_out}. It reads no images.")
    opened = open_model(folder)
    executor = CpuExecutor(opened.config, opened.blueprint(), opened.tensors)
    (scores,) = executor.run([Feed(executor.open(), ids[0].tolist(), Want.LAST)])
    close(torch.from_numpy(scores.host().copy()), ours(ids).logits[0, -1])


@torch.no_grad()
def test_the_first_files_have_the_text_among_the_others(tmp_path: Path) -> None:
    """Qwen2-VL's: all fields at the top, RoPE of the kind 'mrope', and the text's tensors below `model.`."""
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**TEXT, tie_word_embeddings=False)).eval()
    theirs.save_pretrained(tmp_path)
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    config = {"model_type": "qwen2_vl", **TEXT, "rope_theta": 10000.0, "rope_scaling": rope, "vision_config": {"depth": 1}}
    part = read_text_config(config)
    assert part is not None
    part.save_pretrained(tmp_path / "part")
    ours = AutoModelForCausalLM.from_config(part)
    ours.load_state_dict(theirs.state_dict())
    ids = ids_for(theirs, 1, 9)
    close(ours.eval()(ids).logits, theirs(ids).logits)


@torch.no_grad()
def test_gemma3n_whose_part_for_images_is_of_another_library(tmp_path: Path) -> None:
    """So the whole model is written here: its text part, under the names of its files."""
    theirs = reference.write(tmp_path, "gemma3n_text")
    tensors = load_file(tmp_path / "model.safetensors")
    whole = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    save_file(whole | {"model.vision_tower.conv.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3n", "text_config": raw, "vision_config": {}}))
    ours, ids = AutoModelForCausalLM.from_pretrained(tmp_path), ids_for(theirs, 2, 17)
    assert ours.config.model_type == "gemma3n_text"
    close(ours(ids).logits, theirs(ids).logits)


def test_a_text_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="'text_config' is 'llama'"):
        read_text_config({"model_type": "llava", "text_config": "llama"})
    assert read_text_config({"model_type": "llama"}) is None


def test_fields_that_are_left_out_are_the_familys_own() -> None:
    """As in LLaVA 1.5's config, which names only what is not Llama's."""
    part = read_text_config({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert part is not None
    assert (part.hidden_size, part.num_hidden_layers, part.vocab_size) == (4096, 32, 32064)
