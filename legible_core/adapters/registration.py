"""What `legible add` leaves of an ordinary model: a small folder that points at its weights; imports no torch.

    <data folder>/ordinary/<hash, 16 digits>/
        ordinary.json     config, source, the SHA-256 and size of every file, certificate
        tokenizer.json    made once from whatever the model brings

The weights stay where they are. Whoever lists checkpoints looks at the sizes of the files; whoever loads one hashes
them again, so that a changed file is never read under the old hash.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from legible_core.adapters.config import OrdinaryConfig
from legible_core.adapters.source import hash_files, identity
from legible_core.errors import Corrupt, LegibleError, NotFound, Unavailable
from legible_core.folder import TOKENIZER, Card, parse_json
from legible_core.prompts import Bos
from legible_core.reading import Dtype
from legible_core.registry import Checkpoint
from legible_core.replace import replace_folder
from legible_core.units import PLAIN_NAMES

RECORD = "ordinary.json"


@dataclass(frozen=True)
class OrdinaryCheckpoint(Checkpoint):
    """An ordinary model among the checkpoints. `path` is its small folder, `source` the folder of its weights.

    files: the SHA-256 of each file of `source` that the hash covers; sizes: their bytes when they were hashed.
    compute: the dtype in which it is loaded and read. offload: its layers wait on the CPU, see
    `adapters.offload`. certificate: see `certificate.certify`; None before there is one.
    """

    config: OrdinaryConfig
    source: Path = Path()
    name: str | None = None
    revision: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    compute: Dtype = "float32"
    device: str = "auto"
    offload: bool = False
    bos: Bos | None = None
    chat_template: str | None = None
    special: dict[str, str] = field(default_factory=dict)
    certificate: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return self.name or self.slug

    @property
    def kind(self) -> str:
        """Such as `ordinary GPT-2, GELU units, LayerNorm`."""
        config = self.config
        parts = [f"ordinary {config.family_name}", f"{PLAIN_NAMES[config.feed_forward.activation]} units", config.norm]
        if config.key_value_heads < config.n_heads:
            parts.append(f"{config.n_heads} heads on {config.key_value_heads} keys and values")
        return ", ".join(parts)

    def compute_dtype(self, asked: str) -> Dtype:
        return self.compute

    def check_files(self) -> None:
        """Hash every file again; raises `Corrupt` when one is no longer what was added."""
        found = hash_files(self.source, tuple(self.files))
        changed = [name for name, value in found.items() if value != self.files[name]]
        if changed:
            raise Corrupt(
                f"The checkpoint {self.slug} is refused: {changed[0]} has changed since it was added; add it again."
            )

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "ordinary": True,
            "source": str(self.source),
            "name": self.name,
            "revision": self.revision,
            "compute_dtype": self.compute,
            "offload": self.offload,
            "bos": None if self.bos is None else asdict(self.bos),
            "chat_template": self.chat_template is not None,
            "certificate": self.certificate,
        }


def write(checkpoint: OrdinaryCheckpoint, root: Path, tokenizer: bytes) -> Path:
    """Write the small folder of a checkpoint under `root` in one step, and return it."""
    folder = root / checkpoint.hash[:16]
    draft = root / f".{folder.name}.saving-{secrets.token_hex(6)}"
    record = {
        "format": "legible-ordinary",
        "version": 1,
        "hash": checkpoint.hash,
        "source": str(checkpoint.source),
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "files": checkpoint.files,
        "sizes": checkpoint.sizes,
        "parameters": checkpoint.parameters,
        "bytes": checkpoint.bytes,
        "dtype": checkpoint.dtype,
        "compute": checkpoint.compute,
        "device": checkpoint.device,
        "offload": checkpoint.offload,
        "bos": None if checkpoint.bos is None else asdict(checkpoint.bos),
        "chat_template": checkpoint.chat_template,
        "special": checkpoint.special,
        "config": checkpoint.config.to_json(),
        "certificate": checkpoint.certificate,
    }
    try:
        draft.mkdir(parents=True)
        (draft / TOKENIZER).write_bytes(tokenizer)
        (draft / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        # What a scan measured stays: it belongs to the hash, which is the folder's name.
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in (TOKENIZER, RECORD):
                shutil.copy2(path, draft / path.name)
        replace_folder(draft, folder)
    except OSError as error:
        raise Unavailable(f"The registration cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def open_registered(folder: Path, slug: str, origin: str = "added") -> OrdinaryCheckpoint:
    """Read a small folder back, and see that the weights it points at are there in the sizes that were added.

    Raises `Corrupt` for a record that cannot be read and `NotFound` where the weights are gone.
    """
    try:
        data = parse_json((folder / RECORD).read_text(encoding="utf-8"), RECORD)
        if data.get("format") != "legible-ordinary" or data.get("version") != 1:
            raise Corrupt(f"{RECORD} is of another version; add the model again")
        bos = data["bos"]
        checkpoint = OrdinaryCheckpoint(
            slug=slug,
            path=folder,
            hash=str(data["hash"]),
            config=OrdinaryConfig.from_json(data["config"]),
            card=Card({}),
            parameters=int(data["parameters"]),
            bytes=int(data["bytes"]),
            dtype=str(data["dtype"]),
            origin=origin,
            source=Path(data["source"]),
            name=data["name"],
            revision=data["revision"],
            files=dict(data["files"]),
            sizes=dict(data["sizes"]),
            compute="bfloat16" if data["compute"] == "bfloat16" else "float32",
            device=str(data["device"]),
            offload=bool(data.get("offload", False)),
            bos=None if bos is None else Bos(int(bos["id"]), str(bos["text"]), bool(bos["default"])),
            chat_template=data["chat_template"],
            special=dict(data["special"]),
            certificate=data["certificate"],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{RECORD} cannot be read ({str(error)[:80]}); add the model again") from None
    if identity(checkpoint.files) != checkpoint.hash:
        raise Corrupt(f"{RECORD} claims a hash that its files do not give; add the model again")
    for name, size in checkpoint.sizes.items():
        try:
            found = os.stat(checkpoint.source / name).st_size
        except OSError:
            raise NotFound(f"{name} is no longer in {checkpoint.source}; put it back or add the model again") from None
        if found != size:
            raise Corrupt(f"{name} has {found:,} bytes, and had {size:,} when it was added; add the model again")
    return checkpoint


def is_registered(folder: Path) -> bool:
    """Whether a folder is one that `write` made."""
    return (folder / RECORD).is_file()


__all__ = ["RECORD", "LegibleError", "OrdinaryCheckpoint", "is_registered", "open_registered", "write"]
