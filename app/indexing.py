"""Which names can be searched, and the job that makes them searchable; imports no torch.

    state = look(queue, NamesIndex(database), checkpoints)      # submits a job for what is new or was named anew
    state.searched                                              # index id → checkpoint
    state.pending                                               # what a search over them lacks, and why

A server looks once when it starts, every search looks again, and a scan that ends on a worker asks for it at once.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app.job_types import BACKGROUND
from app.names_index import LEADING, NamesIndex, Ready, source_of, stamp_of
from app.search_query import spelled
from legible_core.errors import LegibleError, NotFound
from legible_core.naming.columns import lifts
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.token_service import TokenizerService

if TYPE_CHECKING:
    from app.jobs import Job, Queue
    from app.worker import Context, Outcome

log = logging.getLogger("legible")

KIND = "index"
DESCRIBED = 5_000  # tokens that the tokenizer's process is asked for at a time


@dataclass(frozen=True, slots=True)
class Pending:
    """A checkpoint whose names cannot be searched, or only as they were before; `job` makes them, or failed to."""

    slug: str
    said: str
    job: int
    failed: bool
    share: float | None


@dataclass(frozen=True, slots=True)
class Searchable:
    """`searched`: index id → checkpoint. `indexes`: the same indexes, with their labels. `unnamed`: never scanned."""

    searched: Mapping[int, Checkpoint]
    indexes: tuple[Ready, ...]
    pending: tuple[Pending, ...]
    unnamed: tuple[str, ...]


def look(queue: Queue, index: NamesIndex, checkpoints: Iterable[Checkpoint]) -> Searchable:
    """What can be searched now; one job is submitted for each checkpoint whose names are new."""
    ready = index.ready()
    searched: dict[int, Checkpoint] = {}
    pending: list[Pending] = []
    unnamed: list[str] = []
    for checkpoint in checkpoints:
        stamp = stamp_of(checkpoint.path)
        if stamp is None:
            unnamed.append(checkpoint.slug)
            continue
        found = ready.get(checkpoint.hash)
        if found is not None and found.id not in searched:
            searched[found.id] = checkpoint
        if found is None or found.stamp != stamp:
            pending.append(_pending(queue, checkpoint, stamp, found))
    indexes = tuple(found for found in ready.values() if found.id in searched)
    return Searchable(searched, indexes, tuple(pending), tuple(unnamed))


def look_soon(queue: Queue) -> threading.Thread:
    """Look in the background, as a server does when it starts: hashing large checkpoints takes its time."""
    from app.catalogue import Catalogue
    from app.store import Store

    def work() -> None:
        try:
            # A survey of its own: the pages' one is some seconds old at most, counted from a visitor's first look.
            look(queue, NamesIndex(queue.database), Catalogue(Store(queue.database)).checkpoints())
        except Exception as error:  # a search looks again
            log.warning("the names of the checkpoints were not looked at: %s", error)

    thread = threading.Thread(target=work, name="names", daemon=True)
    thread.start()
    return thread


def submit(queue: Queue, checkpoint: Checkpoint, stamp: str) -> Job:
    """The job that indexes these names: one for each state of the files."""
    return queue.submit(KIND, _key(checkpoint, stamp), {"slug": checkpoint.slug, "checkpoint": checkpoint.hash},
                        priority=BACKGROUND)  # fmt: skip


def handle(context: Context) -> Outcome:
    """The worker's job: payload `checkpoint` (its hash) and `slug`. Yields to readings between chunks of rows.

    Names that are indexed already are left alone, however often they are written anew with the same content.
    """
    from app.catalogue import Catalogue
    from app.worker import Outcome

    catalogue = Catalogue(context.store)
    checkpoint = catalogue.get(context.payload["checkpoint"])
    index = NamesIndex(context.store.database)
    context.stage("load")
    source = source_of(checkpoint.path)
    names = Names.load(checkpoint.path, checkpoint_hash=checkpoint.hash) if source is not None else None
    if source is None or names is None:
        raise NotFound(
            f"The names beside {checkpoint.slug} belong to other weights.", hint="Scan it: `legible scan` names it."
        )
    found = index.ready().get(checkpoint.hash)
    if found is not None and found.names_hash == source.names_hash:
        index.touch(found, source.stamp)
        return Outcome({"index": found.id})
    texts = _texts(checkpoint, names)
    context.stage("run")
    made = index.build(checkpoint.hash, names, source, texts, between=context.between_batches)
    context.stage("store")
    index.sweep({known.hash for known in catalogue.checkpoints()}, between=lambda *_: context.between_batches())
    return Outcome({"index": made})


def _pending(queue: Queue, checkpoint: Checkpoint, stamp: str, found: Ready | None) -> Pending:
    job = queue.find(_key(checkpoint, stamp))
    if job is None or job.state == "done":  # done, and yet not there: its database was restored, or forgot it
        job = submit(queue, checkpoint, stamp)
    if job.state in ("failed", "cancelled"):
        reason = str((job.error or {}).get("message", "the job was cancelled")).rstrip(".")
        said = f"cannot be searched: {reason[:1].lower()}{reason[1:]}."
    elif found is not None:
        said = "was named anew and is being indexed; until then its old names are searched."
    else:
        said = "is being indexed and is not searched yet."
    return Pending(checkpoint.slug, said, job.id, not job.active, job.share)


def _key(checkpoint: Checkpoint, stamp: str) -> str:
    return f"{KIND}:{checkpoint.hash}:{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"


def _texts(checkpoint: Checkpoint, names: Names) -> dict[int, tuple[str, str]]:
    """Text and chip of every token in a list; by its chip alone where the tokenizer cannot be used."""
    layers = range(names.config.n_layers)
    listed = [names._arrays[f"{side}.tokens"].reshape(-1) for side in ("promote", "rare")]
    ids = np.unique(np.concatenate([*listed, *(lifts(names, layer, LEADING)[2] for layer in layers)])).tolist()
    texts = {int(token): (spelled(names.display(token)), names.display(token)) for token in ids}
    try:
        with TokenizerService(workers=1) as service:
            for start in range(0, len(ids), DESCRIBED):
                for row in service.call("describe", checkpoint.tokenizer_path, ids[start : start + DESCRIBED]):
                    texts[int(row["id"])] = (row["text"], row["display"])
    except LegibleError:
        pass
    return texts
