"""An ordinary model's files, found by folder or hub name and checked before anything is loaded; imports no torch.

    source = find("gpt2") or find("./my-folder")     # a folder on this machine, downloaded if need be
    weights = read_weights(source.folder)             # every tensor's size, from the headers alone
    hashes = hash_files(source.folder, names)         # SHA-256 of each file that makes the model what it is

Only safetensors are read. A folder that a download left half done is told by a missing part, a file shorter than its
header says, or a Git LFS pointer in its place.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legible_core.errors import Corrupt, LegibleError, NotFound, Unavailable
from legible_core.extras import how_to_install
from legible_core.folder import CARD, CONFIG, TOKENIZER, WEIGHTS, parse_json

INDEX = "model.safetensors.index.json"
# What a tokenizer may consist of, besides tokenizer.json.
TOKENIZER_FILES = (
    TOKENIZER, "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
WANTED = (CONFIG, "generation_config.json", WEIGHTS, INDEX, "model-*-of-*.safetensors", CARD, *TOKENIZER_FILES)
FLOATS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
MAX_JSON = 16 << 20
MAX_HEADER = 100_000_000  # what the safetensors library reads
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Source:
    """Where a model's files are; `name` and `revision` (a commit) where they came from the hub."""

    folder: Path
    name: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Weights:
    """What the headers say: the files, how many parameters they hold, their bytes and the dtype of most of them."""

    files: tuple[str, ...]
    parameters: int
    bytes: int
    dtype: str


def find(name_or_folder: str, revision: str | None = None) -> Source:
    """The folder of a model; a hub name is downloaded where this machine has no copy yet.

    Raises `NotFound` for a folder or name that does not exist, `Unavailable` without a network, `LegibleError` for a
    repository that wants a token.
    """
    path = Path(name_or_folder).expanduser()
    if name_or_folder and path.is_dir():  # an empty name would be the present folder
        if revision is not None:
            raise LegibleError(
                "A folder has no revisions; leave --revision out, or give a hub name.", code="bad_revision"
            )
        return Source(path.resolve())
    looks_local = path.exists() or name_or_folder.startswith((".", "/", "~")) or name_or_folder.count("/") > 1
    if looks_local or not _HUB.fullmatch(name_or_folder):
        what = "is a file, not a folder" if path.is_file() else "is neither a folder here nor a hub name"
        raise NotFound(f"{name_or_folder[:200]!r} {what}; give a folder that holds config.json and model.safetensors.")
    return _from_hub(name_or_folder, revision)


def is_ordinary(folder: Path) -> bool:
    """Whether a folder's config.json is Hugging Face's rather than a legible checkpoint's."""
    try:
        raw = read_config(folder)
    except LegibleError:
        return False
    return raw.get("format") != "legible" and ("model_type" in raw or "architectures" in raw)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; raises `NotFound` or `Corrupt`."""
    path = folder / CONFIG
    if not path.is_file():
        raise NotFound(
            f"{str(folder)!r} is no model: it has no {CONFIG}; give a folder that holds config.json and "
            "model.safetensors."
        )
    return _json(path)


def read_weights(folder: Path) -> Weights:
    """Every weights file's header, checked against its size; raises `Corrupt` for what is missing, short, no float."""
    names = _weight_files(folder)
    parameters, sizes = 0, dict.fromkeys(FLOATS, 0)
    for name in names:
        for tensor, (dtype, shape) in _header(folder / name).items():
            if dtype in FLOATS:
                parameters += math.prod(shape)
                sizes[dtype] += math.prod(shape) * FLOATS[dtype]
            # Old GPT-2s and Pythias store their causal masks, which are no weights.
            elif not tensor.endswith((".attn.bias", ".attention.bias", ".masked_bias")):
                raise Corrupt(
                    f"This model is refused: the tensor {tensor[:80]} is stored as {dtype}, so its weights are "
                    "quantised; add the original weights."
                )
    total = sum((folder / name).stat().st_size for name in names)
    return Weights(names, parameters, total, max(sizes, key=lambda dtype: sizes[dtype]))


