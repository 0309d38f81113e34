"""The API of `transformers` (Auto classes, `from_pretrained`, `generate`), and the course's own model."""

from glassformer.blueprints import Config

PreTrainedConfig = PretrainedConfig = Config  # as transformers spells it, now and before
