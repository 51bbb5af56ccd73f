"""What the scan of an ordinary model does otherwise than a legible checkpoint's: loading, sampling, storing, words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from legible_core.errors import LegibleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from legible_core.adapters.model import OrdinaryModel
    from legible_core.adapters.registration import OrdinaryCheckpoint
    from legible_core.naming.contexts import Contexts
    from legible_core.naming.names import Names
    from legible_core.ordinary.scan import OrdinaryScan
    from legible_core.registry import Checkpoint
    from legible_core.tokens import Tokenizer


def in_dtype(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """The same checkpoint, computed in `dtype`; as it was added where that is empty.

    Raises `LegibleError` for another dtype, and for a legible checkpoint, which is always scanned in float32.
    """
    from legible_core.adapters.registration import OrdinaryCheckpoint

    if not dtype:
        return checkpoint
    if not isinstance(checkpoint, OrdinaryCheckpoint):
        raise LegibleError(
            f"--dtype belongs to ordinary models; {checkpoint.slug} is legible and is scanned in float32. "
            "Leave it away.",
            code="bad_dtype",
        )  # fmt: skip
    match dtype:
        case "float32" | "bfloat16":
            return replace(checkpoint, compute=dtype)
    raise LegibleError(f"--dtype is {dtype[:40]!r}; it must be float32 or bfloat16.", code="bad_dtype")


def place_of(checkpoint: Checkpoint, data: Path) -> Path | None:
    """Where what is measured goes of a model's own folder, as transformers saved it: to its registration, if any.

    None leaves it to the checkpoint. Raises `LegibleError` where nobody added the model: its folder is left alone.
    """
    from legible_core.adapters.registration import OrdinaryCheckpoint

    if not isinstance(checkpoint, OrdinaryCheckpoint) or checkpoint.path != checkpoint.source:
        return None
    registered = data / "ordinary" / checkpoint.hash[:16]
    if registered.is_dir():
        return registered
    raise LegibleError(
        f"Nobody added {checkpoint.slug} yet, and nothing is written into a model's own folder.",
        code="not_added",
        hint=f"Add it with `legible add {checkpoint.path}`, or name another place with --out.",
    )


def device_of(checkpoint: OrdinaryCheckpoint, device: str) -> str:
    """The device asked for, else the one that the model was added for, else the first GPU where there is one."""
    return tried(checkpoint.device if device == "auto" else device)


def tried(device: str) -> str:
    """The device, tried, `auto` the first GPU where there is one; raises `LegibleError` where it cannot be used."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch without CUDA asserts
        raise unusable(device, error) from None
    return device


def unusable(device: str, error: Exception) -> LegibleError:
    """Why a device cannot be used, in one line."""
    reason = str(error).splitlines()[0].rstrip(".")
    return LegibleError(
        f"The device {device!r} cannot be used ({reason}); use cpu, or cuda where there is a GPU.", code="bad_device"
    )


def load(checkpoint: OrdinaryCheckpoint, device: str) -> OrdinaryModel:
    """The model; one that nobody added passes its certificate first, or is refused."""
    from legible_core.pipeline import Engine

    model = Engine.open(checkpoint, device=device_of(checkpoint, device)).model
    return cast("OrdinaryModel", model)


def begin_of(checkpoint: OrdinaryCheckpoint) -> int | None:
    """The token that its tokenizer puts before every text, if it does."""
    return checkpoint.bos.id if checkpoint.bos is not None and checkpoint.bos.default else None


def end_of(checkpoint: OrdinaryCheckpoint) -> bytes | None:
    """The token that ends a text, as the tokenizer writes it; None where it names none."""
    found = checkpoint.special.get("eos_token")
    return None if found is None else found.encode()


def written_ids(
    checkpoint: OrdinaryCheckpoint,
    tokenizer: Tokenizer,
    tokens: int,
    seed: int,
    device: str,
    between: Callable[[int], None] | None,
) -> Any:
    """The ids of a text that the model writes: Hugging Face's own, loaded for it and let go again."""
    import numpy as np

    from legible_core.ordinary.loading import check_size, hugging_face
    from legible_core.ordinary.observing import sample

    device = device_of(checkpoint, device)
    checkpoint.check_files()
    check_size(checkpoint.parameters, checkpoint.compute, device, None)
    plain = hugging_face(checkpoint.source, checkpoint.compute, device)
    name = end_of(checkpoint)
    end = None if name is None else tokenizer.find(name)
    parts = []
    if between is not None:
        between(0)
    for windows in sample(plain, checkpoint.config, tokens, begin=begin_of(checkpoint), seed=seed, end=end):
        parts.append(windows.reshape(-1))
        if between is not None:
            between(sum(part.size for part in parts))
    return np.concatenate(parts)


def store(
    scan: OrdinaryScan,
    checkpoint: OrdinaryCheckpoint,
    tokenizer: Tokenizer,
    folder: Path,
    between: Callable[[], None] | None,
) -> Names:
    """Write the names of a finished scan, and its contexts where it collected them."""
    from legible_core.ordinary.names import write_ordinary_names

    names = write_ordinary_names(folder, scan, tokenizer, between=between)
    if scan.collector is not None:
        store_contexts(scan, checkpoint, tokenizer, folder)
    return names


def store_contexts(scan: OrdinaryScan, checkpoint: OrdinaryCheckpoint, tokenizer: Tokenizer, folder: Path) -> Contexts:
    """Write the contexts that a finished scan collected."""
    import numpy as np

    from legible_core.naming.collect import write_contexts
    from legible_core.naming.contexts import Source

    assert scan.collector is not None
    corpus, name = scan.corpus, end_of(checkpoint)
    return write_contexts(
        folder,
        scan.collector,
        np.concatenate(scan.parts),
        Source("corpus" if corpus.sampled is None else "sampled", corpus.name, corpus.tokens, corpus.sampled),
        tokenizer,
        checkpoint_hash=checkpoint.hash,
        end_of_document=None if name is None else tokenizer.find(name),
        window_of=scan.windows_of,
    )


def rows(names: Names) -> list[str]:
    """The scan's figures by layer as text."""
    found = names.meta["values"]
    lines = [
        "An ordinary model: its units have no rails, so SELECTIVE, crisp and ON are undefined.",
        f"{'per cent':>10} {'units':>7} {'never > 0':>10} {'> 0, median':>12} {'agreement 0.8':>14} {'labelled':>9}",
    ]
    for name, row in [*((f"L{i}", layer) for i, layer in enumerate(found["layers"])), ("all", found["all"])]:
        figures = (row[key] * 100 for key in ("never", "above", "agreement", "labelled"))
        lines.append(f"{name:>10} {row['units']:>7,} " + "{:10.1f} {:12.1f} {:14.1f} {:9.1f}".format(*figures))
    return lines


__all__ = ["begin_of", "end_of", "in_dtype", "load", "place_of", "rows", "store", "store_contexts", "written_ids"]
