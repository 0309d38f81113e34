"""What scripts and libraries reach for in a model: its embeddings, its size, its memory, recomputed activations, a hub."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.ground.errors import InputError
from glassformer.ground.files import upload
from glassformer.ops.module_steps import part
from glassformer.torch.container import Block
from glassformer.torch.heads import ModelWithHead
from glassformer.torch.shapes import shift_right


class ModelParts:
    """Methods of every model class of `auto`."""

    config: Any
    name_or_path: str = ""  # where it was loaded from
    main_input_name = "input_ids"
    input_modalities = "text"  # asked for by pipelines
    supports_gradient_checkpointing = True
    loss_type: ClassVar[str | None] = None  # by which `Trainer` counts labels; as there, from the class's name alone
    model_tags: Sequence[str] | None = None  # for a model card; replaced, never filled
    _keys_to_ignore_on_save: ClassVar[Sequence[str] | None] = None  # read by `Trainer`

    @classmethod
    def is_custom_code(cls) -> bool:
        """Whether the modules are other ones than transformers' own, whose conversions of old weights are not for these."""
        return True

    @property
    def accepts_loss_kwargs(self: Any) -> bool:
        """Whether `Trainer` leaves it to the model to divide the loss by the labels of several batches."""
        return "num_items_in_batch" in inspect.signature(self.forward).parameters

    @property
    def _no_split_modules(self: Any) -> list[str]:
        """The classes of the blocks, which accelerate and FSDP keep in one piece."""
        return sorted({type(module).__name__ for module in self.modules() if isinstance(module, Block)})

    # Embeddings ---------------------------------------------------------------------------------------------------------

    def get_input_embeddings(self: Any) -> nn.Module:
        embedding: nn.Module = self.base_model.input_embedding
        return embedding

    def set_input_embeddings(self: Any, value: nn.Module) -> None:
        """Put another module in their place; also in encoder and decoder, where both have them."""
        for embedding in self._holding(self.base_model.input_embedding.weight):
            _replace_module(self, embedding, value)

    def _holding(self: Any, table: nn.Parameter) -> list[nn.Embedding]:
        """The modules that hold a table of tokens; an encoder-decoder has several."""
        return [module for module in self.modules() if isinstance(module, nn.Embedding) and module.weight is table]

    def get_output_embeddings(self: Any) -> nn.Module | None:
        """The layer that scores the vocabulary, in models that have one."""
        if not isinstance(self, ModelWithHead) or self.head_kind not in ("causal", "seq2seq", "masked"):
            return None
        output: nn.Module = getattr(self.head_module, "output", self.head_module)  # which somebody may have replaced
        return output

    def set_output_embeddings(self: Any, value: nn.Module) -> None:
        if (output := self.get_output_embeddings()) is None:
            raise InputError(f"{type(self).__name__} scores no vocabulary, so it has no output embeddings.")
        _replace_module(self, output, value)

    def tie_weights(self: Any) -> None:
        """Let the output embeddings share the input embeddings' weight, where the config says so."""
        if self.config.tie_word_embeddings and (output := self.get_output_embeddings()) is not None:
            output.weight = self.base_model.token_embedding.weight

    @torch.no_grad()
    def resize_token_embeddings(
        self: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Room for another number of tokens; those that stay keep their vectors.

        Args:
            new_num_tokens: how many; by default as many as there are, for `pad_to_multiple_of`.
            pad_to_multiple_of: round the number up to a multiple of this.
            mean_resizing: new vectors are the mean of the old ones, with which a model begins well; otherwise random.
        """
        embedding = self.base_model.token_embedding
        count = embedding.num_embeddings if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of:
            count += -count % pad_to_multiple_of
        if count < 1:
            raise InputError(f"new_num_tokens is {new_num_tokens}; a model has at least one token.")
        std = None if mean_resizing else self.config.initializer_range
        output, tied = self.get_output_embeddings(), self.config.tie_word_embeddings
        for old in dict.fromkeys((self.base_model.input_embedding.weight, embedding.weight)):
            table = nn.Parameter(_resized(old, count, std), old.requires_grad)
            for shared in self._holding(old):
                shared.weight, shared.num_embeddings = table, count
        if output is not None:
            output.weight = embedding.weight if tied else nn.Parameter(_resized(output.weight, count, std))
            output.out_features = count
            _resize_biases(self, count)
        tables = [part(self.base_model, path) for path in self.base_model.paths_beside]
        for beside in tables:
            beside.weight = nn.Parameter(_resized(beside.weight, count, std), beside.weight.requires_grad)
            beside.num_embeddings = count
        sizes = ["vocab_size", *["vocab_size_per_layer_input" for _ in tables]]
        for name in reversed(sizes) if count > self.config.vocab_size else sizes:  # so that no token is without a vector
            setattr(self.config, name, count)
        if (own := getattr(self.config, "encoder", None)) is not None:  # a stack's with a table of its own
            own.vocab_size = count
        return embedding  # type: ignore[no-any-return]

    # Size and memory ----------------------------------------------------------------------------------------------------

    def num_parameters(self: Any, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of parameters; a shared one counts once."""
        excluded = {id(self.base_model.token_embedding.weight)} if exclude_embeddings else set()
        return sum(
            parameter.numel()
            for parameter in self.parameters()
            if id(parameter) not in excluded and (parameter.requires_grad or not only_trainable)
        )

    def get_memory_footprint(self: Any, return_buffers: bool = True) -> int:
        """Bytes of the parameters, and of the buffers."""
        tensors = [*self.parameters(), *(self.buffers() if return_buffers else ())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    # Training -----------------------------------------------------------------------------------------------------------

    def gradient_checkpointing_enable(
        self: Any,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Keep no activations inside the blocks, and compute them again for the gradients: less memory, a third more time.

        In training, no cache is filled unless asked for. The keywords of torch's checkpoint are accepted for familiarity.

        Args:
            every_n_layers: do so in every n-th block only: more memory, less time.
            offload: keep what enters the blocks in the host's memory, not on the GPU.
        """
        if every_n_layers < 1:
            raise InputError(f"every_n_layers is {every_n_layers}; it must be at least 1.")
        self._set_recomputing(True, every_n_layers, offload)

    def gradient_checkpointing_disable(self: Any) -> None:
        self._set_recomputing(False)

    def _set_recomputing(self: Any, recompute: bool, every: int = 1, offload: bool = False) -> None:
        self.base_model.recompute = recompute
        for index, block in enumerate(module for module in self.modules() if isinstance(module, Block)):
            block.recompute, block.offload = recompute and index % every == 0, offload

    @property
    def is_gradient_checkpointing(self: Any) -> bool:
        return bool(self.base_model.recompute)

    def enable_input_require_grads(self: Any) -> None:
        """Let gradients flow to the embeddings' output, as adapters on frozen weights need."""
        self.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))

    # Generation, and the hub ----------------------------------------------------------------------------------------------

    @classmethod
    def can_generate(cls) -> bool:
        return hasattr(cls, "generate")

    def add_model_tags(self, tags: str | Sequence[str]) -> None:
        """Add tags for a model card, which trainers write."""
        new = (tags,) if isinstance(tags, str) else tags
        self.model_tags = list(dict.fromkeys((*(self.model_tags or ()), *new)))

    def push_to_hub(self: Any, repo_id: str, *, commit_message: str = "Upload model", **options: Any) -> str:
        """Save the model into a repository of the hub, which is made if need be; gives its address.

        The options are `private`, `token`, `revision`, `create_pr` and `commit_description`, as huggingface_hub has them.
        """
        return upload(self.save_pretrained, repo_id, commit_message=commit_message, **options)


class Seq2SeqParts:
    """What encoder-decoders have beside."""

    config: Any

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The target as the decoder reads it: shifted right by one, after the start token."""
        return shift_right(labels, self.config)

    def get_encoder(self: Any) -> nn.Module:
        encoder: nn.Module = self.base_model.encoder
        return encoder

    def get_decoder(self: Any) -> nn.Module:
        decoder: nn.Module = self.base_model.decoder
        return decoder


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in another's place, under each of its names."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, new)


def _resized(weight: Tensor, count: int, std: float | None) -> Tensor:
    """A table with another number of rows; new ones are the mean of the old, or random with this standard deviation."""
    new = weight.new_empty(max(0, count - len(weight)), weight.shape[1])
    new.copy_(weight.float().mean(0).to(weight.dtype)) if std is None else new.normal_(std=std)
    return torch.cat((weight[:count], new))


def _resize_biases(model: ModelWithHead, count: int) -> None:
    """The biases of the scores, in families that have them, go with the vocabulary; new ones are zero."""
    old = model.config.vocab_size
    for module in (model, *model.head_module.modules()):
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        for name, tensor in tensors.items():
            if name.endswith("bias") and tensor.shape[-1] == old:
                padded = nn.functional.pad(tensor[..., :count], (0, max(0, count - old)))
                setattr(module, name, nn.Parameter(padded) if isinstance(tensor, nn.Parameter) else padded)
