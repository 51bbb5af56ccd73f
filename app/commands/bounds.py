"""`legible bounds`: what units can write at one prediction, how far quantifiers reach, what a box of inputs allows."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from legible_core.errors import LegibleError
from legible_core.units import Unit, parse

MAX_TOP = 1000


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("bounds")(bounds)


def bounds(
    model: Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    prompt: Annotated[str, typer.Argument(help="The text, read as typed.")],
    target: Annotated[str | None, typer.Option(help="The token written to; default: the most probable one.")] = None,
    contrast: Annotated[str | None, typer.Option(help="Bound the logit difference to this token.")] = None,
    position: Annotated[
        int | None, typer.Option(help="0-based position whose next token is read; default: the last.")
    ] = None,
    relative_to: Annotated[str | None, typer.Option(help="nothing, mean (of the vocabulary) or contrast.")] = None,
    top: Annotated[int, typer.Option(help=f"How many units are listed, widest range first, 1 to {MAX_TOP}.")] = 20,
    component: Annotated[str | None, typer.Option(help="Every bound of this unit, such as L5.u263.")] = None,
    radius: Annotated[
        float | None,
        typer.Option(help="With --component: a box of this radius around the layer's normed input, propagated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print bounds that hold by construction, at this prediction's scale (docs/bounds.md has the proofs)."""
    if radius is not None and component is None:
        raise LegibleError("--radius goes with --component, the unit whose inputs are boxed.", code="usage")
    if not 1 <= top <= MAX_TOP:
        raise LegibleError(f"--top is {top}; it must be from 1 to {MAX_TOP}.", code="bad_top")
    unit = None if component is None else parse(component)
    if unit is not None and not isinstance(unit, Unit):
        raise LegibleError(f"{component} is no unit; a unit is written like L5.u263.", code="bad_component")
    from app.commands.read import find
    from legible_core.api import load
    from legible_core.bounds import ranges_document, unit_bounds

    engine = load(find(model))
    wish: Any = relative_to
    asked = engine.request(prompt, position=position, target=target, contrast=contrast, relative_to=wish)
    if unit is None:
        found, lines = ranges_document(engine, asked, top), ranges_lines
    else:
        found, lines = unit_bounds(engine, asked, unit, radius), unit_lines
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
    else:
        for line in lines(found):
            typer.echo(line)


def ranges_lines(found: dict[str, Any]) -> list[str]:
    """The widest ranges as a table, then all units together."""
    rows = [("can write", "writes here", "unit", "name")]
    for row in found["units"]:
        rows.append((_range(row), f"{row['value']:+.3f}", f"{row['glyph']} {row['id']}", _name(row)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = found["total"]
    together = f"all units with rails together: {_range(total)}, here {total['value']:+.3f}"
    return [_to(found), "", *table, "", together]


def unit_lines(found: dict[str, Any]) -> list[str]:
    """One unit: its write, operands, memory, tokens and box, a line each."""
    lines = [
        _to(found),
        f"{found['glyph']} {found['id']}  {_name(found)}".rstrip(),
        f"can write {_range(found['write'])}; writes {found['value']:+.3f} at activation {found['activation']:.3f}",
    ]
    if found["edited"]:
        lines.append("the reading edits this layer: the bound is of the unit without edits")
    if found["pair"] is not None:
        lines.append(f"{' and '.join(found['pair']['units'])} together can write {_range(found['pair'])}")
    for operand in found["operands"]:
        way = "rises" if operand["unit_rises"] else "falls"
        write = {True: "its write rises", False: "its write falls", None: "its write stays"}[operand["write_rises"]]
        ends = f"{operand['anywhere']['low']:.3g} to {operand['anywhere']['high']:.3g}"
        lines.append(f"{way} with {operand['id']}, {write}; {operand['id']} lies in {ends} for every input")
    if found["memory"] is not None:
        memory = found["memory"]
        end = memory["below_one_percent"]
        until = "never falls under 0.01" if end is None else f"is under 0.01 from {end} tokens back on"
        lines.append(f"reach: λ = {memory['decay']:.4f}; a change of m {until}")
        for row in memory["reach"]:
            lines.append(
                f"  {row['back']:>4} tokens back: at most {row['most']:.4f} ({row['most_logits']:.4f} logits), "
                f"with this prompt's other memberships {row['here']:.4f}"
            )
    for name, words in (("raises", "raises at most"), ("lowers", "lowers at most")):
        end = "high" if name == "raises" else "low"
        tokens = ", ".join(f"{row['display']} {row[end]:+.3f}" for row in found[name])
        lines.append(f"{words}: {tokens or 'nothing'}")
    if found["box"] is not None:
        box = found["box"]
        parts = [f"{row['id']} {row['low']:.3f} to {row['high']:.3f}" for row in box["operands"]]
        lines.append(
            f"normed input within {box['radius']:g} in each coordinate: {', '.join(parts)}; unit "
            f"{box['activation']['low']:.3f} to {box['activation']['high']:.3f}; writes {_range(box['write'])}"
        )
    return lines


def _name(row: dict[str, Any]) -> str:
    """The formula, which a quantifier's begins with the glyph that stands before its id already."""
    return (row["formula"] or "").removeprefix(f"{row['glyph']} ")


def _to(found: dict[str, Any]) -> str:
    against = {"nothing": "", "mean": " less the vocabulary's mean"}.get(found["relative_to"], "")
    if found["contrast"] is not None:
        against = f" less {found['contrast']['display']}"
    return f"to {found['target']['display']}{against} at position {found['position']}, std(x) = {found['scale']:.4f}"


def _range(row: dict[str, Any]) -> str:
    return f"{row['low']:+.3f} to {row['high']:+.3f}"
