"""What `legible check`, `necessity`, `sufficiency` and `path` print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FLAGS = {"sign": "⚠ signs differ", "band": "⚠ direct ≠ total"}
# In a narrower terminal what follows the numbers stands in one column, line by line, so that no cell is broken.
WIDE = 120


def show_checks(document: dict[str, Any], console: Console) -> None:
    """One line for each contribution: its term, what its removal did, and whether the two agree."""
    from rich.text import Text

    wide = console.width >= WIDE
    beside = ("flipped operands", "then", "") if wide else ("",)
    table = _table("term", "component", "zero", "direct", "mean", *beside)
    for row in document["checks"]:
        by = {(r["method"], r["operand"]): r["total"] for r in row["removals"]}
        flips = [
            f"{side}: " + ", ".join(f"{method[5:]} {total:+.2f}" for (method, of), total in by.items() if of == side)
            for side in dict.fromkeys(of for _, of in by if of)
        ]
        mean = by.get(("mean", None))
        flags = [FLAGS[flag] for flag in row["flags"]]
        then = f"{row['after']['prediction']['display']} (rank {row['after']['rank']})"
        after = [*flags, f"then {then}"] if flags else [f"✓ then {then}"]
        more = [flips, [then], flags or ["✓"]] if wide else [[*after, *(f"flip {line}" for line in flips)]]
        cells = [f"{row['term']:+.3f}", f"{row['glyph']} {row['id']}", f"{row['total']:+.3f}", f"{row['direct']:+.3f}"]
        cells += ["" if mean is None else f"{mean:+.3f}", *("\n".join(lines) for lines in more)]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(f"{document['target']['display']}: value {document['value']:.4f} at position {document['position']}")
    console.print(table)
    for half in document["halves"]:
        left = "" if half["shortfall"] is None else f", shortfall {half['shortfall']:.0%} of the linear sum"
        console.print(
            f"{half['half']:8} {half['n']:3} checked: direct {half['direct']:+.3f}, each alone {half['alone']:+.3f}, "
            f"removed together {half['together']:+.3f}{left}"
        )
    if document["bands"] is None:
        console.print("No bands are measured for this checkpoint, so only signs are compared: legible check --bands.")


def bands_table(bands: dict[str, Any]) -> Table:
    table = _table("removed by", "half", "n", "5 %", "median", "95 %", "signs differ", "correlation")
    for method, rows in bands.items():
        for half, band in rows.items():
            numbers = [band["low"], band["median"], band["high"]]
            r = "" if band["r"] is None else f"{band['r']:.3f}"
            table.add_row(method, half, str(band["n"]), *(f"{x:.2f}" for x in numbers), f"{band['sign']:.1%}", r)
    return table


def show_necessity(document: dict[str, Any], console: Console) -> None:
    """Per k the top set beside its random ones."""
    table = _table("k", "changed", "lost", "linear sum", "shortfall", "random: changed", "lost", "linear sum")
    for row in document["rows"]:
        top, random = row["top"], row["random"]
        short = "" if top["shortfall"] is None else f"{top['shortfall']:.0%}"
        cells = [str(row["k"]), f"{top['changed']:.0%}", f"{top['lost']:+.3f}", f"{top['linear']:+.3f}", short]
        table.add_row(*cells, f"{random['changed']:.0%}", f"{random['lost']:+.3f}", f"{random['linear']:+.3f}")
    if "predictions" in document:
        console.print(
            f"{document['predictions']} held-out predictions of probability {document['floor']} or more, "
            f"of {document['looked']} looked at"
        )
    else:
        console.print(f"{document['target']['display']}, probability {document['probability']:.3f}")
    console.print(table)


def show_sufficiency(document: dict[str, Any], console: Console) -> None:
    """The set, how it was found, and its controls."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in document["kinds"].items()) or "none"
    console.print(
        f"{document['target']['display']} is emitted by {document['size']} of {document['components']:,} components "
        f"({kinds}), margin {document['margin']:.3f}; shortest prefix {document['prefix']}; "
        f"{document['reruns']} re-runs; "
        + ("each one is needed" if document["minimal"] else "not every single one was shown to be needed")
    )
    console.print(", ".join(m["id"] for m in document["members"]), soft_wrap=True)
    console.print(
        f"{document['random']['n']} random sets of this size and kinds: {document['random']['emit']:.0%} emit"
    )
    sizes = ", ".join(f"{row['size']}: {row['emit']:.0%}" for row in document["random_sizes"])
    console.print(f"random sets by size: {sizes}", soft_wrap=True)
    console.print(document["method"], soft_wrap=True)


def show_path(document: dict[str, Any], console: Console) -> None:
    """The four arms and m."""
    table = _table("", "before", f"{document['first']} removed", "effect", "rank before", "after")
    for name, said in (("intact", "intact"), ("second_removed", f"{document['second']} zeroed")):
        arm, rank = document["arms"][name], document["ranks"][name]
        numbers = [f"{arm['before']:.4f}", f"{arm['after']:.4f}", f"{arm['effect']:+.4f}"]
        table.add_row(said, *numbers, str(rank["before"]), str(rank["after"]))
    console.print(table)
    if document["m"] is None:
        console.print(f"m is undefined: {document['why_undefined']}.")
        return
    console.print(
        f"m = {document['m']:.3f} of the effect goes through {document['second']}: direct {document['direct']:+.4f}, "
        f"through it {document['through']:+.4f}, otherwise {document['other']:+.4f}"
    )


def show_sources(document: dict[str, Any], console: Console) -> None:
    """What is credited, against what its removal does."""
    credited, random = document["credited"], document["random"]
    console.print(
        f"{document['operand']} is {document['activation']:.3f} (pre-activation {document['pre_activation']:+.3f}). "
        f"Its {credited['n']} leading sources removed: {credited['total']:+.3f} (linear {credited['linear']:+.3f}), "
        f"to {credited['activation']:.3f}; {random['n']} random sets alike: {random['total']:+.3f} on average, "
        f"{random['absolute']:.3f} in size"
    )
    table = _table("source", "direct", "removed", "cosine", "sort")
    for row in document["sources"] + [s for s in document["siblings"] if s not in document["sources"]]:
        cosine = "" if row["cosine"] is None else f"{row['cosine']:.2f}"
        table.add_row(
            f"{row['glyph']} {row['id']}", f"{row['direct']:+.3f}", f"{row['total']:+.3f}", cosine, row["sort"]
        )
    console.print(table)
    console.print(f"Effects of {document['floor']:.3f} or less are what a random upstream component does.")


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    for number, column in enumerate(columns):
        text = number == 1 or column in ("", "flipped operands", "then")
        one_word = number == 1 or not (text or " " in column)
        table.add_column(column, justify="left" if text else "right", no_wrap=one_word)
    return table