def hash_files(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """SHA-256 of each file; one that has not changed since this process last looked is not read again."""
    found = {}
    for name in names:
        try:
            status = (folder / name).stat()
        except OSError:
            raise NotFound(f"{name} is missing from {folder}; the model was moved or deleted.") from None
        key = (str(folder / name), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        found[name] = _file_hash(key)
    return found


def identity(hashes: dict[str, str]) -> str:
    """The hash that names the model: SHA-256 of the canonical JSON of its files' hashes."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _weight_files(folder: Path) -> tuple[str, ...]:
    if (folder / WEIGHTS).is_file():
        return (WEIGHTS,)
    if (folder / INDEX).is_file():
        places = _json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise Corrupt(f"{INDEX} names no files; download the model again.")
        names = sorted({str(name) for name in places.values()})
        if any("/" in name or "\\" in name for name in names):
            raise Corrupt(f"{INDEX} names files outside its folder; it is not what a download leaves.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise Corrupt(
                f"This model is half downloaded: {missing[0]} is missing"
                + (f", and {len(missing) - 1} more files of its weights" if len(missing) > 1 else "")
                + "; download it again."
            )
        return tuple(names)
    if os.path.lexists(folder / WEIGHTS):
        raise Corrupt(
            f"This model is half downloaded or damaged: {WEIGHTS} is no file but a link to none, a pipe or a folder; "
            "download it again, or put the file itself there."
        )
    names = sorted(path.name for path in folder.iterdir())
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl"))]
    if pickled:
        raise Corrupt(
            f"This model is refused: its weights are in {pickled[0]}, a pickled file, and opening one runs whatever "
            "program is in it; convert it once with `model.save_pretrained(folder)` of transformers, in a place that "
            "may run it, and add that folder.",
            code="pickled",
        )
    unfinished = [name for name in names if name.endswith((".incomplete", ".part", ".crdownload"))]
    if unfinished:
        raise Corrupt(f"This model is half downloaded: {unfinished[0]} is not finished; download it again.")
    raise NotFound(f"{str(folder)!r} holds no weights; it needs {WEIGHTS}.")


def _header(path: Path) -> dict[str, tuple[str, list[int]]]:
    """dtype and shape of every tensor of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    with open(path, "rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise Corrupt(f"This model is half downloaded: {path.name} is a Git LFS pointer; fetch the file itself.")
    try:
        with safe_open(path, framework="numpy") as tensors:
            names: list[str] = list(tensors.keys())
            slices = {name: tensors.get_slice(name) for name in names}
            return {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError):
        raise Corrupt(
            f"This model is half downloaded or damaged: {path.name} cannot be read, {_why(path)}; download it again."
        ) from None


def _why(path: Path) -> str:
    """Why a safetensors file is refused, in our words: it is cut off, or its header holds something else."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if 8 + length > size:
            return f"for its header ends at byte {8 + length:,} and the file at {size:,}"
        head = file.read(length if length <= MAX_HEADER else 0)
    try:
        ends = [entry["data_offsets"][1] for name, entry in json.loads(head).items() if name != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "for its header names no tensors"
    if end > size:
        return f"for its tensors need {end:,} bytes and it has {size:,}"
    return "for its header does not fit the data behind it"


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON:
        raise Corrupt(f"{path.name} is {path.stat().st_size:,} bytes; the limit is {MAX_JSON:,} bytes.")
    try:
        return parse_json(path.read_text(encoding="utf-8"), path.name)
    except UnicodeDecodeError:
        raise Corrupt(f"{path.name} is not UTF-8 text.") from None
    except LegibleError as error:
        raise Corrupt(f"{error.message.rstrip('.')}.") from None


@functools.lru_cache(maxsize=1024)
def _file_hash(key: tuple[str, int, int, int, int, int]) -> str:
    with open(key[0], "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the hub -------------------------------------------------------------------------------------------------------


def _from_hub(name: str, revision: str | None) -> Source:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise needs_extra() from None
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
    except errors.GatedRepoError:
        raise LegibleError(
            f"{name} is a gated repository: accept its terms on the hub and give your token in HF_TOKEN.",
            code="gated", status=403,
        ) from None  # fmt: skip
    except errors.RevisionNotFoundError:
        raise NotFound(f"{name} has no revision {str(revision)[:80]!r}; leave --revision out for the newest.") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"There is no model {name!r} on the hub, or it is private and HF_TOKEN gives no access to it."
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError):
        local = ", ".join(local_models()) or "none"
        raise Unavailable(
            f"The hub cannot be reached (offline), and {name} is not on this machine; models that are: {local}.",
            code="offline",
            hint="Give the folder of a model instead.",
        ) from None
    # A snapshot's folder is called by its commit.
    return Source(folder, name, folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else revision)


def local_models() -> list[str]:
    """The hub models whose files this machine has."""
    import huggingface_hub

    try:
        return sorted(repo.repo_id for repo in huggingface_hub.scan_cache_dir().repos if repo.repo_type == "model")
    except (huggingface_hub.errors.CacheNotFound, OSError):
        return []


def needs_extra() -> Unavailable:
    """The error of an installation without the libraries that ordinary models need."""
    return Unavailable(
        f"Ordinary models need TransformerLens, which is not installed; {how_to_install('ordinary')}.",
        code="not_installed",
    )


def free_memory(device: str) -> int | None:
    """Bytes free on the CPU (Linux: MemAvailable); None where the system does not tell. Devices with torch: loading."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    except OSError:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            return None
    return int(found[1]) << 10 if found else None
