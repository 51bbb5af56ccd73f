"""A small byte-level tokenizer made by hand, small models, and ways to spoil a checkpoint folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.folder import WEIGHTS
from legible_core.model.transformer import Transformer
from legible_core.registry import identify
from legible_core.tokens import _BYTE

MERGES = [("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("s", "t"), ("Ġwor", "st"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
SMALL = ModelConfig(2, 16, 4, 12, 256 + len(MERGES) + 1, Attention("boolean", (4, 2)), FeedForward(32, 0.5, 0.25))


def tokenizer_spec() -> dict[str, Any]:
    """A tokenizer.json: end of text, 256 bytes, eight merges; 265 tokens."""
    alphabet = sorted(_BYTE, key=lambda character: _BYTE[character])
    vocabulary = ["<|endoftext|>", *alphabet, *("".join(pair) for pair in MERGES)]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", **special}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in MERGES],
        },
    }


def small_model(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    model = Transformer(config)
    model.initialise(torch.Generator().manual_seed(seed))
    return model.eval()


def sign(folder: Path) -> None:
    """Make the card's hash fit the files again, so that a test reaches the check behind it."""
    card = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    card[1] = f"hash: {identify(folder)}"
    (folder / "README.md").write_text("\n".join(card) + "\n", encoding="utf-8")


def edit_header(folder: Path, change: Callable[[dict[str, Any]], Any], data: bytes | None = None) -> None:
    """Rewrite the header of model.safetensors; `change` edits it in place."""
    raw = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + (raw[8 + length :] if data is None else data))
