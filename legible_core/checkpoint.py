"""Save and load a checkpoint folder.

    checkpoint = save(folder, model, tokenizer_path, Card({"title": "…"}), dtype="bfloat16")
    model = load(folder)                              # float32 on the CPU, exactly the bytes that were validated

Matrices are stored in the dtype asked for, vectors (gains, biases, decays) always in float32: they cost nothing, and a
decay near 1 needs its digits. Nothing is folded, centred or re-based on either way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from legible_core import folder as files
from legible_core.config import ModelConfig
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound, TooLarge, Unavailable
from legible_core.folder import Card, TensorInfo
from legible_core.model.transformer import Transformer
from legible_core.registry import (
    Checkpoint,
    check_tensors,
    check_vocabulary,
    identify,
    open_checkpoint,
    refusal,
    slug_for,
)
from legible_core.replace import WRITE_ERRORS, replace_folder, sync, write_reason
from legible_core.tokens import Tokenizer

StoredDtype = Literal["float32", "bfloat16", "float16"]
_STORED: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# What was measured on the weights and is worth nothing without them.
_MEASURED = (
    "names.json", "names.safetensors", "contexts.safetensors", "examples.json", "evaluation.json", "checks.json",
    "edit-lab.json", "accounting.json", "writes.safetensors", "history.safetensors",
)  # fmt: skip


def load(
    checkpoint: Checkpoint | Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    tokenizer: Tokenizer | None = None,
) -> Transformer:
    """The model of a checkpoint, in evaluation mode, computing in `dtype` (float32 or bfloat16) on `device`.

    Given a `Checkpoint`, its files must still have its hash. A caller that has loaded its tokenizer passes it, so that
    it is not read twice. Raises `NotFound` when there is no such folder and `Corrupt`, with one sentence, when anything
    in it is not what it claims: card, hash, config, tokenizer, the names, shapes, dtypes and places of the tensors, or
    a value that is not finite.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    if checkpoint.ordinary:
        raise LegibleError(
            f"{checkpoint.slug} is an ordinary model; this command needs a checkpoint that is legible by construction.",
            code="ordinary",
            status=422,
        )
    try:
        tensors = _read(checkpoint)
        tokenizer = tokenizer or Tokenizer.load(checkpoint.tokenizer_path)
        check_vocabulary(checkpoint.config, tokenizer.vocab_size)
    except LegibleError as error:
        raise refusal(checkpoint.slug, error) from None
    model = _empty(checkpoint.config)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.to_compute(dtype).to(device).eval()


