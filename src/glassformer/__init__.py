"""Glassformer: a transformer runtime in a glass case.

Run a pretrained transformer as fast as the machine allows, and see every step that made each token.

    import glassformer as glass
    model = glass.load("smollm2")
    print(model.chat("how are you?"))

Everything here is imported when it is first used, so `import glassformer` is quick and needs no torch. Beside what is
listed, every family's classes are here by name: `glassformer.BertForMaskedLM`, `glassformer.T5Model`, …; and so are rules
and pipelines: `glassformer.TopPLogitsWarper`, `glassformer.TextGenerationPipeline`, ….
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # the one list of public names: type checkers follow these imports, and `_homes` reads them
    from glassformer.compat import PreTrainedConfig as PreTrainedConfig
    from glassformer.compat import PretrainedConfig as PretrainedConfig
    from glassformer.compat import logging as logging
    from glassformer.compat.auto import AutoModel as AutoModel
    from glassformer.compat.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from glassformer.compat.auto import AutoModelForMaskedLM as AutoModelForMaskedLM
    from glassformer.compat.auto import AutoModelForPreTraining as AutoModelForPreTraining
    from glassformer.compat.auto import AutoModelForQuestionAnswering as AutoModelForQuestionAnswering
    from glassformer.compat.auto import AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM
    from glassformer.compat.auto import AutoModelForSequenceClassification as AutoModelForSequenceClassification
    from glassformer.compat.auto import AutoModelForTextEncoding as AutoModelForTextEncoding
    from glassformer.compat.auto import AutoModelForTokenClassification as AutoModelForTokenClassification
    from glassformer.compat.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from glassformer.compat.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from glassformer.compat.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from glassformer.compat.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from glassformer.compat.collators import DefaultDataCollator as DefaultDataCollator
    from glassformer.compat.collators import default_data_collator as default_data_collator
    from glassformer.compat.pretrained import PreTrainedModel as PreTrainedModel
    from glassformer.compat.processors import EosTokenCriteria as EosTokenCriteria
    from glassformer.compat.processors import LogitsProcessor as LogitsProcessor
    from glassformer.compat.processors import LogitsProcessorList as LogitsProcessorList
    from glassformer.compat.processors import MaxLengthCriteria as MaxLengthCriteria
    from glassformer.compat.processors import MaxTimeCriteria as MaxTimeCriteria
    from glassformer.compat.processors import StoppingCriteria as StoppingCriteria
    from glassformer.compat.processors import StoppingCriteriaList as StoppingCriteriaList
    from glassformer.compat.processors import StopStringCriteria as StopStringCriteria
    from glassformer.compat.processors import set_seed as set_seed
    from glassformer.compat.streamers import AsyncTextIteratorStreamer as AsyncTextIteratorStreamer
    from glassformer.compat.streamers import TextIteratorStreamer as TextIteratorStreamer
    from glassformer.compat.streamers import TextStreamer as TextStreamer
    from glassformer.decoding import GenerationConfig as GenerationConfig
    from glassformer.decoding import Step as Step
    from glassformer.engine.protocol import Executor as Executor
    from glassformer.ground.changes import Change as Change
    from glassformer.ground.changes import Where as Where
    from glassformer.ground.errors import GlassError as GlassError
    from glassformer.ground.sites import Watch as Watch
    from glassformer.model_files import AutoConfig as AutoConfig
    from glassformer.model_files import AutoTokenizer as AutoTokenizer
    from glassformer.runtime.model import Model as Model
    from glassformer.runtime.model import load as load
    from glassformer.runtime.run import Run as Run
    from glassformer.see.compare import compare as compare
    from glassformer.see.journey.view import Journey as Journey
    from glassformer.see.plan import plan as plan
    from glassformer.see.recorded_activations import RecordedActivations as RecordedActivations
    from glassformer.tasks import Task as Task
    from glassformer.tasks import pipeline as pipeline
    from glassformer.text import AddedToken as AddedToken
    from glassformer.text import BatchEncoding as BatchEncoding
    from glassformer.text import Tokenizer as Tokenizer
    from glassformer.torch.cache import DynamicCache as DynamicCache
    from glassformer.torch.cache import EncoderDecoderCache as EncoderDecoderCache
    from glassformer.torch.cache import StaticCache as StaticCache
    from glassformer.torch.outputs import ModelOutput as ModelOutput

_FAMILY = re.compile(r"[A-Z]\w+(Model|For[A-Z]\w+)")  # `BertForMaskedLM` and others, which `compat.auto` assembles
_CONFIG = re.compile(r"[A-Z]\w+Config")  # `BertConfig` and others, which `compat.auto` has
_TOKENIZER = re.compile(r"[A-Z]\w+Tokenizer(Fast|Base)?")  # `BertTokenizer` and others, as `compat.auto` has them
_RULE = re.compile(r"\w+Logits(Warper|Processor)|ExponentialDecayLengthPenalty")  # as `compat.processors` makes them
_PIPELINE = re.compile(r"[A-Z]\w+Pipeline")  # `TextGenerationPipeline` and others, as `tasks` names them
_ELSEWHERE = {  # names of transformers that are not here, and what to do instead
    "Trainer TrainingArguments Seq2SeqTrainer TrainerCallback EarlyStoppingCallback":
        "take transformers' own: it trains these models, with this tokenizer and these collators",
    "get_linear_schedule_with_warmup HfArgumentParser Adafactor": "take transformers' own: they need no model",
    "AutoProcessor AutoImageProcessor AutoFeatureExtractor AutoModelForImageTextToText AutoModelForCTC":
        "models of images and sound are not here",
    "AutoModelForMultipleChoice AutoModelForNextSentencePrediction": "heads that are not here",
    "DataCollatorForPermutationLanguageModeling DataCollatorWithFlattening DataCollatorForMultipleChoice":
        "take transformers' own",
    "BitsAndBytesConfig GPTQConfig AwqConfig": "packed weights: open a .gguf file, or `glass models quantize`",
    "EncoderRepetitionPenaltyLogitsProcessor EncoderNoRepeatNGramLogitsProcessor InfNanRemoveLogitsProcessor "
    "LogitNormalization WatermarkLogitsProcessor": "write a LogitsProcessor of your own",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from glassformer.ground.errors import needed_for

    if name == "__all__":
        value: Any = __dir__()
    elif home := _homes().get(name):
        with needed_for(name):
            value = getattr(__import__(home, fromlist=[name]), name)
    else:
        for names, advice in _ELSEWHERE.items():
            if name in names.split():  # not an AttributeError, of which `from … import` would not show the words
                raise ImportError(f"glassformer has no {name}. Instead: {advice}.", name=name)
        with needed_for(name):
            value = _of_a_family(name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])


@cache
def _homes() -> dict[str, str]:
    """The module that each public name is imported from, by the imports above."""
    import ast
    from pathlib import Path

    block = next(node for node in ast.parse(Path(__file__).read_text("utf-8")).body if isinstance(node, ast.If))
    return {node.names[0].name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom)}


def _of_a_family(name: str) -> Any:
    """A family's model class, config or tokenizer, a rule or a pipeline by its name, or None."""
    if _RULE.fullmatch(name):
        return getattr(importlib.import_module(f"{__name__}.compat.processors"), name, None)
    if _PIPELINE.fullmatch(name):
        return importlib.import_module(f"{__name__}.tasks.registry").find_pipeline(name)
    if _CONFIG.fullmatch(name):
        return importlib.import_module(f"{__name__}.compat.auto").find_config(name)
    if _TOKENIZER.fullmatch(name):
        return importlib.import_module(f"{__name__}.compat.auto").find_tokenizer(name)
    if _FAMILY.fullmatch(name):
        return importlib.import_module(f"{__name__}.compat.auto").find_model_class(name)
    return None
