"""Tiny invented data in the formats of the real sets, and a small checkpoint that can be judged on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from legible_core.checkpoint import save
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer
from legible_core.registry import Checkpoint

PARADIGMS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "plural_dogs": (
        "morphology",
        "agreement",
        [
            ("The dogs sleep now.", "The dogs sleeps now."),
            ("Both cats eat.", "Both cats eats."),
            ("The old dogs run home.", "The old dogs runs home."),
        ],
    ),
    "no_ever": (
        "semantics",
        "npi_licensing",
        [
            ("No dog ever slept.", "The dog ever slept."),
            ("Nobody has ever run.", "Somebody has ever run."),
            ("It was the end.", "It was the end."),
        ],
    ),
}
CLOZE = [
    "The dog was tired, so the old dog went home to sleep",
    "“It was late,” said the cat. The cat went\nhome",
    "Both dogs eat. Both dogs run. Both dogs sleep and then both dogs eat",
    "The end of the day was the end of the dog and the cat and the day",
]
QUESTIONS: list[tuple[str, list[str], list[str], str]] = [
    ("What do dogs eat?", ["bones", "stones that are old", "the day", "home"], ["A", "B", "C", "D"], "A"),
    ("Where did the cat go?", ["home", "to sleep", "to the end"], ["1", "2", "3"], "2"),
    ("When was it?", ["now", "the old day"], ["A", "B"], "B"),
]
BLANKS = [
    ("The dog ran from the cat because the _ was old.", "cat", "dog", "1"),
    ("The cat slept at home and the day was late, so the _ slept.", "day", "cat", "2"),
]
DOCUMENTS = [
    " = Old dogs = \n \n Old dogs sleep , and young dogs run @-@ and eat . \n"
    " = = Home = = \n \n A dog 's home ( the end ) . \n \n",
    " = Cats = \n \n Cats <unk> the day . They were \" late \" . \n \n"
    + " The cat went home and the dog slept . " * 12 + "\n",
]  # fmt: skip


def write_data(folder: Path) -> Path:
    """All five tasks."""
    for name, (field, term, pairs) in PARADIGMS.items():
        entries = [
            {"sentence_good": good, "sentence_bad": bad, "field": field, "linguistics_term": term, "UID": name}
            for good, bad in pairs
        ]
        write_lines(folder / "blimp" / f"{name}.jsonl", entries)
    write_lines(folder / "lambada" / "lambada_test.jsonl", [{"text": text} for text in CLOZE])
    arc = [
        {"id": f"q{n}", "question": question, "choices": {"text": texts, "label": labels}, "answerKey": key}
        for n, (question, texts, labels, key) in enumerate(QUESTIONS)
    ]
    write_lines(folder / "arc_easy" / "ARC-Easy-test.jsonl", arc)
    blanks = [{"sentence": s, "option1": a, "option2": b, "answer": answer} for s, a, b, answer in BLANKS]
    write_lines(folder / "winogrande" / "validation.jsonl", blanks)
    (folder / "wikitext2").mkdir()
    (folder / "wikitext2" / "valid.txt").write_text(" \n" + "".join(DOCUMENTS), encoding="utf-8")
    return folder


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


def make_tokenizer(path: Path) -> Path:
    """Byte-level, with some merges, so that words are one to several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([*CLOZE, *DOCUMENTS], trainer)
    tokenizer.save(str(path))
    return path


def make_model(vocabulary: int, context: int = 48, seed: int = 0) -> Transformer:
    """2 layers, every kind of unit, linear and Boolean heads; random gains."""
    config = ModelConfig(2, 16, 4, context, vocabulary, Attention("boolean", (4, 2)), FeedForward(32, 0.5, 0.25))
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if name.endswith("gain") else noise * (0.4 if parameter.ndim > 1 else 1.0))
    return model.eval()


def make_checkpoint(folder: Path, tokenizer: Path, card: dict[str, str] | None = None, seed: int = 0) -> Checkpoint:
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    return save(folder, make_model(vocabulary, seed=seed), tokenizer, card or {}, "float32")
