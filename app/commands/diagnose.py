"""`legible diagnose`: the reads of "Legible-by-Construction" appendix A.2 of any checkpoint, run or ordinary model."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from legible_core.errors import LegibleError, NotFound
from legible_core.sampling import MAX_SEED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from torch import Tensor

    from legible_core.adapters.registration import OrdinaryCheckpoint
    from legible_core.config import ModelConfig
    from legible_core.model import Transformer
    from legible_core.registry import Checkpoint

MAX_TOKENS = 1 << 20
LARGEST = ("head", "kind", "norm", "times")
# An ordinary model's contexts, which may be longer than a pass that keeps every layer should be.
ORDINARY_CONTEXT = 512
SAMPLED = 2048  # tokens that a checkpoint writes for itself where no text is given


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("diagnose")(diagnose)


def diagnose(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: its slug, its hash, or its folder; or a run's folder (its last state).")
    ],
    text: Annotated[str | None, typer.Option(help="Read it on this text; - reads it from standard input.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Read it on the beginning of this text, plain or .xz.")] = None,
    tokens: Annotated[
        int, typer.Option(help="How many tokens of the corpus, or of its own text.", min=1, max=MAX_TOKENS)
    ] = SAMPLED,
    seed: Annotated[int, typer.Option(help="Seed of its own text.", min=0, max=MAX_SEED)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Read a checkpoint for signs of a divergence: off its weights, and on a text."""
    found = examine(model, text=text, corpus=corpus, tokens=tokens, seed=seed)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    show(found, Console(highlight=False))


def examine(
    model: str, *, text: str | None = None, corpus: Path | None = None, tokens: int = SAMPLED, seed: int = 0
) -> dict[str, Any]:
    """Everything that `--json` prints; raises `LegibleError` for what cannot be used."""
    if text is not None and corpus is not None:
        raise LegibleError("Give --text or --corpus, not both.", code="bad_options")
    from app.commands.read import find
    from legible_core.training.telemetry import read

    folder = Path(model).expanduser()
    checkpoint = None if (folder / "recipe.json").is_file() else find(model)
    if checkpoint is not None and checkpoint.ordinary:
        return _ordinary(checkpoint, text, corpus, tokens, seed)
    made, tokenizer, what = _of_run(folder) if checkpoint is None else _of_checkpoint(checkpoint)
    rows, on = _rows(made, tokenizer, text, corpus, tokens, seed)
    loss = None if on["source"] in ("own text", "random tokens") else _loss(made, rows)
    return _found(made.config, what, {**on, "loss": loss}, read(made, *(ids[None] for ids in rows)))


