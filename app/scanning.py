"""A scan from checkpoint and text to names and contexts, for the command line and the worker alike."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from app import scanning_ordinary as ordinary
from legible_core.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from app.worker import Context, Outcome
    from legible_core.adapters.registration import OrdinaryCheckpoint
    from legible_core.model.transformer import Transformer
    from legible_core.naming.contexts import Contexts
    from legible_core.naming.names import Names
    from legible_core.naming.resumable import Resumable
    from legible_core.ordinary.scan import OrdinaryScan
    from legible_core.registry import Checkpoint
    from legible_core.tokens import Tokenizer

STATES = "scans"
KINDS = (".txt", ".xz")
SAMPLED = "sampled by this checkpoint"
Between = Callable[[int], None]


@dataclass(frozen=True)
class Text:
    """What to scan: a corpus file, or `sample` tokens that the checkpoint writes itself from `seed`.

    tokens: only the first so many of a corpus.
    """

    corpus: Path | None = None
    sample: int | None = None
    seed: int = 0
    tokens: int | None = None


@dataclass(frozen=True)
class Job:
    """How to scan: batch size in windows, device, shard (i, n), where states are kept, the model if loaded.

    load: gives the model when it is needed, instead of loading it here.
    """

    state: Path | None
    batch: int = 8
    device: str = "auto"
    restart: bool = False
    shard: tuple[int, int] = (0, 1)
    contexts: bool = True
    between: Between | None = field(default=None, compare=False)
    load: Callable[[], Any] | None = field(default=None, compare=False)


def handle(context: Context, model: Callable[[str], Any] | None = None) -> Outcome:
    """The worker's scan job: payload `slug`, and `corpus` (a path on its machine) or `sample` (tokens) or both.

    model: gives the loaded one of a checkpoint's hash, where the worker shares it; without, it is loaded here.
    Optionally `tokens` and `out`. With both, the corpus makes the names and the sampled text the contexts. Yields to
    readings between batches, and says how far it is: `sample` while the model writes a text, `run`, `store`, and
    `contexts` where those are made of another text. A cancelled or stopped scan leaves its state, and so, up to half a
    minute of work, does a killed one: the next attempt goes on from there.
    """
    from app.catalogue import Catalogue
    from app.worker import Outcome

    payload = context.payload
    checkpoint = Catalogue(context.store).get(payload["slug"])
    out = Path(payload["out"]) if payload.get("out") else None
    check_writable(out or checkpoint.path)
    context.stage("load")
    corpus = Path(payload["corpus"]) if payload.get("corpus") else None
    sample = payload.get("sample")
    job = Job(
        context.settings.data_dir / STATES,
        device=context.settings.device,
        contexts=corpus is None or sample is None,
        between=_told(context, "sample", None if corpus is not None else sample),
        load=None if model is None else lambda: model(checkpoint.hash),
    )
    text = Text(corpus, None if corpus is not None else sample, tokens=payload.get("tokens"))
    with contextlib.closing(prepare_scan(checkpoint, text, job)) as scan:
        context.computes_on(str(scan.model.token_embedding.device))
        context.stage("run", scan.done, scan.total)
        for progress in scan.run():
            try:
                context.between_batches(progress.done, progress.total)
            except BaseException:  # cancelled, or the worker ends: between batches the state is whole
                scan.save()
                raise
        context.stage("store")
        names = finish(scan, checkpoint, out, between=context.between_batches)
    if corpus is not None and sample is not None:
        sampled_contexts(checkpoint, scan.model, sample, out, between=_told(context, "contexts", sample))
    figures = ("checkpoint", "corpus", "quality", "values" if checkpoint.ordinary else "legibility")
    return Outcome({key: names.meta[key] for key in figures})


def _told(context: Context, stage: str, tokens: int | None) -> Between:
    """Says of a text that the model writes, in whole windows, how many of the tokens asked for are done."""

    def between(done: int) -> None:
        if tokens is None:
            return context.between_batches()
        if done == 0:
            context.stage(stage, 0, tokens)
        context.between_batches(min(done, tokens), tokens)

    return between


def prepare(
    checkpoint: Checkpoint,
    corpus: Path,
    state: Path,
    *,
    tokens: int | None = None,
    batch: int = 8,
    device: str = "auto",
    restart: bool = False,
    between: Between | None = None,
) -> Resumable:
    """`prepare_scan` of a corpus file."""
    return prepare_scan(
        checkpoint, Text(corpus, tokens=tokens), Job(state, batch, device, restart=restart, between=between)
    )


def prepare_scan(checkpoint: Checkpoint, text: Text, job: Job) -> Resumable:
    """Load the checkpoint, make the text's ids, and take up the saved state of this very scan if there is one.

    `job.state` is the folder of all scans' states; each has a folder of its own in it, named after checkpoint and text.
    Raises `LegibleError` when there is no text, the device cannot be used, or the same scan is running already.
    """
    return _scan(checkpoint, _inputs(checkpoint, text, job), text, job)


def merged(checkpoint: Checkpoint, text: Text, job: Job, count: int) -> Resumable:
    """The finished shards 1 to `count` of a scan as one; raises `NotFound` naming those that are not finished."""
    inputs = _inputs(checkpoint, text, job)
    shards = [_scan(checkpoint, inputs, text, replace(job, shard=(index, count))) for index in range(count)]
    missing = [f"{scan.shard[0] + 1}/{count}" for scan in shards if not scan.finished]
    if missing:
        for scan in shards:
            scan.close()
        raise NotFound(
            f"Of this scan the shards {', '.join(missing)} are not finished in {job.state}; run them with --shard."
        )
    for scan in shards[1:]:
        shards[0].merge(scan)
    return shards[0]


def _inputs(checkpoint: Checkpoint, text: Text, job: Job) -> tuple[Any, Any, int | None, str]:
    """The model, and the text's ids, end-of-text id and name."""

    def model() -> Any:
        return job.load() if job.load is not None else load_any(checkpoint, job.device)

    if text.corpus is not None:
        ids, end, name = corpus_ids(checkpoint, text.corpus, text.tokens, job.between)
        return model(), ids, end, name
    # An ordinary model's text is made before it is loaded as it is scanned.
    loaded = None if checkpoint.ordinary else model()
    ids, _, name = sampled_ids(checkpoint, loaded, text.sample or 0, text.seed, job.between, device=job.device)
    # The windows of a sampled text are its documents, and its halves are whole windows.
    return loaded or model(), ids, None, name


