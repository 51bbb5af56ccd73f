"""A small checkpoint folder with a byte-level tokenizer of its own, and names measured on a few sentences."""

from __future__ import annotations

from pathlib import Path

from reading_samples import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from app.scanning import finish, prepare
from legible_core.checkpoint import save
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.registry import Checkpoint, open_checkpoint

TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light.\n"
)


def make_tokenizer(path: Path, size: int = 300) -> Path:
    """Byte-level BPE over `TEXT`: `size` entries, the last merge included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, " worst age times" * 20], trainer)
    tokenizer.save(str(path))
    return path


def make_folder(root: Path, seed: int = 0) -> Checkpoint:
    """`root`/tiny-reader: 2 layers, Boolean heads, every kind of unit."""
    root.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(root / "tokenizer.json")
    config = ModelConfig(
        n_layers=2,
        d_model=32,
        n_heads=4,
        context=64,
        vocab_size=300,
        attention=Attention("boolean", (4, 2)),
        feed_forward=FeedForward(48, 0.5, 0.25),
    )
    return save(root / "tiny-reader", make_model(config, seed), tokenizer, {"title": "Tiny reader"}, dtype="float32")


def name_folder(checkpoint: Checkpoint) -> Checkpoint:
    """Scan a few documents of `TEXT`'s words in changing order and put the names into the folder."""
    words = TEXT.split()
    corpus = checkpoint.path.parent / "corpus.txt"
    corpus.write_text("<|endoftext|>".join(" ".join(words[i:] + words[:i]) for i in range(24)), encoding="utf-8")
    scan = prepare(checkpoint, corpus, checkpoint.path.parent / "scans", device="cpu")
    for _ in scan.run():
        pass
    finish(scan, checkpoint, None)
    return open_checkpoint(checkpoint.path)
