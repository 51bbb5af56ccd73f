"""`legible family MODEL...`: checkpoints side by side: quality first, then the columns of the papers' tables.

Every figure is from the checkpoints' names files; `--corpus` adds losses on one text and their paired differences from
the first checkpoint's, so that arms which saw the same tokens in the same order can be told apart by far less than a
loss's own error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legible_core.errors import LegibleError, NotFound
from legible_core.figures import loss_text, percent_text, perplexity_text

if TYPE_CHECKING:
    import numpy as np

    from legible_core.naming.names import Names
    from legible_core.naming.observe import Batch
    from legible_core.registry import Checkpoint

# Of the feed-forward layer, of the attention, and of both surfaces together, as the card has them.
SHARES = (
    ("feed-forward operands crisp", "operands", "crisp"),
    ("feed-forward operands ON", "operands", "on"),
    ("feed-forward operands SELECTIVE", "operands", "selective"),
    ("feed-forward operands CONSTANT", "operands", "constant"),
    ("value channels SELECTIVE", "value", "selective"),
    ("value channels CONSTANT", "value", "constant"),
    ("attention operands crisp", "head_operands", "crisp"),
    ("attention operands ON", "head_operands", "on"),
    ("operands of both alive", "names", "alive"),
    ("operands of both in the ON range", "names", "in_range"),
    ("operands of both nameable", "names", "nameable"),
    ("operands of both nameable and labelled", "names", "labelled"),
)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("family")(family)


def family(
    models: Annotated[list[str], typer.Argument(help="Checkpoints: slugs, hashes, or folders; the first is the base.")],
    corpus: Annotated[
        Path | None, typer.Option(help="Also measure losses on this unseen text, and their paired differences.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Only about so many tokens of it, in windows spread evenly over it.", min=1024)
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Show every layer too.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Put checkpoints side by side: quality, legibility of both surfaces, half-lives; – is undefined."""
    from app.commands.read import find

    if corpus is not None and not corpus.is_file():
        raise NotFound(f"There is no text at {corpus}; give a UTF-8 text file, plain or .xz.")
    checkpoints = [find(model) for model in models]
    found = [figures(checkpoint) for checkpoint in checkpoints]
    if corpus is not None:
        for document, losses in zip(found, paired(checkpoints, corpus, tokens, device), strict=True):
            document["on_corpus"] = losses
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    typer.echo("\n".join(lines(found, layers)))


def figures(checkpoint: Checkpoint) -> dict[str, Any]:
    """One checkpoint's column; raises `NotFound` for one that was never scanned."""
    from legible_core.naming.names import Names
    from legible_core.naming.tables import memory

    names: Names | None = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash)
    if names is None:
        raise NotFound(
            f"{checkpoint.slug} has no names, so nothing was measured; "
            f"run `legible scan {checkpoint.path} --corpus FILE`."
        )
    pooled, remembered = names.legibility["all"], memory(names)
    return {
        "checkpoint": checkpoint.slug,
        "hash": checkpoint.hash,
        "trained_tokens": checkpoint.tokens_trained,
        "corpus": names.meta["corpus"],
        "quality": names.quality,
        "all": shares(pooled),
        "layers": [shares(layer) for layer in names.legibility["layers"]],
        "memory": None if remembered is None else remembered["all"],
    }


def shares(row: dict[str, Any]) -> dict[str, float | None]:
    """The columns of one layer, or of all; None is undefined."""
    return {title: (row.get(surface) or {}).get(key) for title, surface, key in SHARES}


