"""`legible edit`: an edited checkpoint saved as one of its own, where weights can say what the edits do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.options import settings_flags
from app.settings import Settings
from legible_core.errors import Conflict, LegibleError

if TYPE_CHECKING:
    from legible_core.interventions import Edit
    from legible_core.registry import Checkpoint

CHILDREN = "children"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("edit")(edit)


@settings_flags("data_dir", "database_url")
def edit(
    settings: Settings,
    model: Annotated[str, typer.Argument(help="The parent: a checkpoint's slug, hash or folder.")],
    edits: Annotated[
        list[str] | None,
        typer.Option("--edit", help="Such as L5.u263:zero, L5.p3.B:flip, L5.u3:scale=0.5; may be given several times."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--edits", help="A JSON file with a list of edits (docs/edits.md).")
    ] = None,
    slug: Annotated[str | None, typer.Option(help="The child's name, a-z, 0-9, - and _.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default: the slug under children/ in the data folder.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16; default: the parent's if it holds the edits exactly."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the child as JSON.")] = False,
) -> None:
    """Write edits into a copy of a checkpoint's weights, and add it as a checkpoint whose card names both."""
    from app.commands.read import find
    from legible_core.registry import slug_for

    wanted = given_edits(edits or [], file)
    if slug is None and out is None:
        raise LegibleError("A child needs a name of its own; give --slug.", code="usage")
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise LegibleError(
            f"Weights cannot be stored as {dtype!r}; use float32, bfloat16 or float16.", code="bad_dtype"
        )
    parent = find(model)
    child = made_child(settings, parent, wanted, slug if slug is not None else slug_for(Path(str(out))), out, dtype)
    if as_json:
        typer.echo(json.dumps(child.to_json(), ensure_ascii=False, indent=2))
        return
    typer.echo(saved_text(child, parent, wanted))


def free_folder(settings: Settings, slug: str, out: Path | None = None) -> Path:
    """Where a child of this slug would be saved; raises `LegibleError` for no slug, `Conflict` where one is there."""
    from app.services import opened
    from legible_core.registry import check_slug

    name = check_slug(slug)
    folder = out if out is not None else settings.data_dir / CHILDREN / name
    with opened(settings) as services:
        if any(entry.slug == name for entry in services.catalogue.entries()):
            raise Conflict(f"The slug {slug!r} is taken; choose another.")
    if folder.exists():
        raise Conflict(f"{folder} exists already; choose another slug, or another folder with --out.")
    return folder


def made_child(
    settings: Settings,
    parent: Checkpoint,
    edits: tuple[Edit, ...],
    slug: str,
    out: Path | None = None,
    dtype: str | None = None,
) -> Checkpoint:
    """Save the child of a checkpoint under these edits and add it under its slug; raises what `save_child` raises."""
    from app.commands.models import add_checkpoint
    from app.services import opened

    folder = free_folder(settings, slug, out)
    from legible_core.child import save_child

    saved = save_child(parent, edits, folder, dtype=dtype)  # type: ignore[arg-type]
    with opened(settings) as services:
        return add_checkpoint(services, saved.path, slug)


def saved_text(child: Checkpoint, parent: Checkpoint, edits: tuple[Edit, ...]) -> str:
    """What was saved, and how to read it."""
    said = f"{len(edits)} edit" + ("s" if len(edits) > 1 else "")
    return (
        f"Saved {child.slug}, a child of {parent.slug} under {said}: {child.hash[:12]}, {child.path}\n"
        f'Read it with: legible read {child.slug} "It was the best of times, it was the"'
    )


def given_edits(texts: list[str], file: Path | None) -> tuple[Edit, ...]:
    """The edits of --edits, then those of --edit, in their order; raises `LegibleError` when there is none."""
    from legible_core.interventions_text import edits_from_json, parse_edit

    found: tuple[Edit, ...] = ()
    if file is not None:
        try:
            found = edits_from_json(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise LegibleError(f"The edits in {file} cannot be read: {reason}.", code="bad_edit") from None
    found += tuple(parse_edit(text) for text in texts)
    if not found:
        raise LegibleError(
            "Give at least one --edit, such as L5.u263:zero, or a file of them with --edits.", code="usage"
        )
    return found
