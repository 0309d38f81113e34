"""What people type who know another tool or the field's word, and the command that does it here."""

from __future__ import annotations

from collections.abc import Collection

_FINE_TUNE = "glass train --init MODEL --chat FILE --out DIR"
_LORA = "glass train --init MODEL --chat FILE --lora 8 --out DIR"
_DPO = "glass train --init MODEL --preferences FILE --out DIR"
_FEATURES = "glass features --sae DIR", "glass train-features"
_QUANTIZE = "glass models quantize MODEL --to q4_k"
_CHANGE = "glass run --change SITE=0", "glass compare --change SITE=0"
_EVAL = "glass eval MODEL --text FILE"
_PARAMS = "glass models params MODEL"

WORDS: dict[str, str | tuple[str, ...]] = {  # without hyphens and underscores
    # use
    **dict.fromkeys(("ask", "complete", "generate", "infer", "inference", "predict", "prompt"), "glass run PROMPT"),
    "batch": "glass run --file FILE --out FILE",
    "beams": "glass run -o num_beams=4 PROMPT",
    **dict.fromkeys(("classify", "embed", "embedding", "embeddings", "pipeline", "summarize", "translate"), "glass task"),
    **dict.fromkeys(("api", "server"), "glass serve"),
    **dict.fromkeys(("gui", "ui", "web"), "glass studio"),
    "replay": "glass run --replay FILE",
    # look
    **dict.fromkeys(("detokenize", "encode", "tokenize", "tokenizer"), "glass tokens TEXT"),
    **dict.fromkeys(("logprobs", "surprisal"), "glass trace TEXT"),
    "explain": "glass why PROMPT",
    **dict.fromkeys(("logitlens", "unembed"), "glass lens TEXT"),
    "tunedlens": ("glass lens --train FILE --out FILE", "glass lens --tuned FILE TEXT"),
    **dict.fromkeys(("attribution", "dla"), "glass lens --wrote TOKEN TEXT"),
    **dict.fromkeys(("attn", "bertviz", "heads"), "glass attention TEXT"),
    **dict.fromkeys(("gradient", "gradients", "integratedgradients"), "glass saliency TEXT"),
    **dict.fromkeys(("composition", "ov", "qk"), "glass circuit --layer 0 --head 0"),
    "moe": "glass experts TEXT",
    # change
    **dict.fromkeys(("ablate", "ablation", "edit", "intervene"), _CHANGE),
    **dict.fromkeys(("hook", "hooks"), ("glass activations --texts FILE --site SITE", *_CHANGE[:1])),
    **dict.fromkeys(("activationpatching", "causaltrace", "patching"), "glass patch TEXT TEXT"),
    "pathpatching": "glass patch --from SITE --to SITE TEXT TEXT",
    **dict.fromkeys(("attributionpatching", "eap"), "glass attribution-patch TEXT TEXT"),
    **dict.fromkeys(("controlvector", "repeng", "steering"), ("glass steer make", "glass run --steer NAME=STRENGTH PROMPT")),
    "diff": "glass compare TEXT TEXT",
    # features and many texts
    **dict.fromkeys(("autoencoder", "dictionary", "sae", "saes", "transcoder"), _FEATURES),
    **dict.fromkeys(("cache", "extract", "hiddenstates", "neuron", "neurons", "record"), "glass activations"),
    **dict.fromkeys(("probes", "probing"), "glass probe"),
    # train
    **dict.fromkeys(("finetune", "finetuning", "instruct", "sft"), _FINE_TUNE),
    **dict.fromkeys(("adapter", "lora", "peft", "qlora"), _LORA),
    **dict.fromkeys(("dpo", "preferences", "rlhf"), _DPO),
    "pretrain": "glass train --text FILE --out DIR",
    "resume": "glass train --resume --out DIR",
    **dict.fromkeys(("curves", "tensorboard"), "glass learning DIR"),
    **dict.fromkeys(("evaluate", "evaluation", "perplexity", "ppl", "score"), _EVAL),
    # models and this machine
    **dict.fromkeys(("convert", "export", "gguf", "quant", "quantise", "quantize"), _QUANTIZE),
    **dict.fromkeys(("download", "fetch", "get"), "glass models pull MODEL"),
    **dict.fromkeys(("delete", "remove"), "glass models rm MODEL"),
    **dict.fromkeys(("catalogue", "list"), "glass models list"),
    **dict.fromkeys(("config", "info", "inspect", "parameters", "params", "summary", "weights"), _PARAMS),
    **dict.fromkeys(("bench", "benchmark"), "glass doctor --bench"),
    **dict.fromkeys(("check", "env", "verify"), "glass doctor --verify"),
    # the command itself
    "help": "glass --help",
    "version": "glass --version",
}


def familiar_command(word: str) -> str:
    """A sentence that names the command for a known word, or for one that is nearly typed like it; or nothing.

    >>> familiar_command("fine-tune")
    ' That is glass train --init MODEL --chat FILE --out DIR.'
    """
    import difflib  # only where a word is unknown: the command starts at once

    plain = word.lower().replace("-", "").replace("_", "")
    near = difflib.get_close_matches(plain, WORDS, n=1, cutoff=0.85)
    if not near:
        return ""
    commands = WORDS[near[0]]
    return f" That is {commands if isinstance(commands, str) else ' or '.join(commands)}."


OPTIONS = {  # what other tools call an option, and what it is called here
    "--backend": "--executor",
    "--device": "--executor",
    "--lora": "--adapter",
    "--max-length": "--max-new-tokens",
    "--max-tokens": "--max-new-tokens",
    "--model-path": "--model",
    "--num-predict": "--max-new-tokens",
    "--quantize": "--weights",
    "--system-prompt": "--system",
    "--temp": "--temperature",
}


def familiar_option(name: str, known: Collection[str]) -> str | None:
    """The option of a command that another tool calls `name`, if it has one."""
    option = OPTIONS.get(name.replace("_", "-"), name.replace("_", "-"))
    return option if option in known and option != name else None
