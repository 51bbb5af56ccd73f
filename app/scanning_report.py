"""A finished scan's figures as text, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import scanning_ordinary as ordinary
from legible_core.figures import loss_text, perplexity_text

if TYPE_CHECKING:
    from legible_core.naming.names import Names

OWN_TEXT = "This is the checkpoint's own text: its loss there is no measure of its quality."


def report(names: Names) -> str:
    """The papers' rows as text, with the quality of the same checkpoint on the same text in front."""
    quality, corpus = names.quality, names.meta["corpus"]
    error = f" ± {loss_text(quality['loss_se'])}" if quality["loss_se"] is not None else ""
    lines = [
        f"{corpus['name']}: {corpus['tokens']:,} tokens, "
        f"{corpus['naming']:,} for naming, {corpus['held_out']:,} held out",
        f"loss {loss_text(quality['loss'])}{error} nats per token, perplexity {perplexity_text(quality['perplexity'])}",
        "",
        f"{'per cent':>10} {'crisp':>7} {'ON':>6} {'SELECT.':>8} {'CONST.':>7} {'FUZZY':>6}",
    ]
    if names.plain is not None:
        own = [OWN_TEXT] if corpus.get("sampled") is not None else []
        return "\n".join([*lines[:2], *own, "", *ordinary.rows(names)])
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
    if corpus.get("sampled") is not None:
        lines.insert(2, OWN_TEXT)
    lines.append("names: share of all operands, per cent")
    lines.append(f"{'':>10} {'alive':>7} {'in ON range':>12} {'nameable':>9} {'and labelled':>13}")
    for name, layer in rows:
        found = layer["names"]
        if found is not None:
            figures = (found[key] * 100 for key in ("alive", "in_range", "nameable", "labelled"))
            lines.append(f"{name:>10} " + "{:7.1f} {:12.1f} {:9.1f} {:13.1f}".format(*figures))
    return "\n".join(lines)