def _found(config: ModelConfig, what: dict[str, Any], on: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    from legible_core.training.diagnosis import signs

    heads = {"heads": config.n_heads, "value": config.attention.value, "d_model": config.d_model}
    return {**what, **heads, "ordinary": config.ordinary, "read_on": {**on, "tokens": read["tokens"]}, **read,
            "signs": [sign.to_json() for sign in signs(config, read)]}  # fmt: skip


def _of_checkpoint(checkpoint: Checkpoint) -> tuple[Transformer, Path, dict[str, Any]]:
    """The model, its tokenizer's path, and what it is."""
    from legible_core.checkpoint import load

    return load(checkpoint), checkpoint.tokenizer_path, _named(checkpoint)


def _named(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"checkpoint": checkpoint.slug, "hash": checkpoint.hash, "card_perplexity": checkpoint.perplexity}


def _ordinary(checkpoint: Checkpoint, text: str | None, corpus: Path | None, tokens: int, seed: int) -> dict[str, Any]:
    """What an ordinary model has of the reads, on contexts that begin as its tokenizer begins every text."""
    import torch

    from app.scanning import load_any, sampled_ids, tokenizer_of
    from app.scanning_ordinary import begin_of
    from legible_core.ordinary.diagnosis import read

    begin = begin_of(cast("OrdinaryCheckpoint", checkpoint))
    if text is None and corpus is None:
        ids = torch.as_tensor(sampled_ids(checkpoint, None, tokens, seed, None, device="cpu")[0], dtype=torch.long)
        on: dict[str, Any] = {"source": "own text", "seed": seed}
    else:
        ids, source = _given(tokenizer_of(checkpoint), text, corpus, tokens)
        on = {"source": source}
    first = torch.tensor([] if begin is None else [begin], dtype=torch.long)
    width = min(checkpoint.config.context, ORDINARY_CONTEXT) - len(first)
    rows = [torch.cat([first, part]) for part in ids.split(max(1, width))]
    made = load_any(checkpoint, "cpu")
    loss = None if on["source"] == "own text" else _loss(lambda ids: made.final_logits(made.forward(ids)), rows)
    found = read(made, *rows, skip=len(first))
    return _found(checkpoint.config, _named(checkpoint), {**on, "loss": loss}, found)


def _of_run(folder: Path) -> tuple[Transformer, Path, dict[str, Any]]:
    """The last saved state of a run, or of the decay branch whose folder this is."""
    from legible_core.model import Transformer
    from legible_core.training.history import read_recipe
    from legible_core.training.recipe import Recipe
    from legible_core.training.state import read_state

    recipe = Recipe.from_json(read_recipe(folder))
    loaded = read_state(folder / "state")
    if loaded is None:
        raise NotFound(f"The run in {folder} has no saved state yet; train it until it saves one.", code="no_state")
    weights, _, meta = loaded
    made = Transformer(recipe.model.config(recipe.data.vocab_size))
    try:
        made.load_state_dict(weights)
    except RuntimeError:
        raise LegibleError(
            f"The state in {folder / 'state'} has other tensors than its recipe.json says; it is no whole run.",
            code="corrupt_run",
        ) from None
    what = {"checkpoint": f"{recipe.name}, step {meta['step']}", "hash": None, "card_perplexity": None}
    return made.eval(), folder / "tokenizer.json", what


# ---- the text --------------------------------------------------------------------------------------------------------


def _rows(
    model: Transformer, tokenizer: Path, text: str | None, corpus: Path | None, tokens: int, seed: int
) -> tuple[list[Tensor], dict[str, Any]]:
    """Contexts of ids to read, and where they are from."""

    from legible_core.tokens import Tokenizer

    words = Tokenizer.load(tokenizer)
    context = model.config.context
    if text is None and corpus is None:
        return _own(model, words, tokens, seed)
    ids, source = _given(words, text, corpus, tokens)
    return list(ids.split(context)), {"source": source}


def _given(words: Any, text: str | None, corpus: Path | None, tokens: int) -> tuple[Tensor, str]:
    """The ids of the text or of the corpus's beginning, and what it is called."""
    import torch

    if text == "-":
        text = sys.stdin.read()
    source = "text"
    if corpus is not None:
        from legible_core.training.sources import beginning

        text, source = beginning(corpus, 8 * tokens), f"corpus {corpus.name}"
    assert text is not None
    ids = torch.tensor(words.encode(text)[:tokens], dtype=torch.long)
    if not len(ids):
        raise LegibleError("The text is empty; give at least one token of it.", code="empty_prompt")
    return ids, source


def _own(model: Transformer, words: Any, tokens: int, seed: int) -> tuple[list[Tensor], dict[str, Any]]:
    """What the checkpoint writes by itself; random tokens where it cannot write."""
    import torch

    from legible_core.training.diagnosis import own_text

    vocabulary, context = model.config.vocab_size, model.config.context
    first = next((i for i in range(min(vocabulary, 16)) if words.is_special(i)), None)
    first = words.find(b"\n") if first is None else first
    written = own_text(model, first or 0, tokens, seed)
    if written is not None:
        return list(written), {"source": "own text", "seed": seed}
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return list(drawn.split(context)), {"source": "random tokens", "seed": seed}


def _loss(model: Callable[[Tensor], Tensor], rows: list[Tensor]) -> float | None:
    """Mean next-token loss in nats over the contexts; None where none has two tokens, or it is not finite."""
    import torch

    total, count = 0.0, 0
    with torch.no_grad():
        for ids in rows:
            if len(ids) > 1:
                logits = model(ids[None, :-1])[0]
                total += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item()
                count += len(ids) - 1
    mean = total / count if count else math.nan
    return mean if math.isfinite(mean) else None


# ---- in the terminal -------------------------------------------------------------------------------------------------


def show(found: dict[str, Any], console: Console) -> None:
    """Both reads as tables, and what the paper says of them."""
    from rich.markup import escape

    on = found["read_on"]
    words = {"own text": "text that it wrote itself (sampled)", "random tokens": "random tokens: it writes no text"}
    quality = f"; loss {on['loss']:.3f} nats there" if on["loss"] is not None else ""
    quality += f"; perplexity {found['card_perplexity']:.1f} on its card" if found["card_perplexity"] else ""
    console.print(f"[bold]{escape(str(found['checkpoint']))}[/bold]  {found['value']} values, {found['heads']} heads")
    console.print(f"Read on {on['tokens']:,} tokens of {escape(words.get(on['source'], on['source']))}{quality}.")
    gain, rms = _figure(found["gain_norm"]), _figure(found["residual_rms"])
    start = f"√d = {found['d_model'] ** 0.5:.1f} at the start of a training"
    console.print(f"Final norm: residual RMS {rms}, norm of the gain {gain} ({start}).")
    console.print(_heads(found["layers"]))
    console.print(_largest(found["layers"]))
    if not found["ordinary"]:
        console.print(_operands(found["layers"]))
    if any(layer["half_life"] for layer in found["layers"]):
        console.print(_quantifiers(found["layers"]))
    for sign in found["signs"]:
        where = "" if sign["layer"] is None else f"layer {sign['layer']}: "
        console.print(f"[bold]{sign['level']}[/bold]  {escape(where + sign['text'])}")
    if found["ordinary"]:
        console.print(
            "An ordinary model has neither bounded heads nor operands nor quantifiers: shares at a rail, ON, ratios "
            "and half-lives are undefined for it, and so are the signs that the paper reads off them."
        )
        return
    if not any(sign["level"] != "note" for sign in found["signs"]):
        console.print(
            "Nothing here is like the divergence of the paper: saturated bounded heads beside conventional ones that "
            "write 100-200 times as much. Saturation alone is no sign, since crispness presses operands to the rails."
        )


def _heads(layers: list[dict[str, Any]]) -> Table:
    """Mean column norms of W_O, read off the weights; writes, the mean norm of what a head adds on the text."""
    sides = ("bounded", "\nconvent.", "\nratio")
    columns_of, write_of = (f"columns\n{sides[0]}", *sides[1:]), (f"writes\n{sides[0]}", *sides[1:])
    title = "Heads: columns of W_O, off the weights; writes into the residual, on the text"
    table = _table(title, ("layer", "bounded", *columns_of, *write_of))
    for index, layer in enumerate(layers):
        split, columns, write = layer["bounded_heads"], layer["columns"], layer["write"]
        table.add_row(
            f"L{index}", f"{split} of {len(columns)}",
            _mean(columns[:split]), _mean(columns[split:]), _figure(layer["columns_ratio"]),
            _mean(write[:split]), _mean(write[split:]), _figure(layer["write_ratio"]),
        )  # fmt: skip
    return table


def _largest(layers: list[dict[str, Any]]) -> Table:
    """The head that stands out in each layer, which a mean over heads would hide."""
    from legible_core.training.history import largest_head

    names = [f"{'' if i else name}\n{column}" for name in ("columns", "writes") for i, column in enumerate(LARGEST)]
    table = _table("The largest head of each layer; times: over the layer's median head", ("layer", *names))
    for index, layer in enumerate(layers):
        cells: list[str] = []
        for values in (layer["columns"], layer["write"]):
            head, most = largest_head(values) or (0, math.nan)
            kind = "bounded" if head < layer["bounded_heads"] else "convent."
            median = statistics.median(math.inf if value is None else value for value in values)
            known = math.isfinite(most) and median > 0
            cells += [f"h{head}", kind, f"{most:.3g}" if math.isfinite(most) else "not finite",
                      f"{most / median:.3g}" if known else "–"]  # fmt: skip
        table.add_row(f"L{index}", *cells)
    return table


def _operands(layers: list[dict[str, Any]]) -> Table:
    """Saturated: within 0.02 of a rail."""
    names = ("saturated", "crisp", "ON", "CONSTANT")
    head = ["layer", *(f"{'attention' if not i else ''}\n{name}" for i, name in enumerate(names))]
    head += [f"{'FFN' if not i else ''}\n{name}" for i, name in enumerate(names)]
    table = _table("Operands on the text", head)
    for index, layer in enumerate(layers):
        shares = [
            _share((layer[surface] or {}).get(key))
            for surface in ("attention", "feed_forward")
            for key in ("saturated", "crisp", "on", "constant")
        ]
        table.add_row(f"L{index}", *shares)
    return table


def _quantifiers(layers: list[dict[str, Any]]) -> Table:
    table = _table("Half-lives off the weights, in tokens", ("layer", "median", "min", "max", "latches (32 or more)"))
    for index, layer in enumerate(layers):
        life = layer["half_life"] or {}
        lives = (_figure(life.get(key)) for key in ("median", "min", "max"))
        table.add_row(f"L{index}", *lives, _share(life.get("latches")))
    return table


def _table(title: str, head: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(name, justify="right", vertical="bottom")
    return table


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _figure(sum(known) / len(known)) if known and len(known) == len(values) else "–"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
