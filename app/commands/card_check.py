"""`legible card --check`: a card against what was measured, and against what else is recorded of the training.

for line in [*differences(checkpoint, fields, section, anew), *untrue(checkpoint)]:
    print(line)              # "tokens: 25001985 on the card, 25001984 in history.safetensors"
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from legible_core.errors import NotFound
from legible_core.figures import BEGIN, END, PERPLEXITY_ROUNDING, same
from legible_core.registry import LEGIBILITY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from legible_core.registry import Checkpoint

# What of a recipe stands on the card of a checkpoint trained by it, as `legible train --ship` writes it.
FROM_RECIPE = ("tokens", "seed", "order_seed", "batch_tokens", "optimiser", "decay_tokens")


def measured_keys() -> frozenset[str]:
    """Every line of a card that a scan or an evaluation gives; none of them is a person's to type."""
    from app.pages.quality import CARD_WORDS

    scan = ("loss", "loss_se", "perplexity", "measured_tokens", "half_life_median", "latches", *LEGIBILITY)
    return frozenset((*scan, *CARD_WORDS))


def unmeasured(checkpoint: Checkpoint, fields: Iterable[str]) -> list[str]:
    """The card's figures that are not among those measured now, in the card's order."""
    keys = measured_keys().difference(fields)
    return [key for key in checkpoint.card.fields if key in keys]


def differences(checkpoint: Checkpoint, fields: dict[str, str], section: str, anew: Collection[str] = ()) -> list[str]:
    """A line for each figure of the card that is not what it would be now.

    anew: the lines, by their key, and the tables, by their whole heading, that were measured for this. They agree to
    within one of the last written digit; everything else is what is stored, from which a card is made, and the same.
    """
    wrong = []
    for key, now in fields.items():
        was = checkpoint.card.fields.get(key)
        if was is None:
            wrong.append(f"{key}: not on the card, now {now}")
        elif was != now and (key not in anew or not _agree(was, now, _rounding(key))):
            wrong.append(f"{key}: {was} on the card, now {now}")
    for key in unmeasured(checkpoint, fields):
        wrong.append(f"{key}: {checkpoint.card.fields[key]} on the card, and nothing here measured it")
    return [*wrong, *_tables(checkpoint.card.body, section, anew)]


def _rounding(key: str) -> float:
    return PERPLEXITY_ROUNDING if "perplexity" in key else 0.0


def untrue(checkpoint: Checkpoint) -> list[str]:
    """A line for each fact of the training on the card of which another file says otherwise.

    Compared exactly: the tokens with the history of the units, which holds them of any checkpoint; what a recipe fixes
    with the recipe, of those that ship, which are made by the whole of theirs.
    """
    fields, found = checkpoint.card.fields, []
    for key, (recorded, where) in recorded_facts(checkpoint).items():
        was = fields.get(key)
        if was is None and key == "tokens":
            found.append(f"{key}: not on the card, {recorded} in {where}")
        elif was is not None and _bare(was) != _bare(recorded):
            found.append(f"{key}: {was} on the card, {recorded} in {where}")
    return found


def _bare(text: str) -> str:
    """A number without the marks that a person may put between its digits."""
    return text.replace(",", "").replace("_", "")


def recorded_facts(checkpoint: Checkpoint) -> dict[str, tuple[str, str]]:
    """What other files hold of the training, and which file, by the card's keys."""
    return {**_from_recipe(checkpoint), **_from_history(checkpoint)}


def _from_history(checkpoint: Checkpoint) -> dict[str, tuple[str, str]]:
    """The tokens of these weights, and of those that they were begun from, in the history of the units."""
    from legible_core.training.unit_history import FILE, UnitHistory

    history = None
    if not checkpoint.ordinary:
        history = UnitHistory.load(checkpoint.path, checkpoint.hash, checkpoint.config)
    tokens = {each.hash: str(each.tokens) for each in (history.snapshots if history is not None else ())}
    found = {}
    if checkpoint.hash in tokens:
        found["tokens"] = (tokens[checkpoint.hash], FILE)
    begun, at = checkpoint.card.fields.get("begun_from"), checkpoint.card.fields.get("begun_at_tokens")
    if begun in tokens:
        found["begun_at_tokens"] = (tokens[begun], FILE)
    elif at in tokens.values():
        found["begun_from"] = (next(hash for hash, count in tokens.items() if count == at), FILE)
    return found


def _from_recipe(checkpoint: Checkpoint) -> dict[str, tuple[str, str]]:
    """What the recipe of a shipped checkpoint makes, decay included; nothing of others, which may stop at any step."""
    from app.commands.shipped import ships
    from app.commands.train import card_fields
    from app.paths import resource
    from legible_core.training.recipe import load_recipe

    said = checkpoint.card.fields.get("recipe", "")
    named = PurePosixPath(said if "/" in said else f"recipes/{said}.toml")
    if not said or not ships(checkpoint) or named.parts[0] != "recipes" or ".." in named.parts:
        return {}
    try:
        path = resource(str(named))
    except NotFound:
        return {}
    recipe = load_recipe(path)
    batch = recipe.schedule.batch_tokens
    last = recipe.steps + recipe.schedule.decay_tokens // batch
    facts = card_fields(recipe, {"step": last, "tokens": last * batch, "decay_from": recipe.steps})
    return {key: (facts[key], str(named)) for key in FROM_RECIPE}


# ---- the tables ------------------------------------------------------------------------------------------------------


def _tables(body: str, section: str, anew: Collection[str]) -> list[str]:
    """A line for each line of the card's generated part that differs, or one where they are not the same tables.

    anew: the headings of what was measured for this.
    """
    old = body.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    new = section.splitlines()
    if not old:
        return ["the tables: not on the card"]
    if len(old) != len(new):
        return [f"the tables: {len(old)} lines on the card, now {len(new)}"]
    wrong, heading = [], ""
    for was, now in zip(old, new, strict=True):
        heading = now if now.startswith("#") else heading
        if was != now and (heading not in anew or not _agree_rows(was, now)):
            wrong.append(f"the tables: {was} on the card, now {now}")
    return wrong


def _agree_rows(was: str, now: str) -> bool:
    cells = zip(was.split("|"), now.split("|"), strict=False)
    return was.count("|") == now.count("|") and all(_agree_cells(a.strip(), b.strip()) for a, b in cells)


def _agree_cells(was: str, now: str) -> bool:
    """As `_agree`. Numbers of many digits are perplexities where an error stands beside them, and else counts."""
    return _agree(was, now, PERPLEXITY_ROUNDING if "±" in now else 0.0)


def _agree(was: str, now: str, relative: float = 0.0) -> bool:
    """Whether two texts say the same, their numbers to within one of the last written digit, or to `relative`."""
    a, b = was.replace(",", "").split(), now.replace(",", "").split()
    words = zip(a, b, strict=False)
    return len(a) == len(b) and all(_same_word(x.rstrip(".;"), y.rstrip(".;"), relative) for x, y in words)


def _same_word(was: str, now: str, relative: float) -> bool:
    try:
        return same(was, float(now), now, relative)
    except ValueError:
        return was == now
