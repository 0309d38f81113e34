"""A language model out of plain text: from files to a trainer that is ready to run, or to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.locate import locate
from glassformer.compat.auto import model_class_for_head
from glassformer.errors import SettingError, spell
from glassformer.opened import AutoTokenizer
from glassformer.progress import NamedProgress, Progress
from glassformer.text import Tokenizer
from glassformer.training.corpus import read_corpus
from glassformer.training.lora import LoraSettings
from glassformer.training.prepared import PreparedTraining, make_trainer
from glassformer.training.presets import config_of, find_preset
from glassformer.training.ranks import Ranks
from glassformer.training.start_model import load_start_model
from glassformer.training.text_tokens import language_model_objective, tokenized, train_tokenizer
from glassformer.training.trained_model import lora_writer, write_model
from glassformer.training.training_folder import TrainingFolder

NEW_TOKENIZER = "bpe"  # trained on the corpus
DEFAULT_TEXT = "sotu"  # of the catalogue
SAMPLE_TOKENS = 60
LORA_LEARNING_RATE = 2e-4  # unless the settings say otherwise


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A language model out of plain text."""

    KIND: ClassVar[str] = "text"

    text: str = DEFAULT_TEXT  # a file, a folder, or a catalogue name
    preset: str = "tiny"
    architecture: str = "scratch"
    tokenizer: str = NEW_TOKENIZER  # or the name of one: cl100k_base, a model's
    vocabulary: int | None = None  # of a new tokenizer; None: the preset's
    length: int | None = None  # tokens of a window; None: the preset's
    held_out: float = 0.05  # the share of the text's end that is never trained on
    prompt: str = ""  # how samples begin
    init: str | None = None  # a model to go on from, instead of a new one
    lora: Mapping[str, Any] | None = None  # LoraSettings' fields: updates beside that model are trained, and it is not
    merge: bool = False  # write what they make of it, too
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the preset's

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise SettingError(f"{spell('held_out', self.held_out)} is no share from 0 to 1.")
        if self.init is not None and self.tokenizer != NEW_TOKENIZER:
            raise SettingError(f"a model that is trained further keeps its tokenizer: leave {spell('tokenizer')} out.")
        if self.lora is not None and self.init is None:
            raise SettingError(f"{spell('lora')} trains beside a model that exists: name it with {spell('init', 'MODEL')}.")
        if self.merge and self.lora is None:
            raise SettingError(f"{spell('merge')} is for a LoRA: leave it out, or add {spell('lora', 8)}.")

    def prepare(
        self, folder: TrainingFolder, ranks: Ranks, resume: bool = False, progress: NamedProgress | None = None
    ) -> PreparedTraining:
        """Read and tokenize the text, make the model, and take up what an earlier run has left."""

        def part(name: str) -> Progress | None:
            return None if progress is None else lambda done, total: progress(name, done, total)

        preset = find_preset(self.preset)
        corpus = read_corpus(locate(self.text, progress=progress), part("reading"))
        kept = folder.path / "tokenizer"
        if ranks.first and not (kept / "tokenizer.json").exists():  # what is kept is read by others, and when it goes on
            if self.init is not None:
                made = AutoTokenizer.from_pretrained(self.init)
            elif self.tokenizer == NEW_TOKENIZER:
                made = train_tokenizer(corpus, self.vocabulary or preset.vocabulary, part("training the tokenizer"))
            else:
                made = _named_tokenizer(self.tokenizer, progress)
            made.save_pretrained(kept)
            tokenized(corpus, made, folder.path / "tokens", part("tokenizing"))
        ranks.wait()
        tokenizer = Tokenizer.from_folder(kept)
        tokens, _ = tokenized(corpus, tokenizer, folder.path / "tokens", part("tokenizing"))
        lora = None if self.lora is None else LoraSettings(**self.lora)
        rate = {} if lora is None else {"learning_rate": LORA_LEARNING_RATE}
        settings = replace(preset.settings, **{**rate, **self.settings})
        torch.manual_seed(settings.seed)
        model: Any
        if self.init is not None:
            model = load_start_model(self.init, lora, settings)
            length = self.length or min(preset.length, model.config.context)
        else:
            sized = preset if self.length is None else replace(preset, length=self.length)
            config = config_of(sized, self.architecture, len(tokenizer), tokenizer.eos_token_id)
            _check_generates(self.architecture, config)
            model, length = model_class_for_head(config.model_type, "causal")(config), sized.length
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        objective = language_model_objective(corpus, tokenizer, tokens, length, self.held_out)

        def write(model: Any) -> str:
            return sample(model, tokenizer, self.prompt)

        writer = write_model if lora is None or self.init is None else lora_writer(lora, self.init, self.merge)
        return make_trainer(self, model, tokenizer, objective, settings, folder, ranks, resume, write, writer)


def sample(model: Any, tokenizer: Tokenizer, prompt: str, tokens: int = SAMPLE_TOKENS) -> str:
    """What a model writes after a prompt; always by the same draws."""
    begin = tokenizer.encode(prompt) or [tokenizer.eos_token_id]
    room = max(1, min(tokens, model.config.context - len(begin)))
    ids = torch.tensor([begin], device=model.device)
    drawn = [
        step.id for _, step in model.steps(ids, max_new_tokens=room, do_sample=True, temperature=0.8, top_p=0.95, seed=0)
    ]
    written: str = tokenizer.decode(drawn, skip_special_tokens=True)
    return prompt + written


def _named_tokenizer(name: str, progress: NamedProgress | None) -> Tokenizer:
    if name == tiktoken_ranks.NAME:
        return Tokenizer.from_tiktoken(locate(name, progress=progress))
    return AutoTokenizer.from_pretrained(name)


def _check_generates(architecture: str, config: Any) -> None:
    if config.default_head != "causal":
        raise SettingError(
            f"{spell('arch', architecture)} does not predict the next token of a text. Take a decoder, such as llama."
        )
