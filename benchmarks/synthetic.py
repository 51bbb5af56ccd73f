"""A made-up scanned checkpoint of any size, in a second: what pages and searches are tested and timed on.

    checkpoint = make_checkpoint(folder, "large", LARGE)       # 12 layers, d = 768: 36,864 units, 9,216 channels

Weights are zeros in a sparse file; nothing can be read with it. Names are random, but shaped like a scan's: token lists
follow a word frequency law, a third of the operands is constant, a quarter has a class label.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.legibility import HISTOGRAM_BINS
from legible_core.naming.lexicon import CLASSES
from legible_core.naming.names import ARRAYS, JSON, to_json_text
from legible_core.naming.places import starts
from legible_core.registry import Checkpoint, expected_tensors, identify, open_checkpoint

VOCABULARY = 50_257
LISTED, RARE = 20, 6
WORDS = ("not", "worst", "best", "the", "a", "was", "is", "more", "most", "than", "never", "her", "his", "one", "two")


def config_of(n_layers: int, d_model: int, n_heads: int, vocabulary: int = VOCABULARY) -> ModelConfig:
    """Boolean values on every head, half of 4·d units named, an eighth of those quantifiers."""
    return ModelConfig(
        n_layers, d_model, n_heads, 1024, vocabulary, Attention("boolean", (n_heads,) * n_layers),
        FeedForward(4 * d_model, 0.5, 0.125),
    )  # fmt: skip


LARGE = config_of(12, 768, 12)  # 36,864 units
SMALL = config_of(12, 84, 6)  # 4,032 units


def make_checkpoint(root: Path, slug: str, config: ModelConfig, seed: int = 0) -> Checkpoint:
    """A checkpoint folder with weights of zeros, a tokenizer whose tokens are words, a card, and random names."""
    folder = root / slug
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
    _write_zeros(folder / "model.safetensors", config)
    _write_tokenizer(folder / "tokenizer.json", config.vocab_size)
    identity = identify(folder)
    card = f"---\nhash: {identity}\ntitle: Made up\ntokens: 1000000\nloss: 4.5\n---\nRandom names for tests.\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_names(folder, config, identity, seed)
    return open_checkpoint(folder, slug=slug)


def token_text(token: int) -> str:
    """The text of a made-up token: a word with its leading space."""
    return f" {WORDS[token]}" if token < len(WORDS) else f" w{token}"


def write_names(folder: Path, config: ModelConfig, checkpoint_hash: str, seed: int = 0) -> None:
    """names.json and names.safetensors of random names."""
    draw = np.random.default_rng(seed)
    operands, components = (int(ends[-1]) for ends in starts(config))
    arrays: dict[str, NDArray[Any]] = {
        "seen": np.maximum(1, (2e6 / (10 + np.arange(config.vocab_size)))).astype(np.uint32),
        "often": np.ones(config.vocab_size, dtype=np.uint8),
        **_statistics(draw, operands, components),
        **_lists(draw, operands, components, config.vocab_size),
        **_labels(draw, "operand", operands),
        **_labels(draw, "component", components),
        "decay": draw.uniform(0.05, 0.999, config.n_layers * config.feed_forward.n_quantifiers).astype(np.float32),
    }
    save_file(arrays, folder / ARRAYS)
    meta = {
        "schema": 1, "made_by": "benchmarks.synthetic", "checkpoint": checkpoint_hash,
        "corpus": {"name": "none", "sha256": "0" * 64, "tokens": 1_000_000, "naming": 500_000, "held_out": 500_000},
        "quality": {
            "loss": 4.5, "loss_se": 0.01, "perplexity": 90.0, "tokens": 1_000_000, "windows": 976, "context": 1024,
        },
        "thresholds": {}, "legibility": _legibility(config), "config": config.to_json(), "classes": list(CLASSES),
        "tokens": {str(token): "·" + token_text(token)[1:] for token in range(config.vocab_size)},
    }  # fmt: skip
    (folder / JSON).write_text(to_json_text(meta), encoding="utf-8")


def _statistics(draw: np.random.Generator, operands: int, components: int) -> dict[str, NDArray[Any]]:
    constant = draw.random(operands) < 0.3
    crisp = draw.uniform(0.3, 1.0, operands).astype(np.float32)
    on = np.where(constant, 0.0, draw.beta(1, 12, operands)).astype(np.float32)
    agreement = np.where(draw.random(operands) < 0.2, np.nan, draw.uniform(0.5, 1.0, operands)).astype(np.float32)
    own_on = draw.beta(1, 20, components).astype(np.float32)
    return {
        "operand.mean": np.where(constant, draw.choice([0.02, 0.5, 0.98], operands), on).astype(np.float32),
        "operand.variance": np.where(constant, 0.001, 0.05).astype(np.float32),
        "operand.crisp": crisp,
        "operand.on": on,
        "operand.base": np.maximum(on, 1e-4).astype(np.float32),
        "operand.agreement": agreement,
        "operand.histogram": np.full((operands, HISTOGRAM_BINS), 1 / HISTOGRAM_BINS, dtype=np.float32),
        "component.mean": own_on,
        "component.variance": np.full(components, 0.02, dtype=np.float32),
        "component.crisp": draw.uniform(0.3, 1.0, components).astype(np.float32),
        "component.on": own_on,
    }


def _lists(draw: np.random.Generator, operands: int, components: int, vocabulary: int) -> dict[str, NDArray[Any]]:
    """Token lists whose members follow Zipf's law, without repetition in a list."""
    lengths = draw.integers(LISTED, 2 * LISTED, operands)
    tokens = _distinct(draw, operands, 2 * LISTED, vocabulary)
    kept = np.arange(2 * LISTED) < lengths[:, None]
    promote = np.sort(draw.gamma(2.0, 0.2, (components, LISTED)).astype(np.float32), axis=1)[:, ::-1]
    rare = np.sort(draw.gamma(2.0, 0.2, (components, RARE)).astype(np.float32), axis=1)[:, ::-1]
    return {
        "detect.offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32),
        "detect.tokens": tokens[kept].astype(np.uint32),
        "detect.on": draw.integers(3, 500, int(lengths.sum())).astype(np.uint32),
        "promote.tokens": _distinct(draw, components, LISTED, vocabulary).astype(np.uint32),
        "promote.weights": np.ascontiguousarray(promote),
        "rare.tokens": _distinct(draw, components, RARE, vocabulary).astype(np.uint32),
        "rare.weights": np.ascontiguousarray(rare),
    }


