"""A scan from checkpoint and text to names, for the command line and the worker alike."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from legible_core.errors import LegibleError, Unavailable

if TYPE_CHECKING:
    from app.worker import Context, Outcome
    from legible_core.naming.names import Names
    from legible_core.naming.scan import Scan
    from legible_core.registry import Checkpoint

STATES = "scans"


def handle(context: Context) -> Outcome:
    """The worker's scan job: payload `slug`, `corpus` (a path on its machine), optionally `tokens` and `out`.

    Yields to readings between batches. A cancelled or stopped scan leaves its state, and so, up to half a minute of
    work, does a killed one: the next attempt goes on from there.
    """
    from app.catalogue import Catalogue
    from app.worker import Outcome

    payload = context.payload
    checkpoint = Catalogue(context.store).get(payload["slug"])
    out = Path(payload["out"]) if payload.get("out") else None
    check_writable(out or checkpoint.path)
    context.stage("load")
    scan = prepare(
        checkpoint,
        Path(payload["corpus"]),
        context.settings.data_dir / STATES,
        tokens=payload.get("tokens"),
        device=context.settings.device,
        between=lambda done: context.between_batches(),
    )
    context.computes_on(str(scan.model.token_embedding.device))
    context.stage("run")
    for progress in scan.run():
        try:
            context.between_batches(progress.done, progress.total)
        except BaseException:  # cancelled, or the worker ends: between batches the state is whole
            scan.save()
            raise
    context.stage("store")
    names = finish(scan, checkpoint, out, between=context.between_batches)
    return Outcome({key: names.meta[key] for key in ("checkpoint", "corpus", "quality", "legibility")})


def prepare(
    checkpoint: Checkpoint,
    corpus: Path,
    state: Path,
    *,
    tokens: int | None = None,
    batch: int = 8,
    device: str = "auto",
    restart: bool = False,
    between: Callable[[int], None] | None = None,
) -> Scan:
    """Load the checkpoint, tokenise the text, and take up the saved state of this very scan if there is one.

    state: the folder of all scans' states; each has a folder of its own in it, named after checkpoint and text.
    """
    import torch

    from legible_core.checkpoint import load
    from legible_core.naming.corpus import token_stream
    from legible_core.naming.scan import Scan
    from legible_core.tokens import Tokenizer
    from legible_core.training.data import documents

    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    ids, end = token_stream(documents(corpus), tokenizer, limit=tokens, between=between)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        loaded = load(checkpoint, device=torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        if device == "cpu":
            raise
        reason = str(error).splitlines()[0]
        raise LegibleError(f"The device {device!r} cannot be used: {reason}", code="bad_device") from None
    key = json.dumps([checkpoint.hash, hashlib.sha256(ids.tobytes()).hexdigest(), batch])
    folder = state / hashlib.sha256(key.encode()).hexdigest()[:24]
    if restart and folder.is_dir():
        for file in folder.iterdir():
            file.unlink()
    return Scan(
        loaded, ids, corpus.name, checkpoint_hash=checkpoint.hash, end_of_document=end, batch=batch, state=folder
    )


def check_writable(folder: Path) -> None:
    """Raise Unavailable where names could not be written, before the time of a scan is spent."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unavailable(
            f"The names would be written to {folder}, which cannot be written to ({error.strerror}).",
            code="read_only",
            hint="Make it writable, or choose another folder with --out.",
        ) from None


def finish(
    scan: Scan, checkpoint: Checkpoint, out: Path | None = None, *, between: Callable[[], None] | None = None
) -> Names:
    """Make and write the names of a finished scan, then forget its state."""
    from legible_core.naming.assemble import write_names
    from legible_core.tokens import Tokenizer

    names = write_names(out or checkpoint.path, scan, Tokenizer.load(checkpoint.tokenizer_path), between=between)
    scan.discard()
    return names


def report(names: Names) -> str:
    """The papers' rows as text, with the quality of the same checkpoint on the same text in front."""
    quality, corpus = names.quality, names.meta["corpus"]
    error = f" ± {quality['loss_se']:.4f}" if quality["loss_se"] is not None else ""
    lines = [
        f"{corpus['name']}: {corpus['tokens']:,} tokens, "
        f"{corpus['naming']:,} for naming, {corpus['held_out']:,} held out",
        f"loss {quality['loss']:.4f}{error} nats per token, perplexity {quality['perplexity']:.1f}",
        "",
        f"{'per cent':>10} {'crisp':>7} {'ON':>6} {'SELECT.':>8} {'CONST.':>7} {'FUZZY':>6}",
    ]
    layers = names.legibility["layers"]
    rows = [(f"L{index}", layer) for index, layer in enumerate(layers)] + [("all", names.legibility["all"])]
    for surface, title in (
        ("value", "attention, combined values"),
        ("head_operands", "attention, operands"),
        ("operands", "feed-forward, operands"),
    ):
        lines.append(title)
        for name, layer in rows:
            row = layer[surface]
            if row is None:
                lines.append(f"{name:>10}  undefined: nothing bounded")
                continue
            figures = (row[key] * 100 for key in ("crisp", "on", "selective", "constant", "fuzzy"))
            lines.append(f"{name:>10} " + "{:7.1f} {:6.1f} {:8.1f} {:7.1f} {:6.1f}".format(*figures))
    lines.append("names: share of all operands, per cent")
    lines.append(f"{'':>10} {'alive':>7} {'in ON range':>12} {'nameable':>9} {'and labelled':>13}")
    for name, layer in rows:
        found = layer["names"]
        if found is not None:
            figures = (found[key] * 100 for key in ("alive", "in_range", "nameable", "labelled"))
            lines.append(f"{name:>10} " + "{:7.1f} {:12.1f} {:9.1f} {:13.1f}".format(*figures))
    return "\n".join(lines)
