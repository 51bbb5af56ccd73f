"""A run's folder: whose it is, its tokenizer and its text. What does not belong to it is refused before a first step.

RUN/recipe.json     what it does            RUN/corpus.json   the hash of the token ids it sees
RUN/tokenizer.json  its tokenizer           RUN/tokens/       those ids (data.py)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from legible_core.errors import Conflict, LegibleError
from legible_core.locks import lock_file
from legible_core.training.data import Corpus, Progress, tokenise, train_tokenizer
from legible_core.training.distributed import first_alone, from_first
from legible_core.training.recipe import Recipe
from legible_core.training.sources import Source
from legible_core.training.state import has_state, write_whole

# What a run may change between two sittings: how long it is, and what it keeps besides.
CHANGEABLE = ("tokens", "decay_tokens", "snapshot_tokens")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep the folder to this run (its first process) while the body trains.

    Raises `Conflict` when another process of this machine trains there: both would write the same state and logs.
    """
    let_go = None
    with first_alone() as first:
        if first and (let_go := lock_file(folder / "training")) is None:
            raise Conflict(
                f"Another training is at work in {folder}; wait for it or stop it, or give --out another folder."
            )
    try:
        yield
    finally:
        if let_go is not None:
            let_go()


def check_owner(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds another recipe's run; only the entries of `CHANGEABLE` may differ, and the note."""
    path = folder / "recipe.json"
    if not path.exists():
        return
    try:
        # Read as a recipe first: one written before an entry existed has that entry's default.
        theirs = Recipe.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, LegibleError):
        raise Conflict(f"{path} is not what a run writes; give --out another folder.") from None
    mine, other = _particular(recipe), _particular(theirs)
    if mine != other:
        names = [name for name in sorted(mine.keys() | other.keys()) if mine.get(name) != other.get(name)]
        raise Conflict(
            f"{folder} holds a run of another recipe (it differs in {', '.join(names[:3])}); give --out another folder."
        )


def claim(folder: Path, recipe: Recipe, tokenizer: Tokenizer, given: Path | None, corpus: Corpus) -> None:
    """Mark the folder as this recipe's. Only after every check, so that a recipe that was refused can be mended."""
    own = folder / "tokenizer.json"
    if not own.exists() or _read(own).to_str() != tokenizer.to_str():
        # A given one byte for byte: a checkpoint's hash covers the file.
        write_whole(own, tokenizer.to_str(pretty=True).encode() if given is None else given.read_bytes())
    text = {"sha256": corpus.sha256, "tokens": len(corpus.ids), "source": corpus.name}
    for name, data in (("corpus.json", text), ("recipe.json", recipe.to_json())):
        write_whole(folder / name, (json.dumps(data, indent=1) + "\n").encode())


def find_tokenizer(folder: Path, recipe: Recipe, source: Source, given: Path | None) -> Tokenizer:
    """The run's own where it has one, else the given one, else one trained on the text.

    Raises `Conflict` when a run that has begun has another one than is given, or the recipe another size.
    """
    return Tokenizer.from_str(from_first(lambda: _find(folder, recipe, source, given).to_str()))


def find_corpus(
    folder: Path, recipe: Recipe, source: Source, tokenizer: Tokenizer, cache: Path | None, progress: Progress | None
) -> Corpus:
    """The text's token ids; raises `Conflict` when a run that has begun was trained on others."""
    place = cache or folder / "tokens"
    with first_alone():
        corpus = tokenise(source, tokenizer, place, progress, max_tokens=recipe.data.max_tokens)
    before = folder / "corpus.json"
    if has_state(folder / "state") and before.exists():
        try:
            known = json.loads(before.read_text(encoding="utf-8"))
            wanted = str(known["sha256"]), int(known["tokens"])
        except (OSError, ValueError, KeyError, TypeError):
            raise Conflict(f"{before} is not what a run writes; give --out another folder.") from None
        if wanted[0] != corpus.sha256:
            raise Conflict(
                f"The text has changed since this run began: it gives {len(corpus.ids):,} tokens with hash "
                f"{corpus.sha256[:12]}, the run saw {wanted[1]:,} with hash {wanted[0][:12]}; give the same text, or "
                "--out another folder.",
                code="corpus_changed",
                hint=f"If the text is the same, its tokens were altered: remove {place}, and they are made anew.",
            )
    return corpus


def _find(folder: Path, recipe: Recipe, source: Source, given: Path | None) -> Tokenizer:
    own = folder / "tokenizer.json"
    made = False
    if given is not None:
        tokenizer = _read(given)
        if has_state(folder / "state") and own.exists() and _read(own).to_str() != tokenizer.to_str():
            raise Conflict(
                f"The run in {folder} was trained with another tokenizer than {given}; leave --tokenizer out, or give "
                "--out another folder."
            )
    elif own.exists():
        tokenizer = _read(own)
    else:
        tokenizer, made = train_tokenizer(source, recipe.data.vocab_size), True
    if (size := tokenizer.get_vocab_size()) != recipe.data.vocab_size:
        raise Conflict(
            f"The tokenizer has {size} entries but the recipe's data.vocab_size is {recipe.data.vocab_size}; "
            + (f"the text is too small for more: give more text, or make that {size}." if made else "make them equal.")
        )
    return tokenizer


def _particular(recipe: Recipe) -> dict[str, Any]:
    """A recipe's entries by dotted name, without what may change."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(each, f"{name}.{key}" if name else key)
        else:
            found[name] = value

    walk(json.loads(json.dumps(recipe.to_json())), "")
    for name in ("note", *(f"schedule.{entry}" for entry in CHANGEABLE)):
        found.pop(name, None)
    return found


def _read(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise LegibleError(
            f"The tokenizer {path} cannot be used: {error}.",
            code="bad_tokenizer",
            hint="Give a tokenizer.json that the tokenizers library wrote.",
        ) from None
