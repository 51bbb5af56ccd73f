"""A small model with a real byte-level tokenizer, and a text with planted regularities, for scans in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as Trained
from tokenizers import decoders, models, pre_tokenizers, trainers

from legible_core.config import Attention, FeedForward, ModelConfig, Value
from legible_core.model.transformer import Transformer
from legible_core.units import Activation

LEXICON = (
    "the a my his her their this that old young good bad great small red blue house door garden river night morning "
    "day man woman child dog horse he she they we I it was is were had has have will would could should must may "
    "might not never no and or but if when while because said asked went came saw took gave made thought knew found "
    "in on at by of to from with under over after before more less better worse most least best worst two three seven "
    "London Paris"
)
WORDS = LEXICON.split()


def text(seed: int = 0, words: int = 3000) -> str:
    """Random sentences over a small lexicon, with a Zipf-like frequency, in paragraphs."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / (3 + np.arange(len(WORDS)))
    chosen = generator.choice(WORDS, size=words, p=weights / weights.sum())
    marks = generator.choice(["", "", "", "", ",", ".", ".\n\n"], size=words)
    return " ".join(f"{word}{mark}" for word, mark in zip(chosen, marks, strict=True)).replace("\n\n ", "\n\n")


def write_tokenizer(path: Path, vocab_size: int = 420) -> Path:
    """A byte-level BPE tokenizer of the sample text, with <|endoftext|> as id 0."""
    tokenizer = Trained(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[attr-defined]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[attr-defined]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text(9, 20_000)], trainer)
    tokenizer.save(str(path))
    return path


def sample_config(
    vocab_size: int, value: Value = "boolean", special: tuple[int, ...] = (2, 1), quantifiers: float = 0.25,
    activation: Activation = "gelu",
) -> ModelConfig:  # fmt: skip
    """Two layers, d = 32, 4 heads of 8, d_ff = 32; by default with linear heads and GELU units beside the named."""
    return ModelConfig(
        n_layers=2,
        d_model=32,
        n_heads=4,
        context=32,
        vocab_size=vocab_size,
        attention=Attention(value, special),
        feed_forward=FeedForward(32, 0.5, quantifiers, activation),
    )


def sample_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """Random weights large enough that operands are alive and often crisp."""
    model = Transformer(config)
    model.initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rsplit(".", 1)[-1] in ("bounded_values", "pair_a", "pair_b", "quantifier", "sigmoid"):
                parameter.mul_(6.0)
    return model.eval()
