"""Which checkpoints there are, and whether each is what it claims to be; imports no torch.

    checkpoint = open_checkpoint(folder)         # validated: card, manifest hash, config, header against config
    entries = survey([models_dir], added)        # all of them, each with its checkpoint or the reason it is refused
    checkpoint = resolve("novel-legible", entries)

Nothing is allocated by what a file claims before the claim is checked, and no pickled file is ever opened. Reading the
weights themselves (finiteness, tensors) is `legible_core.checkpoint`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from legible_core import folder as files
from legible_core.config import ModelConfig
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound, Unavailable
from legible_core.expected_tensors import check_tensors as check_tensors
from legible_core.expected_tensors import check_vocabulary, read_config, validate_header
from legible_core.expected_tensors import expected_tensors as expected_tensors
from legible_core.folder import Card, TensorInfo
from legible_core.reading import Dtype
from legible_core.token_service import TokenizerService
from legible_core.units import PLAIN_NAMES

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?=[a-z0-9])){0,63}")

# Names: none, only one of the two files, a names.json that is no JSON object, those of other weights, those of these.
NamesState = Literal["none", "names.json", "names.safetensors", "unreadable", "others", "own"]

# What a card may say of legibility, as shares from 0 to 1 over all operands (`value_selective`: over all channels of
# bounded heads); shown only beside the quality of the same checkpoint.
LEGIBILITY = ("crisp", "on", "selective", "constant", "alive", "nameable", "labelled", "value_selective")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that passed every check that needs no torch."""

    slug: str
    path: Path
    hash: str
    config: ModelConfig
    card: Card
    parameters: int
    bytes: int
    dtype: str
    origin: str = "shipped"

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.parameters

    @property
    def tokenizer_path(self) -> Path:
        return self.path / files.TOKENIZER

    @property
    def ordinary(self) -> bool:
        """Whether the model was not built to be read; it is then an `adapters.registration.OrdinaryCheckpoint`."""
        return self.config.ordinary

    def compute_dtype(self, asked: Dtype) -> Dtype:
        """The dtype of its readings where `asked` is the installation's; an ordinary one has its own."""
        return asked

    @property
    def names_state(self) -> NamesState:
        """What a scan left beside the weights, by the hash that names.json gives; the names themselves are not read."""
        there = [name for name in files.NAMES if (self.path / name).is_file()]
        if len(there) < len(files.NAMES):
            return there[0] if there else "none"  # type: ignore[return-value]
        named = _named_hash(self.path)
        return "unreadable" if named is None else "own" if named == self.hash else "others"

    @property
    def has_names(self) -> bool:
        """Whether there are names of these very weights."""
        return self.names_state == "own"

    @property
    def title(self) -> str:
        return self.card.fields.get("title", self.slug)

    @property
    def kind(self) -> str:
        """The architecture in a few words, such as `Boolean values, half of the units named`."""
        value, ff = self.config.attention.value, self.config.feed_forward
        special, heads = sum(self.config.attention.n_special), self.config.n_layers * self.config.n_heads
        values = "Boolean values" if value == "boolean" else f"{value} values"
        if 0 < special < heads:
            values += f" on {100 * special / heads:.0f} % of the heads"
        share = ff.n_named / ff.d_ff
        plain = PLAIN_NAMES[ff.activation]
        units = {0.0: f"{plain} units", 0.5: "half of the units named", 1.0: "all units named"}
        said = units.get(share, f"{100 * share:.0f} % of the units named")
        return f"{values}, {said}" + (f", {plain} beside them" if share and plain != "GELU" else "")

    @property
    def tokens_trained(self) -> int | None:
        tokens = self.card.number("tokens")
        return None if tokens is None else int(tokens)

    @property
    def decay_tokens(self) -> int | None:
        """Of `tokens_trained`, those over which the rate fell: 0 at a constant rate, None where no card says it."""
        tokens = self.card.number("decay_tokens")
        return None if tokens is None or tokens < 0 else int(tokens)

    @property
    def perplexity(self) -> float | None:
        """Per token, on the text that the card names; from the loss where only that is given."""
        perplexity, loss = self.card.number("perplexity"), self.card.number("loss")
        if perplexity is None and loss is not None and loss < 700:
            return math.exp(loss)
        return perplexity

    @property
    def legibility(self) -> dict[str, float]:
        """The card's legible figures, shares from 0 to 1; empty when the card gives no quality beside them."""
        figures = {key: self.card.share(key) for key in LEGIBILITY}
        known = {key: value for key, value in figures.items() if value is not None}
        return known if self.perplexity is not None else {}

    def to_json(self) -> dict[str, Any]:
        """What `legible models --json` prints for it."""
        return {
            "slug": self.slug,
            "title": self.title,
            "hash": self.hash,
            "kind": self.kind,
            "origin": self.origin,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "config": self.config.to_json(),
            "tokens_trained": self.tokens_trained,
            "perplexity": self.perplexity,
            "legibility": self.legibility,
            "named": self.has_names,
            "card": dict(self.card.fields),
            "path": str(self.path),
        }


