"""Which part of a tokenizer.json the tokenizers library cannot read, in words of our own; imports no torch.

The library's own words name its Rust types ("did not match any variant of untagged enum ModelWrapper"). Each part is
therefore tried alone, in a tokenizer in which all else is known to be right.
"""

from __future__ import annotations

import json
from typing import Any

import tokenizers

MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding", "added_tokens")
_BARE = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}


def fault(spec: dict[str, Any]) -> str:
    """What is wrong with a tokenizer.json that the library refused, as the end of a sentence.

    spec: its JSON, whose `model` is an object.
    """
    kind = spec["model"].get("type")
    if "type" in spec["model"] and kind not in MODELS:
        return f"its model is of the type {json.dumps(kind)[:40]}, and must be {', '.join(MODELS[:-1])} or {MODELS[-1]}"
    for part in PARTS:
        if part in spec and not _reads({**_BARE, part: spec[part]}):
            named = spec[part].get("type") if isinstance(spec[part], dict) else None
            of = f" of the type {json.dumps(named)[:40]}" if named is not None else ""
            return f"its {part}{of} is none that the tokenizers library knows"
    if not _reads({**_BARE, "model": spec["model"]}):
        named = "a model of no type" if kind is None else f"a {kind} model"
        return f"its model lacks what {named} needs, or holds what it does not know"
    return "its parts do not fit each other"


def _reads(spec: dict[str, Any]) -> bool:
    try:
        tokenizers.Tokenizer.from_str(json.dumps(spec))
    except BaseException as error:
        if not refusal(error):
            raise
        return False
    return True


def refusal(error: BaseException) -> bool:
    """Whether this is the library's word on its input, and no keyboard interrupt and the like.

    A panic of its Rust code derives from BaseException alone and lives in a module that is not importable.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
