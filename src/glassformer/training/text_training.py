"""A model out of plain text: from files to a trainer that is ready to run, or to go on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from glassformer.blueprints import Head
from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.locate import locate
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import InputError, SettingError, did_you_mean, spell
from glassformer.ground.progress import NamedProgress, Progress
from glassformer.model_files import AutoConfig, AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.config_fields import NO_LIMIT
from glassformer.training.corpus import read_corpus
from glassformer.training.new_tokenizer import add_gap_tokens, kept_tokenizer
from glassformer.training.objectives.language_model import LanguageModel
from glassformer.training.presets import config_of, find_family, find_preset
from glassformer.training.sharding import Ranks
from glassformer.training.text_tokens import text_objective, tokenized, train_tokenizer
from glassformer.training.trained_model import load_start_model
from glassformer.training.training_folder import TrainingFolder
from glassformer.training.training_request import LoraRequest, TrainingParts

NEW_TOKENIZER = "bpe"  # trained on the corpus
DEFAULT_TEXT = "sotu"  # of the catalogue
SAMPLE_TOKENS = 60
LORA_LEARNING_RATE = 2e-4  # unless the settings say otherwise
USES: Mapping[Head, str] = {  # what can be done with a model in {folder}, by its head
    "causal": "Let it write: glass run -m {folder} --raw 'Once'",
    "masked": "Let it fill a gap: glass task fill-mask -m {folder} 'Once upon a {mask}'",
    "seq2seq": "Train it on pairs of texts: glass train --task seq2seq --init {folder} --data FILE --out FOLDER",
}


@dataclass(frozen=True, kw_only=True)
class TextTraining(LoraRequest):
    """A model out of plain text; its family decides what it is trained to do (`default_head`).

    A decoder predicts the next token, an encoder guesses hidden ones, an encoder-decoder writes what was taken out.
    """

    KIND: ClassVar[str] = "text"

    text: str = DEFAULT_TEXT  # a file, a folder, or a catalogue name; its end is held out
    preset: str = "tiny"  # of a new model; its window is used unless `length` is given
    architecture: str = "scratch"
    tokenizer: str = NEW_TOKENIZER  # or the name of one: cl100k_base, a model's
    vocabulary: int | None = None  # of a new tokenizer; None: the preset's

    def __post_init__(self) -> None:
        find_preset(self.preset)
        if self.init is not None and self.tokenizer != NEW_TOKENIZER:
            raise SettingError(f"a model that is trained further keeps its tokenizer: leave {spell('tokenizer')} out.")
        if self.lora is not None and self.init is None:
            raise SettingError(f"{spell('lora')} trains beside a model that exists: name it with {spell('init', 'MODEL')}.")
        super().__post_init__()

    def parts(self, folder: TrainingFolder, ranks: Ranks, progress: NamedProgress | None) -> TrainingParts:
        """Read and tokenize the text, and make the model."""

        def part(name: str) -> Progress | None:
            return None if progress is None else lambda done, total: progress(name, done, total)

        preset = find_preset(self.preset, length=self.length, vocabulary=self.vocabulary)
        family = find_family(self.architecture) if self.init is None else type(AutoConfig.from_pretrained(self.init))
        head = family.default_head
        if self.prompt and head != "causal":
            raise SettingError(f"{spell('sample')} is for a model that continues texts; this one fills gaps. Leave it out.")
        corpus = read_corpus(_locate_text(self.text, progress), part("reading"))

        def make_tokenizer() -> Tokenizer:
            if self.init is not None:
                return AutoTokenizer.from_pretrained(self.init)
            if self.tokenizer == NEW_TOKENIZER:
                limit, types = NO_LIMIT if head == "causal" else preset.length, getattr(family, "type_vocab_size", 0) > 1
                report = part("training the tokenizer")
                return train_tokenizer(corpus, preset.vocabulary, report, head=head, max_length=limit, token_types=types)
            made = _named_tokenizer(self.tokenizer, progress)
            add_gap_tokens(made, head)
            return made

        tokenizer = kept_tokenizer(folder, ranks, make_tokenizer)
        if ranks.first:
            tokenized(corpus, tokenizer, folder.path / "tokens", part("tokenizing"))
        ranks.wait()
        tokens, _ = tokenized(corpus, tokenizer, folder.path / "tokens")
        lora = self.lora_settings
        rate = {} if lora is None else {"learning_rate": LORA_LEARNING_RATE}
        settings = replace(preset.settings, **{**rate, **self.settings})
        torch.manual_seed(settings.seed)
        model: Any
        if self.init is not None:
            model = load_start_model(self.init, lora, settings, head)
            length = self.length or min(preset.length, model.config.context)
            if length > model.config.context:
                raise SettingError(f"{spell('length', length)} is more than the model's context of {model.config.context}.")
        else:
            config = config_of(preset, self.architecture, tokenizer)
            model, length = model_class_for_head(config.model_type, head)(config), preset.length
        if head == "causal":
            model.generation_config.eos_token_id = tokenizer.eos_token_id
        objective = text_objective(tokenizer, model.config, tokens, length, self.held_out)

        def write(model: Any) -> str:
            if isinstance(objective, LanguageModel):
                return sample(model, tokenizer, self.prompt)
            return objective.sample(model)

        usage = USES[head].replace("{mask}", tokenizer.mask_token or "")
        return TrainingParts(model, tokenizer, objective, settings, write, usage, self.writer())


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


def _locate_text(name: str, progress: NamedProgress | None) -> Path:
    """The file or folder of a text, which may be in the catalogue."""
    texts = [known for known, entry in CATALOGUE.items() if entry.kind == "data"]
    with suppress(OSError, RuntimeError):  # too long for a path, or the home of a user who does not exist
        if name and (path := Path(name).expanduser()).exists():
            return path
    if name in texts:
        return locate(name, progress=progress)
    raise InputError(
        f"there is no text {name!r}.{did_you_mean(name, texts)} Give a text file, a folder of them, or a name: "
        f"{', '.join(texts)}."
    )


def _named_tokenizer(name: str, progress: NamedProgress | None) -> Tokenizer:
    if name == tiktoken_ranks.NAME:
        return Tokenizer.from_tiktoken(locate(name, progress=progress))
    return AutoTokenizer.from_pretrained(name)