@dataclass(frozen=True)
class Entry:
    """A folder that was looked at: its checkpoint, or the error that refuses it."""

    slug: str
    path: Path
    origin: str
    checkpoint: Checkpoint | None = None
    error: LegibleError | None = None


def check_slug(slug: str) -> str:
    """The slug itself, when it can stand in an address and a path; raises `LegibleError` otherwise."""
    if not isinstance(slug, str) or not _SLUG.fullmatch(slug):
        raise LegibleError(
            f"The slug {str(slug)[:80]!r} is not usable: 1 to 64 of a-z, 0-9, '-', '_' and single dots, "
            "starting with a letter or digit.",
            code="bad_slug",
        )
    return slug


def slug_conflict(slug: str, there: str) -> Conflict:
    """The error of a slug that names the weights of the hash `there` already."""
    return Conflict(
        f"The slug {slug!r} already names another checkpoint ({there[:12]}).",
        hint="Choose another with --slug, or let it name these weights from now on with --move; stored readings keep "
        "the checkpoint that they were made with.",
    )


def slug_for(folder: Path) -> str:
    """A slug out of a folder's name: `My Model (2)` is my-model-2."""
    words = re.findall(r"[a-z0-9_.]+", Path(os.path.abspath(folder)).name.lower())
    slug = re.sub(r"\.+", ".", "-".join(words))[:64].strip("-_.")
    return slug or "checkpoint"