def save(
    folder: Path | str,
    model: Transformer,
    tokenizer_path: Path | str,
    card: Card | Mapping[str, str] | None = None,
    dtype: StoredDtype = "bfloat16",
) -> Checkpoint:
    """Write a checkpoint folder and return it as `open_checkpoint` reads it back.

    The folder appears whole or not at all: everything is written and synced beside it, checked as any checkpoint is,
    and then takes its place in one step. A checkpoint that was there is replaced; its names stay only if the hash does.

    Raises `LegibleError` for weights that are not finite or overflow in `dtype`, `Corrupt` for a tokenizer of another
    vocabulary, `Conflict` when the folder holds other files, `Unavailable` when the disk does not take it.
    """
    folder = Path(os.path.abspath(folder))
    if dtype not in _STORED:
        raise LegibleError(f"Weights cannot be stored as {dtype!r}; the choices are {', '.join(_STORED)}.")
    if not isinstance(card, Card):
        card = Card(dict(card or {}))
    slug = slug_for(folder)
    check_replaceable(folder)
    tokenizer_path = Path(tokenizer_path)
    check_vocabulary(model.config, Tokenizer.load(tokenizer_path).vocab_size)
    tensors = _stored(model, _STORED[dtype])
    _remove_abandoned(folder)
    draft = folder.parent / f".{folder.name}.saving-{secrets.token_hex(6)}"
    try:
        draft.mkdir(parents=True)
        save_file(tensors, draft / files.WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(tokenizer_path, draft / files.TOKENIZER)
        (draft / files.CONFIG).write_text(_config_text(model.config), encoding="utf-8")
        # safetensors keeps its files to their owner; weights are as readable as the rest of the folder.
        shutil.copymode(draft / files.CONFIG, draft / files.WEIGHTS)
        identity = identify(draft)
        (draft / files.CARD).write_text(card.render(identity), encoding="utf-8")
        _keep_names(folder, draft, identity)
        open_checkpoint(draft, slug=slug)
        for path in (*sorted(draft.iterdir()), draft):
            sync(path)
        replace_folder(draft, folder)
    except WRITE_ERRORS as error:
        raise Unavailable(
            f"The checkpoint {slug} cannot be written: {write_reason(error)}; what was there before is untouched."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return open_checkpoint(folder)


def write_card(folder: Path | str, card: Card) -> Checkpoint:
    """Replace the card of a checkpoint folder, with the folder's own hash in it, in one step.

    Raises what `open_checkpoint` raises for the rest of the folder, and `LegibleError` for a card that it could not
    read back.
    """
    folder = Path(folder)
    data = card.render(identify(folder)).encode("utf-8")
    if len(data) > files.MAX_CARD_BYTES:
        raise TooLarge(f"The card has {len(data):,} bytes, and the limit of a card is {files.MAX_CARD_BYTES:,}.")
    draft = folder / f".{files.CARD}.saving-{secrets.token_hex(6)}"
    try:
        draft.write_bytes(data)
        sync(draft)
        os.replace(draft, folder / files.CARD)
        sync(folder)
    except OSError as error:
        raise Unavailable(f"The card cannot be written: {error.strerror or error}; the old one is untouched.") from None
    finally:
        draft.unlink(missing_ok=True)
    return open_checkpoint(folder)


def _read(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The float32 tensors, out of one buffer whose own hash, header and values have been checked."""
    hashes = {name: files.file_hash(checkpoint.path, name) for name in (files.CONFIG, files.TOKENIZER)}
    with files.open_inside(checkpoint.path, files.WEIGHTS) as (file, status):
        try:
            buffer = bytearray(status.st_size)
        except MemoryError:
            raise Unavailable(f"its {status.st_size:,} bytes of weights do not fit into memory") from None
        read = file.readinto(buffer)
    if read != len(buffer):
        raise Corrupt(f"{files.WEIGHTS} became shorter while it was read")
    hashes[files.WEIGHTS] = hashlib.sha256(buffer).hexdigest()
    if files.manifest_hash(hashes) != checkpoint.hash:
        raise Corrupt(f"its files no longer have the hash {checkpoint.hash[:12]}… that was looked up; open it again")
    view = memoryview(buffer)
    infos = check_tensors(files.parse_header(view[: 8 + files.MAX_HEADER_BYTES], len(buffer)), checkpoint.config)
    files.check_finite(infos, lambda start, stop: view[start:stop])
    view.release()
    if all(info.dtype == "F32" for info in infos.values()):
        return {name: _tensor(buffer, info) for name, info in infos.items()}
    tensors: dict[str, Tensor] = {}
    # From the file's end, so that its bytes give way to the wider numbers made of them. torch does not keep a buffer
    # from shrinking under a view of it, so here nothing may stay one.
    for name, info in sorted(infos.items(), key=lambda item: -item[1].start):
        made = _tensor(buffer, info)
        tensors[name] = made.clone() if info.dtype == "F32" else made
        del made
        del buffer[info.start :]
    return tensors


def _tensor(buffer: bytearray, info: TensorInfo) -> Tensor:
    """A float32 tensor: a view of the buffer where it is one already and lies aligned, a copy otherwise."""
    dtype, count = _TORCH[info.dtype], (info.end - info.start) // files.DTYPE_BYTES[info.dtype]
    if count == 0:
        return torch.zeros(info.shape)
    if info.start % dtype.itemsize:
        flat = torch.frombuffer(bytearray(buffer[info.start : info.end]), dtype=dtype)
    else:
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=info.start)
    return flat.reshape(info.shape).float()


def _empty(config: ModelConfig) -> Transformer:
    """A model whose parameters have shapes and no memory yet."""
    with torch.device("meta"):
        return Transformer(config)


def _stored(model: Transformer, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state as it goes to disk; raises `LegibleError` when a value is not finite there."""
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        stored = tensor.detach().to("cpu", dtype if tensor.ndim > 1 else torch.float32).contiguous()
        if not torch.isfinite(stored).all():
            reason = "overflows in" if torch.isfinite(tensor).all() else "holds values that are not finite as"
            raise LegibleError(
                f"The weights are not saved: {name} {reason} {str(stored.dtype).removeprefix('torch.')}.",
                code="not_finite",
            )
        found[name] = stored
    return found


def _config_text(config: ModelConfig) -> str:
    return json.dumps(config.to_json(), indent=2) + "\n"


def check_replaceable(folder: Path) -> None:
    """Only a checkpoint folder, or an empty one, is replaced; raises `Conflict` for one that holds something else."""
    if not os.path.lexists(folder):
        return
    known = {*files.MANIFEST_FILES, files.CARD, *_MEASURED}
    if folder.is_symlink() or not folder.is_dir():
        raise Conflict(f"{folder} is no folder of its own; give a new or an empty one for the checkpoint.")
    # Drafts are what writing a card or an evaluation leaves when it is killed.
    drafts = tuple(f".{name}.saving-" for name in (files.CARD, *_MEASURED))
    others = sorted(
        entry.name for entry in folder.iterdir() if entry.name not in known and not entry.name.startswith(drafts)
    )
    if others:
        raise Conflict(
            f"{folder} holds {others[0]!r}, which is no part of a checkpoint; give a new or an empty folder for it."
        )


def _keep_names(old: Path, draft: Path, identity: str) -> None:
    """Names belong to a hash: they move into the new folder when it has the old one's."""
    try:
        same = identify(old) == identity
    except (NotFound, Corrupt, OSError):
        return
    for name in _MEASURED if same else ():
        if (old / name).is_file():
            shutil.copyfile(old / name, draft / name)


def _remove_abandoned(folder: Path) -> None:
    """What a save that was killed left beside the folder an hour ago or more."""
    for path in folder.parent.glob(f".{folder.name}.saving-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 3600:
                shutil.rmtree(path, ignore_errors=True)
