"""What the experiments of `legible edit-lab` have in common: their options, the text cut in two, storing and saving.

    @takes("pairs", "native", "save", tokens=100_000, windows=16)
    def install(asked: Asked, layer: Layers = None, …) -> None:

An experiment names which shared options it takes and its own defaults; each option stands here once.
"""

from __future__ import annotations

import inspect
import json
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.edit_lab_child import Child
from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from legible_core.editing.install import Bench, Pair
    from legible_core.editing.results import Experiment
    from legible_core.registry import Checkpoint
    from legible_core.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The shared options as they were given; those that an experiment does not take keep their defaults here."""

    model: str
    corpus: Path
    tokens: int
    windows: int
    length: int = 128
    pairs: int = 8
    a: list[str] | None = None
    b: list[str] | None = None
    native: Path | None = None
    seed: int = 0
    save: str | None = None
    out: Path | None = None
    device: str = "auto"
    as_json: bool = False


# What each shared option is on the command line; all but the first two stand after an experiment's own.
OPTIONS: dict[str, Any] = {
    "model": Annotated[str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder.")],
    "corpus": Annotated[Path, typer.Option(help="UTF-8 text, plain or .xz, that training did not see.")],
    "pairs": Annotated[int, typer.Option(help="How many random pairs A → B.", min=1, max=4096)],
    "a": Annotated[
        list[str] | None, typer.Option("--a", help="A token to install on, such as ' he'; in place of random pairs.")
    ],
    "b": Annotated[list[str] | None, typer.Option("--b", help="The token that its --a is to call; one for each --a.")],
    "tokens": Annotated[
        int, typer.Option(help="Use the first so many tokens: a half to measure keys, a half to judge edits.", min=64)
    ],
    "windows": Annotated[int, typer.Option(help="Windows of the held-out half to judge on.", min=1, max=65_536)],
    "length": Annotated[int, typer.Option(help="Tokens in a window.", min=8)],
    "native": Annotated[
        Path | None,
        typer.Option(help="A layer-native table made by `legible native`; default: made of the first half."),
    ],
    "seed": Annotated[int, typer.Option(help="Seed of everything drawn.", min=0, max=MAX_SEED)],
    "save": Annotated[
        str | None, typer.Option(help="Also save the cheapest edit that counts as installed, as a child of this name.")
    ],
    "out": Annotated[Path | None, typer.Option(help="Folder for edit-lab.json; default: the checkpoint's own.")],
    "device": Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:N.")],
    "as_json": Annotated[bool, typer.Option("--json", help="Print the experiment as JSON.")],
}
ALWAYS = ("model", "corpus", "tokens", "windows", "length", "seed", "out", "device", "as_json")
Layers = Annotated[list[int] | None, typer.Option("--layer", help="A layer to edit; may be repeated.")]
Betas = Annotated[list[float] | None, typer.Option("--beta", help="A strength of the write; may be repeated.")]
Quantile = Annotated[float, typer.Option(help="Of the key's projection elsewhere: the threshold.", min=0.0, max=1.0)]
Kind = Annotated[str | None, typer.Option(help="Install into a plain unit or a pair; default: plain where there are.")]


def takes(
    *also: str, tokens: int, windows: int, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the shared options, `also` those that not every experiment takes, with its own defaults.

    The command's first parameter gets them as `Asked`; the options that are its own stand between them.
    """
    plain = {field.name: field.default for field in fields(Asked)} | {"tokens": tokens, "windows": windows} | defaults
    chosen = [name for name in OPTIONS if name in (*ALWAYS, *also)]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def shared(name: str) -> inspect.Parameter:
            default = inspect.Parameter.empty if name in ("model", "corpus") else plain[name]
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=OPTIONS[name])

        parameters = [
            *(shared(name) for name in chosen[:2]),
            *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
            *(shared(name) for name in chosen[2:]),
        ]

        def run(**given: Any) -> None:
            command(Asked(**{name: given.pop(name) for name in chosen}), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return wrap


# ---- before an experiment --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lab:
    """Everything that an experiment needs; `where` says the text in words."""

    asked: Asked
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    bench: Bench
    where: str

    def pairs(self) -> list[Pair]:
        """The pairs that were named, else random ones; raises `LegibleError` for a name that is no key."""
        asked = self.asked
        if asked.a is None:
            return self.bench.pairs(asked.pairs, asked.seed)
        named = [
            (self.tokenizer.target(a, "A"), self.tokenizer.target(b, "B"))
            for a, b in zip(asked.a, asked.b or [], strict=True)
        ]
        for a, b in named:
            if a == b:
                raise LegibleError(
                    f"A and B are both {self.tokenizer.display(a)}; name two tokens.", code="bad_options"
                )
            self.bench.check_key(a, self.tokenizer.display(a))
        return list(dict.fromkeys(named))

    def layers(self, given: list[int] | None) -> list[int]:
        """The layers asked for; by default the one below the top, the last from which a write can still be read."""
        count = self.bench.model.config.n_layers
        chosen = list(dict.fromkeys(given or [max(0, count - 2)]))
        for layer in chosen:
            if not 0 <= layer < count:
                raise LegibleError(f"There is no layer {layer}; use 0 to {count - 1}.", code="bad_options")
        return chosen

    def settings(self, **own: Any) -> dict[str, Any]:
        """What is stored of the options: an experiment's own, the seed, and whether its pairs were named.

        Where fewer random pairs could be drawn than were asked for, also how many were.
        """
        named = {} if self.asked.a is None else {"named": True}
        asked = {"pairs_asked": self.asked.pairs} if not named and own.get("pairs", math.inf) < self.asked.pairs else {}
        return {**own, **asked, "seed": self.asked.seed, **named}


def open_lab(asked: Asked, *, native: bool = True) -> Lab:
    """Checkpoint, model, text and, where it is needed, the layer-native table; all that can be wrong is told first."""
    from app.commands.read import find
    from app.scanning import check_writable, corpus_ids, load_on
    from legible_core.editing.install import Bench
    from legible_core.editing.measure import HeldOut
    from legible_core.editing.native import NativeTable, measure_native
    from legible_core.naming.observe import halves
    from legible_core.tokens import Tokenizer

    checkpoint = find(asked.model)
    if len(asked.a or []) != len(asked.b or []):
        raise LegibleError("Give as many --b as --a: each --a is answered by its --b.", code="usage")
    if not asked.corpus.is_file():
        raise NotFound(f"There is no text at {asked.corpus}; give a UTF-8 text file, plain or .xz.")
    if asked.out is not None and not asked.out.is_dir():
        raise NotFound(f"There is no folder {asked.out}; make it first, or leave --out away.")
    check_writable(asked.out or checkpoint.path)
    if asked.length > checkpoint.config.context:
        raise LegibleError(
            f"Windows of {asked.length} tokens are longer than the context of {checkpoint.slug}, "
            f"{checkpoint.config.context}; make --length smaller.",
            code="bad_options",
        )
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    for role, texts in (("A", asked.a), ("B", asked.b)):
        for text in texts or []:
            tokenizer.target(text, role)
    table = NativeTable.load(asked.native, checkpoint.hash) if native and asked.native is not None else None
    ids, end, name = corpus_ids(checkpoint, asked.corpus, asked.tokens, None)
    first, second = halves(ids, end)
    calibration = HeldOut.of(first, asked.length, max(1, len(first) // asked.length))
    held_out = HeldOut.of(second, asked.length, asked.windows)
    loaded = load_on(checkpoint, asked.device)
    if native and table is None:
        with progress("native table", len(first)) as advance:
            table = measure_native(
                loaded, first, end_of_document=end, corpus=name, checkpoint_hash=checkpoint.hash, between=advance
            )
    where = f"{held_out.tokens:,} held-out tokens of {name}"
    if native:
        where += f", keys measured on {calibration.tokens:,} others"
    return Lab(asked, checkpoint, tokenizer, Bench(loaded, calibration, held_out, table), where)


def unit_kind(given: str | None) -> Any:
    """--kind of an experiment that reads with units; raises `LegibleError` for another word."""
    if given not in (None, "plain", "pair"):
        raise LegibleError(f"--kind {given!r} is not usable; give plain or pair.", code="bad_options")
    return given


# ---- after it --------------------------------------------------------------------------------------------------------


def finish(lab: Lab, experiment: Experiment, save: Callable[[], Child] | None = None) -> None:
    """Store the experiment beside the others of the checkpoint, print it, and save the child that was asked for."""
    from app.commands.edit import saved_text
    from legible_core.editing.results import Results, text

    experiment = with_missing(experiment)
    folder = lab.asked.out or lab.checkpoint.path
    path = Results.load(folder, lab.checkpoint.hash).put(experiment).save(folder)
    if not lab.asked.as_json:
        typer.echo(text(experiment) + f"\n\nwritten to {path}")
    child = save() if save is not None else None
    if lab.asked.as_json:
        saved = {} if child is None else {"child": {**child.saved.to_json(), "association": child.words}}
        typer.echo(json.dumps({**experiment.to_json(), **saved}, ensure_ascii=False, allow_nan=False))
    elif child is not None:
        typer.echo(f"{child.words}\n{saved_text(child.saved, lab.checkpoint, child.edits)}")


def with_missing(experiment: Experiment) -> Experiment:
    """The experiment, and in words why it has fewer pairs than were asked for, where it has."""
    from legible_core.editing.install import fewer_text

    asked = experiment.settings.get("pairs_asked")
    if asked is None:
        return experiment
    return replace(experiment, said=f"{experiment.said} {fewer_text(experiment.settings['pairs'], asked)}")


def command_line() -> str:
    """This very call, for whoever wants to make it again; file names without their folders, and without --save."""
    import sys

    given = [part for word in sys.argv[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    words = [Path(word).name if "/" in word and Path(word).exists() else word for word in given]
    for option in ("--out", "--save"):
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
    return shlex.join(["legible", *(word for word in words if word != "--json")])


def counted(items: Iterator[Any], advance: Any) -> Iterator[Any]:
    """The items, each told to a progress bar as it comes."""
    for item in items:
        advance(None)
        yield item


@contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
    """A progress bar on standard error: gives a function of what is done, or of None for one more."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task) if done is None else bar.update(task, completed=done)