def _scan(checkpoint: Checkpoint, inputs: tuple[Any, Any, int | None, str], text: Text, job: Job) -> Resumable:
    from legible_core.naming.scan import Scan

    model, ids, end, name = inputs
    # In float32 the key names no dtype: what was saved before there were others is found again.
    dtype = str(model.token_embedding.dtype).removeprefix("torch.")
    parts = [checkpoint.hash, hashlib.sha256(ids.tobytes()).hexdigest(), job.batch, job.contexts]
    key = json.dumps(parts if dtype == "float32" else [*parts, dtype])
    named = hashlib.sha256(key.encode()).hexdigest()[:24] + _suffix(job.shard)
    folder = None if job.state is None else job.state / named
    options: dict[str, Any] = {
        "checkpoint_hash": checkpoint.hash,
        "end_of_document": end,
        "batch": job.batch,
        "state": folder,
        "restart": job.restart,
        "shard": job.shard,
        "contexts": job.contexts,
        "sampled": None if text.corpus is not None else text.seed,
    }
    if checkpoint.ordinary:
        from legible_core.ordinary.scan import OrdinaryScan

        return OrdinaryScan(model, ids, name, begin=ordinary.begin_of(_ordinary(checkpoint)), **options)
    return Scan(model, ids, name, **options)


def _suffix(shard: tuple[int, int]) -> str:
    return "" if shard[1] == 1 else f"-{shard[0] + 1}of{shard[1]}"


def corpus_ids(checkpoint: Checkpoint, corpus: Path, limit: int | None, between: Between | None) -> Any:
    """The ids of a corpus file, its end-of-text id, its name."""
    from legible_core.naming.corpus import END_OF_TEXT, token_stream
    from legible_core.training.data import documents

    ends = ordinary.end_of(_ordinary(checkpoint)) if checkpoint.ordinary else END_OF_TEXT
    tokenizer = tokenizer_of(checkpoint)
    return *token_stream(documents(corpus), tokenizer, limit=limit, between=between, ends=ends), corpus.name