def paired(checkpoints: list[Checkpoint], corpus: Path, tokens: int | None, device: str) -> list[dict[str, Any]]:
    """Loss of each checkpoint on the same windows, and its difference from the first one's, with standard errors.

    Windows are of one context, all of the text's or about `tokens` tokens of it, evenly spread. The windows of one book
    are alike, so the errors are those of a series of documents (`statistics.mean_of_series`). Raises `LegibleError`
    where tokenizers or contexts differ: the losses would not be of the same tokens.
    """
    import numpy as np

    from app.scanning import corpus_ids
    from legible_core.evaluation.statistics import mean_of_series

    first = checkpoints[0]
    for other in checkpoints[1:]:
        if other.tokenizer_path.read_bytes() != first.tokenizer_path.read_bytes():
            raise LegibleError(
                f"{other.slug} has another tokenizer than {first.slug}, so their losses are not of the same tokens; "
                "leave --corpus away.",
                code="other_tokenizer",
            )
        if other.config.context != first.config.context:
            raise LegibleError(
                f"{other.slug} reads {other.config.context} tokens at once and {first.slug} {first.config.context}, so "
                "their windows differ; leave --corpus away.",
                code="other_context",
            )
    ids, end, name = corpus_ids(first, corpus, None, None)
    starts, length = windows(len(ids), first.config.context, tokens)
    batches = list(batched(ids, starts, length))
    # A window is of the document that its middle is of.
    documents = None if end is None else np.searchsorted(np.flatnonzero(ids == end), starts + length // 2)
    found: list[dict[str, Any]] = []
    base: np.ndarray | None = None
    for checkpoint in checkpoints:
        losses = np.array(list(_losses(checkpoint, batches, device)))
        base = losses if base is None else base
        loss, difference = mean_of_series(losses, documents), mean_of_series(losses - base, documents)
        found.append(
            {
                "corpus": name,
                "tokens": len(starts) * length,
                "loss": loss.value,
                "loss_se": loss.se,
                "difference": difference.value,
                "difference_se": difference.se,
            }
        )
    return found


def windows(count: int, context: int, tokens: int | None) -> tuple[np.ndarray, int]:
    """Where the windows that losses are taken on begin in a text of `count` tokens, and their length, the context.

    All windows, or about `tokens` tokens' evenly spread. A text shorter than one context is one window.
    """
    from legible_core.naming.observe import window_starts

    length = min(context, count)
    return window_starts(count, length, count if tokens is None else max(1, tokens // length)), length


def batched(ids: np.ndarray, starts: np.ndarray, length: int, size: int = 4) -> Iterator[Batch]:
    """The windows that begin at `starts`, `size` at a time.

    A window's last token is judged by the token that follows it in the text, whichever windows are taken.
    """
    import numpy as np

    from legible_core.naming.observe import Batch

    following = np.concatenate([ids[1:], [-100]])
    for first in range(0, len(starts), size):
        places = starts[first : first + size, None] + np.arange(length)
        yield Batch(ids[places], following[places])


def _losses(checkpoint: Checkpoint, batches: list[Batch], device: str) -> Iterator[float]:
    """The mean loss of every window, in nats a token."""
    import numpy as np
    from rich.console import Console
    from rich.progress import track

    from app.scanning import load_on
    from legible_core.naming.observe import observe_each

    model = load_on(checkpoint, device)
    for part in track(batches, checkpoint.slug, console=Console(stderr=True), transient=True):
        losses = observe_each(model, part, lambda _layer, _values: None)
        yield from (float(np.nanmean(row)) for row in losses.reshape(part.ids.shape))


# ---- in the terminal -------------------------------------------------------------------------------------------------


def lines(found: list[dict[str, Any]], layers: bool) -> Iterator[str]:
    """One row a figure, one column a checkpoint; quality stands first."""
    rows: list[tuple[str, list[str]]] = [
        ("", [document["checkpoint"] for document in found]),
        ("trained tokens", [_count(document["trained_tokens"]) for document in found]),
        ("perplexity", [perplexity_text(document["quality"]["perplexity"]) for document in found]),
        ("loss", [_loss(document["quality"]["loss"], document["quality"]["loss_se"]) for document in found]),
        ("measured tokens", [_count(document["quality"]["tokens"]) for document in found]),
    ]
    if "on_corpus" in found[0]:
        on = [document["on_corpus"] for document in found]
        rows.append((f"loss, {on[0]['tokens']:,} tokens", [_loss(row["loss"], row["loss_se"]) for row in on]))
        rows.append(("less the first's", [_loss(row["difference"], row["difference_se"]) for row in on]))
    for title, *_ in SHARES:
        rows.append((title, [percent_text(document["all"][title]) for document in found]))
        depth = max(len(document["layers"]) for document in found) if layers else 0
        for layer in range(depth):
            cells = [document["layers"][layer : layer + 1] for document in found]
            rows.append((f"  L{layer}", [percent_text(cell[0][title]) if cell else "" for cell in cells]))
    memories = [document["memory"] for document in found]
    rows.append(("half-life, median", ["–" if m is None else f"{m['median']:.2f}" for m in memories]))
    rows.append(("latches", ["–" if m is None else percent_text(m["latches"]) for m in memories]))
    width = max(len(title) for title, _ in rows)
    widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(found))]
    for title, cells in rows:
        yield (title.ljust(width) + "".join("  " + c.rjust(w) for c, w in zip(cells, widths, strict=True))).rstrip()


def _loss(value: float, error: float | None) -> str:
    return loss_text(value) if error is None else f"{loss_text(value)} ± {loss_text(error)}"


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