def open_checkpoint(
    folder: Path | str, *, slug: str | None = None, origin: str = "shipped", tokenizer: TokenizerService | None = None
) -> Checkpoint:
    """Validate a checkpoint folder without reading its weights into memory.

    Checks the config, the header of the weights against it and against the file's size, the card, and its hash
    against the manifest of weights, config and tokenizer. With a `tokenizer` service also that the tokenizer can be
    used and has the config's vocabulary. `slug` defaults to the folder's name, made into one.

    Raises `NotFound` when there is no such folder, `Corrupt` with one sentence for anything else.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotFound(f"There is no checkpoint folder {str(folder)!r}.")
    folder = folder.resolve()
    slug = check_slug(slug if slug is not None else slug_for(folder))
    from legible_core.adapters import registration, source

    try:
        if registration.is_registered(folder):
            return registration.open_registered(folder, slug, origin)
        if source.is_ordinary(folder):
            raise Corrupt("it is an ordinary model, which `legible add` must check and register first", code="ordinary")
        if not os.path.lexists(folder / files.WEIGHTS) and (pickled := files.pickled_instead(folder)):
            raise pickled
        config = read_config(folder)
        tensors = validate_header(folder, config)
        card = Card.parse(files.read_text(folder, files.CARD, files.MAX_CARD_BYTES))
        identity = identify(folder)
        _check_card(card, identity)
        checkpoint = Checkpoint(
            slug=slug,
            path=folder,
            hash=identity,
            config=config,
            card=card,
            parameters=sum(math.prod(info.shape) for info in tensors.values()),
            bytes=max(info.end for info in tensors.values()),
            dtype=_main_dtype(tensors),
            origin=origin,
        )
        # Read once here, so that a card with a broken figure is refused rather than failing a page later.
        _ = (checkpoint.tokens_trained, checkpoint.decay_tokens, checkpoint.legibility)
        if tokenizer is not None:
            check_vocabulary(config, tokenizer.call("facts", checkpoint.tokenizer_path)["vocab_size"])
    except LegibleError as error:
        raise refusal(slug, error) from None
    return checkpoint


def check_weights(checkpoint: Checkpoint) -> None:
    """Reads all weights, in pieces, and raises `Corrupt` unless every value is finite."""
    try:
        tensors = validate_header(checkpoint.path, checkpoint.config)
        with files.open_inside(checkpoint.path, files.WEIGHTS) as (file, _):

            def read(start: int, stop: int) -> bytes:
                file.seek(start)
                data = file.read(stop - start)
                if len(data) < stop - start:
                    raise Corrupt(f"{files.WEIGHTS} became shorter while it was read")
                return data

            files.check_finite(tensors, read)
    except LegibleError as error:
        raise refusal(checkpoint.slug, error) from None


def identify(folder: Path) -> str:
    """The manifest hash of a folder; files that have not changed since the last look are not hashed again."""
    return files.manifest_hash({name: _hash_of(folder, name) for name in files.MANIFEST_FILES})


def survey(
    roots: Iterable[Path], added: Iterable[tuple[str, Path]] = (), *, tokenizer: TokenizerService | None = None
) -> list[Entry]:
    """Every checkpoint folder directly under `roots` (shipped), and the `added` ones as (slug, folder).

    A folder that is refused is listed with its error; so is a second one under a slug that is taken.
    """
    candidates: list[tuple[str, Path, str]] = []
    for root in roots:
        if root.is_dir():
            try:
                paths = sorted(root.iterdir())
            except OSError as error:
                raise Unavailable(f"The checkpoints in {root} cannot be listed: {error.strerror}.") from None
            for path in paths:
                # A folder without either file is something else, such as a README or a draft.
                looks = any(os.path.lexists(path / name) for name in (files.CONFIG, files.WEIGHTS))
                if looks and not path.name.startswith("."):
                    candidates.append((path.name, path, "shipped"))
    candidates += [(slug, Path(path), "added") for slug, path in added]
    entries: dict[str, Entry] = {}
    refused: list[Entry] = []
    for slug, path, origin in candidates:
        try:
            if slug in entries:
                raise Conflict(
                    f"The slug {slug!r} is already taken by {entries[slug].path}; add this one under another."
                )
            checkpoint = open_checkpoint(path, slug=slug, origin=origin, tokenizer=tokenizer)
            entries[slug] = Entry(slug, path, origin, checkpoint=checkpoint)
        except LegibleError as error:
            refused.append(Entry(slug, path, origin, error=error))
    return [*entries.values(), *refused]


def discover(roots: Iterable[Path], added: Iterable[tuple[str, Path]] = ()) -> list[Checkpoint]:
    """The checkpoints of `survey` that passed."""
    return [entry.checkpoint for entry in survey(roots, added) if entry.checkpoint is not None]


def resolve(slug: str, entries: Iterable[Entry]) -> Checkpoint:
    """The checkpoint with this slug or hash; raises its own error when it is refused, `NotFound` when there is none."""
    entries = list(entries)
    for entry in entries:
        if entry.checkpoint is not None and slug in (entry.slug, entry.checkpoint.hash):
            return entry.checkpoint
    for entry in entries:
        if entry.slug == slug and entry.error is not None:
            raise entry.error
    known = ", ".join(entry.slug for entry in entries if entry.checkpoint is not None) or "none yet"
    raise NotFound(
        f"There is no checkpoint {str(slug)[:80]!r}; there are: {known}.", hint="`legible add FOLDER` adds one."
    )


def refusal(slug: str, error: LegibleError) -> LegibleError:
    """The same error as a whole sentence that names the checkpoint."""
    message = f"The checkpoint {slug} is refused: {error.message.rstrip('.')}."
    if isinstance(error, Unavailable):
        return Unavailable(message, code=error.code, hint=error.hint, status=error.status)
    return Corrupt(message, code=error.code if error.code != "not_found" else None, hint=error.hint)


def _check_card(card: Card, identity: str) -> None:
    claimed = card.fields.get("hash")
    if claimed is None:
        raise Corrupt(f"its card (README.md) gives no hash; its front must hold the line `hash: {identity}`")
    if claimed.removeprefix("sha256:").lower() != identity:
        raise Corrupt(
            f"its card (README.md) is for the hash {claimed[:20]}…, and its files have {identity[:12]}…; "
            "the card or one of the files is not the original"
        )


def _main_dtype(tensors: dict[str, TensorInfo]) -> str:
    """The dtype in which most of the bytes are stored."""
    return max(files.DTYPE_BYTES, key=lambda dtype: sum(t.end - t.start for t in tensors.values() if t.dtype == dtype))


def _named_hash(folder: Path) -> str | None:
    """The hash of the weights that names.json is about, read anew where the file has changed; None without one."""
    path = folder / files.NAMES[0]
    try:
        status = path.stat()
    except OSError:
        return None
    return _cached_named_hash(path, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _cached_named_hash(path: Path, *_stamps: int) -> str | None:
    try:
        named = files.parse_json(files.read_text(path.parent, path.name, files.MAX_NAMES_BYTES), path.name)
    except (LegibleError, OSError):
        return None
    return str(named.get("checkpoint", ""))


def _hash_of(folder: Path, name: str) -> str:
    with files.open_inside(folder, name) as (_, status):
        key = (str(folder), name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _cached_hash(key)


@functools.lru_cache(maxsize=256)
def _cached_hash(key: tuple[str, str, int, int, int, int, int]) -> str:
    return files.file_hash(Path(key[0]), key[1])
