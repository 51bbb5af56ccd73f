"""A fast look at a checkpoint's legibility and nameability, to compare training recipes by.

    python -m legible_core.naming.quick FOLDER --ids valid.bin --tokens 120000

prints one line per layer and surface and, last, one JSON line. Nameable is the share of all operands that are alive
(not CONSTANT), ON on 0.5-20 % of the tokens, and whose detect list (made on the naming half) predicts ON on the
held-out half at a balanced accuracy of 0.8 or more; labelled is the share of the nameable whose list is enriched in a
word class. `short` is nameable with lists of at most 32 tokens. The loss of the same checkpoint on the same text stands
beside it: a collapsed model reads as perfectly legible.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from legible_core.config import ModelConfig
from legible_core.legibility import Moments, row_of
from legible_core.model.transformer import Transformer
from legible_core.naming.detect import MIN_COUNT, DetectLists, TokenCounts, agreement, detect
from legible_core.naming.label import Population, label_lists
from legible_core.naming.lexicon import BEGINNING, CLASSES, beginnings, membership
from legible_core.naming.measure import take_in
from legible_core.naming.observe import Ints, batches, halves, observe, spread
from legible_core.tokens import Tokenizer

ON_RANGE = (0.005, 0.2)
MIN_AGREEMENT = 0.8
SHORT = 32


@dataclass
class _Layer:
    operands: Moments
    channels: Moments
    counts: tuple[TokenCounts, TokenCounts]
    n_head: int
    lists: DetectLists | None = field(default=None)


def measure(
    model: Transformer,
    ids: Ints,
    *,
    texts: Sequence[str] | None = None,
    tokens: int = 120_000,
    end_of_document: int | None = None,
    batch: int = 16,
) -> dict[str, Any]:
    """Legibility and nameability per layer and over all operands, as a JSON-ready dict; shares between 0 and 1.

    ids: a token stream that training did not see, documents ended by `end_of_document`. texts: every token's text; with
    them the share of the nameable operands that have a class label is measured too.
    """
    config = model.config
    every = np.arange(config.vocab_size)
    layers = []
    for index in range(config.n_layers):
        n_head = config.attention.n_special[index] * config.d_head
        width = n_head + config.feed_forward.n_operands
        tables = TokenCounts(every, config.vocab_size, width), TokenCounts(every, config.vocab_size, width)
        layers.append(_Layer(Moments(width, histogram=False), Moments(n_head, histogram=False), tables, n_head))
    means: list[float] = []
    for half, stream in enumerate(halves(ids, end_of_document)):
        part = spread(stream, config.context, tokens // 2)
        for piece in batches(part, config.context, batch):
            found, losses = observe(model, piece)
            means += [float(x) for x in np.nanmean(losses[:, :-1], axis=1)] if losses.shape[1] > 1 else []
            flat = piece.ids.reshape(-1)
            for layer, values in zip(layers, found, strict=True):
                on = take_in(layer.operands, values.operands)
                take_in(layer.channels, values.channels)
                layer.counts[half].count_tokens(flat)
                layer.counts[half].count_on(flat, on.cpu().numpy())
    loss = float(np.mean(means))
    result: dict[str, Any] = {
        "tokens": layers[0].operands.count,
        "loss": loss,
        "loss_se": float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None,
        "perplexity": math.exp(loss),
        "layers": [],
    }
    pooled: dict[str, list[dict[str, Any]]] = {"attention": [], "feed_forward": []}
    labels = _labels(layers, texts, halves(ids, end_of_document)[0])
    for index, layer in enumerate(layers):
        surfaces = _judge(layer, labels[index] if labels is not None else None)
        result["layers"].append({name: _mean([part]) for name, part in surfaces.items()})
        for name, columns in surfaces.items():
            pooled[name].append(columns)
    result["attention"] = _mean(pooled["attention"])
    result["feed_forward"] = _mean(pooled["feed_forward"])
    result["all"] = _mean(pooled["attention"] + pooled["feed_forward"])
    return result


def _labels(layers: list[_Layer], texts: Sequence[str] | None, naming: Ints) -> list[NDArray[np.bool_]] | None:
    """Per layer, which operands have a class label; makes the layers' lists on the way."""
    for layer in layers:
        layer.lists = detect(layer.counts[0])
    if texts is None:
        return None
    seen = layers[0].counts[0].seen[:-1]
    listable = np.flatnonzero(seen >= MIN_COUNT)
    table = membership(texts)
    table[:, CLASSES.index(BEGINNING)] |= beginnings(naming, texts)
    population = Population(listable, seen[listable], table[listable])
    made = [layer.lists for layer in layers if layer.lists is not None]
    lists = [(part.tokens[part.of(o)], part.on[part.of(o)]) for part in made for o in range(part.count)]
    found = np.array([label is not None for label in label_lists([(lists, population)])[0]])
    ends = np.cumsum([layer.operands.width for layer in layers])[:-1]
    return list(np.split(found, ends))


