"""BPE from merges over plain characters, without the byte-level alphabet: `gemma4`, `whitespace`, and a few under `gpt2`.

`gemma4` is SentencePiece's spelling (`▁` is a space, `<0xE2>` a byte that no token covers) with merges in place of
scores; text is split only at line breaks. `whitespace` merges inside words, and keeps nothing of what lies between.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from glassformer.text.token_bytes import BYTE_TOKEN
from glassformer.text.tokenizer_files.class_pipelines import set_gemma_pipeline
from glassformer.text.tokenizer_files.gguf.fields import TokenizerFields
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from glassformer.text.tokenizers_errors import LibraryErrors


def build(fields: TokenizerFields, pre: str | None = None) -> Tokenizer:
    """`pre`: the type of the pre-tokenizer, where the model's kind is not its name."""
    pre = pre or str(fields.get("model"))
    split = PRE_TOKENIZER_TYPES[pre]
    in_words = pre == "whitespace"
    spaced = [] if in_words else fields.respell_user_spaces()
    unknown = None if in_words else fields.special_ids.get("unk_token")
    with LibraryErrors("GGUF's vocabulary and merges do not fit together: {}. Fetch the file again."):
        backend = Tokenizer(
            BPE(
                fields.vocabulary(),
                [*fields.merges, *_line_break_merges(fields)],
                unk_token=None if unknown is None else fields.tokens[unknown],
                fuse_unk=True,
                byte_fallback=any(BYTE_TOKEN.fullmatch(token) for token in fields.tokens),
            )
        )
    if in_words:
        if fields.get("normalizer.lowercase", False):
            backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.decoder = decoders.Fuse()
    else:
        set_gemma_pipeline(backend)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(split.patterns[0]), "isolated")
    fields.add_tokens_to(backend, normalized=spaced)
    # llama.cpp puts the begin-of-text token before these even where a file says not to
    backend.post_processor = fields.bos_eos_processor(add_bos=split.add_bos, add_eos=False, always_bos=split.add_bos)
    return backend


def _line_break_merges(fields: TokenizerFields) -> list[tuple[str, str]]:
    """What makes the tokens for several line breaks that the file's own merges do not make."""
    runs = {token for token in fields.tokens if len(token) > 1 and not token.strip("\n")}
    unmade = runs - {left + right for left, right in fields.merges}
    known = {*runs, "\n"} & set(fields.tokens)
    return [(token[:-1], "\n") for token in sorted(unmade, key=len) if token[:-1] in known]