def _distinct(draw: np.random.Generator, rows: int, width: int, vocabulary: int) -> NDArray[np.int64]:
    # Log-uniform ranks; a rank that is drawn twice in a row moves on to the next free one.
    found = np.sort(np.exp(draw.uniform(0, np.log(vocabulary - width), (rows, width))).astype(np.int64) - 1, axis=1)
    for column in range(1, width):
        found[:, column] = np.maximum(found[:, column], found[:, column - 1] + 1)
    shuffled: NDArray[np.int64] = draw.permuted(found, axis=1)
    return shuffled


def _labels(draw: np.random.Generator, side: str, count: int) -> dict[str, NDArray[Any]]:
    chosen = np.where(draw.random(count) < 0.25, draw.integers(0, len(CLASSES), count), -1)
    return {
        f"{side}.label.class": chosen.astype(np.int16),
        f"{side}.label.q": draw.uniform(0, 0.01, count).astype(np.float32),
        f"{side}.label.overlap": draw.integers(3, 20, count).astype(np.int16),
        f"{side}.label.leading": np.full(count, 20, dtype=np.int16),
        f"{side}.label.share": draw.uniform(0.3, 1, count).astype(np.float32),
    }


def _legibility(config: ModelConfig) -> dict[str, Any]:
    row = {"channels": 10, "crisp": 0.8, "on": 0.1, "selective": 0.5, "constant": 0.3, "fuzzy": 0.2}
    names = {"operands": 10, "alive": 0.7, "in_range": 0.5, "nameable": 0.4, "labelled": 0.2}
    layer = {"value": row, "head_operands": row, "operands": row, "heads": [0.5] * config.n_heads, "names": names}
    return {"layers": [layer] * config.n_layers, "all": {key: layer[key] for key in layer if key != "heads"}}


def _write_zeros(path: Path, config: ModelConfig) -> None:
    """A safetensors file of bfloat16 zeros, whose data is a hole in the file where the system has such."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in expected_tensors(config):
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def _write_tokenizer(path: Path, vocabulary: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {"Ġ" + token_text(token)[1:]: token for token in range(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