def _judge(layer: _Layer, labelled: NDArray[np.bool_] | None) -> dict[str, dict[str, Any]]:
    """Per surface, one array per statistic with an entry per operand."""
    lists = layer.lists if layer.lists is not None else detect(layer.counts[0])
    short = detect(layer.counts[0], max_length=SHORT)
    agreed, agreed_short = agreement(lists, layer.counts[1]), agreement(short, layer.counts[1])
    moments = layer.operands
    code = moments.classes()
    eligible = (code != 0) & (moments.on_share >= ON_RANGE[0]) & (moments.on_share <= ON_RANGE[1])
    columns = {
        "crisp": moments.crispness,
        "on": moments.on_share,
        "selective": code == 1,
        "constant": code == 0,
        "alive": code != 0,
        "in_range": eligible,
        "agree": np.nan_to_num(agreed) >= MIN_AGREEMENT,
        "nameable": eligible & (np.nan_to_num(agreed) >= MIN_AGREEMENT),
        "short": eligible & (np.nan_to_num(agreed_short) >= MIN_AGREEMENT),
        "length": lists.lengths,
        "agreement": agreed,
    }
    if labelled is not None:
        columns["labelled"] = columns["nameable"] & labelled
    parts = {"attention": slice(0, layer.n_head), "feed_forward": slice(layer.n_head, None)}
    found = {name: {key: column[where] for key, column in columns.items()} for name, where in parts.items()}
    value = row_of([layer.channels])
    found["attention"]["value_selective"] = np.array([value.selective] if value else [])
    found["attention"]["value_constant"] = np.array([value.constant] if value else [])
    return found


def _mean(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Shares over all operands of the parts; medians for list length, agreement and ON of the alive; None if none."""
    names = [name for name in ("value_selective", "value_constant") if parts and name in parts[0]]
    joined = {key: np.concatenate([part[key] for part in parts if key in part]) for key in (*parts[0], *names)}
    alive = joined["alive"]
    if not alive.size:
        return None
    result: dict[str, Any] = {"operands": int(alive.size)}
    for key, column in joined.items():
        if key in ("length", "agreement"):
            picked = column[alive & ~np.isnan(column)]
            result[key] = float(np.median(picked)) if picked.size else None
        elif column.size:
            result[key] = float(np.mean(column))
    result["on_median"] = float(np.median(joined["on"][alive])) if alive.any() else None
    return result


COLUMNS = (
    ("crisp", "crisp"),
    ("on", "ON"),
    ("selective", "SEL"),
    ("constant", "CONST"),
    ("alive", "alive"),
    ("in_range", "in-ON"),
    ("agree", "agr>.8"),
    ("nameable", "NAMEABLE"),
    ("short", "short"),
    ("labelled", "labelled"),
    ("value_selective", "val-SEL"),
    ("value_constant", "val-CONST"),
)


def table(result: dict[str, Any]) -> str:
    """The measurement as text, percentages; then the medians over alive operands."""
    head = f"{'':>12}" + "".join(f"{title:>10}" for _, title in COLUMNS) + f"{'med.ON':>8}{'med.agr':>8}{'med.len':>8}"
    lines = [head]
    rows = [
        (f"L{index} {short}", layer[name])
        for name, short in (("attention", "att"), ("feed_forward", "ff"))
        for index, layer in enumerate(result["layers"])
    ]
    rows += [("att", result["attention"]), ("ff", result["feed_forward"]), ("all", result["all"])]
    for title, row in rows:
        if row is None:
            lines.append(f"{title:>12}  undefined: nothing bounded")
            continue
        cells = "".join(f"{100 * row[key]:>10.1f}" if row.get(key) is not None else f"{'-':>10}" for key, _ in COLUMNS)
        on = f"{100 * row['on_median']:>8.1f}" if row["on_median"] is not None else f"{'-':>8}"
        agreed = f"{row['agreement']:>8.2f}" if row["agreement"] is not None else f"{'-':>8}"
        length = f"{row['length']:>8.0f}" if row["length"] is not None else f"{'-':>8}"
        lines.append(f"{title:>12}{cells}{on}{agreed}{length}")
    se = f" ± {result['loss_se']:.4f}" if result["loss_se"] is not None else ""
    lines.append(f"loss {result['loss']:.4f}{se} nats/token over {result['tokens']} tokens")
    return "\n".join(lines)


def _load(folder: Path) -> Transformer:
    """Weights as they are: a training run's intermediate folder has no manifest to check yet."""
    model = Transformer(ModelConfig.from_json(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval()


def main() -> None:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Legibility and nameability of a checkpoint, quickly.")
    parser.add_argument("folder", type=Path, help="a checkpoint folder (model.safetensors, config.json)")
    parser.add_argument("--ids", type=Path, required=True, help="token ids, uint16 little-endian, unseen by training")
    parser.add_argument("--tokens", type=int, default=120_000)
    parser.add_argument("--end-of-document", type=int, default=0, help="the id that ends a document")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, for labels; default: the folder's, if any")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    model = _load(arguments.folder)
    ids = np.fromfile(arguments.ids, dtype="<u2").astype(np.int64)
    path = arguments.tokenizer or arguments.folder / "tokenizer.json"
    texts = None
    if path.is_file():
        tokenizer = Tokenizer.load(path)
        texts = [tokenizer.text(token) for token in range(model.config.vocab_size)]
    result = measure(model, ids, texts=texts, tokens=arguments.tokens, end_of_document=arguments.end_of_document)
    result["seconds"] = round(time.monotonic() - started, 1)
    print(table(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
