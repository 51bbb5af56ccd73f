"""An engine over an ordinary model, for `Engine.open`: of what `legible add` registered, or of a folder as it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from legible_core.adapters import registration, source
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.pipeline import Engine, names_of
from legible_core.reading import CheckpointRef, Dtype
from legible_core.registry import Checkpoint
from legible_core.tokens import Tokenizer


def ordinary_folder(folder: Path, dtype: Dtype) -> Checkpoint | None:
    """A folder as transformers saved it, which nobody added; None for any other."""
    if registration.is_registered(folder) or not source.is_ordinary(folder):
        return None
    from legible_core.ordinary.adding import look

    return look(folder, dtype=dtype)


def open_ordinary(checkpoint: OrdinaryCheckpoint, device: str, cache_bytes: int) -> Engine:
    """An engine over an ordinary model; one that nobody added passes its certificate now, or is refused."""
    from legible_core.ordinary.adding import prompts
    from legible_core.ordinary.loading import load

    checkpoint.check_files()
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path, checkpoint.config.vocab_size)
    certified = checkpoint.certificate is not None
    model, certificate = load(
        checkpoint.source,
        checkpoint.config,
        dtype=checkpoint.compute,
        device=device,
        prompts=() if certified else prompts(checkpoint, tokenizer),
        parameters=checkpoint.parameters,
        offload=checkpoint.offload and device != "cpu",
    )
    engine = Engine(
        model,
        CheckpointRef(hash=checkpoint.hash, slug=checkpoint.slug),
        tokenizer,
        names_of(checkpoint),
        dtype=checkpoint.compute,
        cache_bytes=cache_bytes,
    )
    engine.ordinary = checkpoint if certified else dataclasses.replace(checkpoint, certificate=certificate)
    return engine