def sampled_ids(
    checkpoint: Checkpoint,
    model: Any,
    tokens: int,
    seed: int,
    between: Between | None,
    *,
    device: str = "auto",
) -> Any:
    """The ids of a text that the checkpoint writes, the end-of-text id, and what the text is called.

    model: the loaded one of a legible checkpoint; an ordinary one is loaded on `device` for this alone.
    """
    import numpy as np

    from legible_core.naming.corpus import END_OF_TEXT
    from legible_core.naming.sample import sample

    tokenizer = tokenizer_of(checkpoint)
    if checkpoint.ordinary:
        ids = ordinary.written_ids(_ordinary(checkpoint), tokenizer, tokens, seed, device, between)
        return ids, None, SAMPLED
    end = tokenizer.find(END_OF_TEXT)
    parts = []
    if between is not None:
        between(0)
    for windows in sample(model, tokens, seed=seed, end_of_document=end):
        parts.append(windows.reshape(-1))
        if between is not None:
            between(sum(part.size for part in parts))
    return np.concatenate(parts), end, SAMPLED


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer; an ordinary model may have more rows than tokens."""
    from legible_core.tokens import Tokenizer

    return Tokenizer.load(checkpoint.tokenizer_path, checkpoint.config.vocab_size if checkpoint.ordinary else 0)


def _ordinary(checkpoint: Checkpoint) -> OrdinaryCheckpoint:
    return cast("OrdinaryCheckpoint", checkpoint)


def load_any(checkpoint: Checkpoint, device: str) -> Any:
    """As `load_on`, ordinary models too."""
    return ordinary.load(_ordinary(checkpoint), device) if checkpoint.ordinary else load_on(checkpoint, device)


def load_on(checkpoint: Checkpoint, device: str) -> Transformer:
    """The model on the device asked for; raises `LegibleError` where it cannot be used."""
    import torch

    from legible_core.checkpoint import load

    device = ordinary.tried(device)
    try:
        return load(checkpoint, device=torch.device(device))
    except RuntimeError as error:
        if device == "cpu":
            raise
        raise ordinary.unusable(device, error) from None


def check_writable(folder: Path) -> None:
    """Raise Unavailable where names could not be written, before the time of a scan is spent."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unavailable(
            f"The names would be written to {folder}, which cannot be written to ({error.strerror}).",
            code="read_only",
            hint="Make it writable, or choose another folder with --out.",
        ) from None


def finish(
    scan: Resumable, checkpoint: Checkpoint, out: Path | None = None, *, between: Callable[[], None] | None = None
) -> Names:
    """Make and write the names of a finished scan, and its contexts where it collected them; then forget its state."""
    from legible_core.naming.assemble import write_names
    from legible_core.naming.collect import write_contexts
    from legible_core.naming.contexts import Source
    from legible_core.naming.corpus import END_OF_TEXT
    from legible_core.naming.scan import Scan

    tokenizer, folder = tokenizer_of(checkpoint), out or checkpoint.path
    if not isinstance(scan, Scan):
        names = ordinary.store(cast("OrdinaryScan", scan), _ordinary(checkpoint), tokenizer, folder, between)
        scan.discard()
        return names
    names = write_names(folder, scan, tokenizer, between=between)
    if scan.collector is not None:
        import numpy as np

        corpus = scan.corpus
        kind = "corpus" if corpus.sampled is None else "sampled"
        write_contexts(
            folder,
            scan.collector,
            np.concatenate(scan.parts),
            Source(kind, corpus.name, corpus.tokens, corpus.sampled),
            tokenizer,
            checkpoint_hash=checkpoint.hash,
            end_of_document=tokenizer.find(END_OF_TEXT),
        )
    scan.discard()
    return names


def sampled_contexts(
    checkpoint: Checkpoint,
    model: Any,
    tokens: int,
    out: Path | None = None,
    *,
    seed: int = 0,
    between: Between | None = None,
) -> Contexts:
    """Make and write contexts of a text that the checkpoint writes, leaving the names as they are.

    between: called with the tokens done, first of the writing, then of the looking.
    """
    from legible_core.naming.collect import Collector, write_contexts
    from legible_core.naming.contexts import Source
    from legible_core.naming.sample import collect

    if checkpoint.ordinary:
        device = str(model.token_embedding.device)
        ids, end, name = sampled_ids(checkpoint, model, tokens, seed, between, device=device)
        inputs = model, ids, end, name
        scan = _scan(checkpoint, inputs, Text(sample=tokens, seed=seed), Job(None))
        for progress in scan.run():
            if between is not None:
                between(progress.done)
        found = cast("OrdinaryScan", scan)
        return ordinary.store_contexts(found, _ordinary(checkpoint), tokenizer_of(checkpoint), out or checkpoint.path)
    ids, end, name = sampled_ids(checkpoint, model, tokens, seed, between)
    collector = Collector(model.config)
    for done in collect(model, ids, collector):
        if between is not None:
            between(done)
    return write_contexts(
        out or checkpoint.path,
        collector,
        ids,
        Source("sampled", name, len(ids), seed),
        tokenizer_of(checkpoint),
        checkpoint_hash=checkpoint.hash,
        end_of_document=end,
    )
