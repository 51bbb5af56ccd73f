"""Where training text comes from: a text file, a folder of them, or a dataset of the Hugging Face hub.

Text is read in chunks and given on in pieces, so that no document is ever held whole, however long it is. A document is
cut only where its tokens stay what they were (`pieces`).
"""

from __future__ import annotations

import codecs
import io
import lzma
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from legible_core.errors import LegibleError, NotFound, TooLarge, Unavailable
from legible_core.extras import how_to_install
from legible_core.training.recipe import HUB

END_OF_TEXT = "<|endoftext|>"
# Bytes read at once, and characters of a document that are given on at once.
CHUNK = 1 << 17
PIECE = 1 << 17
# Characters on either side of a cut on which it is checked that both sides' tokens are those of the whole.
WINDOW = 512
# A stretch of text this long without a place to cut it is refused: it would have to be held whole.
LONGEST = 1 << 24
MAX_FILES = 100_000
# What unpacking may take: `xz -9` makes files that take 65 MiB, the format allows 4 GiB.
XZ_MEMORY = 256 << 20
ENDINGS = (".txt", ".xz")

# A cut stands between the two newlines of a blank line, else behind a newline, else before a space; never inside a
# longer run of white space, which tokenizers take together.
_CUTS = tuple(re.compile(cut) for cut in (r"(?<=\S\n)(?=\n\S)", r"(?<=\S\n)(?=\S)", r"(?<=\S)(?= \S)"))
_SEPARATOR = re.compile(r"^<\|endoftext\|>\n", re.MULTILINE)
_LAST_SEPARATOR = re.compile(r"^<\|endoftext\|>\Z", re.MULTILINE)

Fits = Callable[[str, str], bool]


class Piece(NamedTuple):
    """Part of a document: whether the document ends with it, and how many bytes of the source were read by then."""

    text: str
    ends: bool
    done: int


@dataclass(frozen=True)
class Files:
    """A text file, or a folder's `.txt` and `.xz` files: its subfolders too, in the order of their paths.

    In a folder, names that begin with a dot are left out, links to files are followed and links to folders are not.
    Raises `NotFound` or `LegibleError` when there is nothing to read, `TooLarge` above `MAX_FILES` files.
    """

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def key(self) -> list[Any]:
        if self.path.is_dir():
            found = [(file.relative_to(self.path).as_posix(), file.stat()) for file in self.files()]
            return [str(self.path.resolve()), [[name, info.st_size, info.st_mtime_ns] for name, info in found]]
        (file,) = self.files()
        info = file.stat()
        return [str(self.path.resolve()), info.st_size, info.st_mtime_ns]

    def total(self) -> int:
        """Bytes on disk, compressed ones as they lie there."""
        return sum(file.stat().st_size for file in self.files())

    def files(self) -> list[Path]:
        if not self.path.exists():
            raise NotFound(
                f"There is no text at {self.path}; give a UTF-8 text file, plain or .xz, or a folder of them."
            )
        if not self.path.is_dir():
            found = [self.path]
        else:
            found = []
            for folder, folders, names in os.walk(self.path):
                folders[:] = [name for name in folders if not name.startswith(".")]
                found += [Path(folder, n) for n in names if n.endswith(ENDINGS) and not n.startswith(".")]
                if len(found) > MAX_FILES:
                    raise TooLarge(f"{self.path} holds more than {MAX_FILES:,} text files, the limit; join them first.")
            found.sort(key=lambda file: file.relative_to(self.path).as_posix())
            if not found:
                raise LegibleError(f"{self.path} holds no {' or '.join(ENDINGS)} file.", code="bad_corpus")
        for file in found:
            if not file.exists() or not stat.S_ISREG(file.stat().st_mode):
                raise LegibleError(f"{file} is no regular file; give a UTF-8 text file.", code="bad_corpus")
        return found

    def pieces(self, fits: Fits | None = None) -> Iterator[Piece]:
        before = 0
        for file in self.files():
            for piece in pieces(_chunks(file), fits, str(file)):
                yield piece._replace(done=before + piece.done)
            before += file.stat().st_size


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub (or a local folder in its layout), streamed; every row is a document.

    A row is in memory whole, as the library gives it. Needs the optional extra `hub`. Raises `Unavailable` when the
    library is missing or the dataset cannot be reached, `LegibleError` when it has no such column of text.
    """

    dataset: str
    config: str | None = None
    split: str = "train"
    column: str = "text"

    @property
    def name(self) -> str:
        return HUB + self.dataset

    @property
    def key(self) -> list[Any]:
        named = [self.name, self.config, self.split, self.column]
        folder = Path(self.dataset)
        if not folder.is_dir():
            return named
        found = sorted(
            (file.relative_to(folder).as_posix(), file.stat()) for file in folder.rglob("*") if file.is_file()
        )
        return [*named, [[name, info.st_size, info.st_mtime_ns] for name, info in found]]

    def total(self) -> int:
        return 0  # not known before the end

    def pieces(self, fits: Fits | None = None) -> Iterator[Piece]:
        done = 0
        for row in self._rows():
            text = row.get(self.column)
            if not isinstance(text, str):
                names = ", ".join(name for name, value in row.items() if isinstance(value, str)) or "none"
                raise LegibleError(
                    f"{self.name} has no column {self.column!r} of text; its columns of text: {names} "
                    "(data.dataset_column).",
                    code="bad_corpus",
                )
            done += len(text.encode("utf-8", "replace"))
            text = text.replace("\r\n", "\n").replace("\r", "\n")
            # A lone surrogate has no UTF-8 form, so no tokenizer takes it.
            text = text.encode("utf-8", "replace").decode("utf-8")
            yield from pieces(((text[i : i + CHUNK], done) for i in range(0, len(text), CHUNK)), fits, self.name)

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            import datasets
        except ImportError:
            raise Unavailable(
                f"{self.name} needs the datasets library, which is not installed; {how_to_install('hub')}.",
                code="missing_extra",
            ) from None
        name, _, revision = self.dataset.partition("@")
        if Path(self.dataset).is_dir():
            name, revision = self.dataset, ""
        try:
            yield from datasets.load_dataset(
                name, self.config, split=self.split, streaming=True, revision=revision or None
            )
        except GeneratorExit:
            raise
        except Exception as error:  # the library's own kinds differ between its versions
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Unavailable(
                f"The dataset {self.name} (split {self.split}) cannot be read: {reason.rstrip('.')}.",
                code="bad_corpus",
                hint="It takes a network, and the name as the hub has it; a text file needs neither.",
            ) from None


# What can be tokenised. `key` changes when the text does, as far as that can be seen without reading it; `total` is its
# size in bytes, 0 when that is not known.
Source: TypeAlias = Files | Hub


def find_source(text: str | Path, *, config: str | None = None, split: str = "train", column: str = "text") -> Source:
    """The source that `data.train` or `--text` names: `hf:NAME`, `hf:NAME@REVISION`, or a path."""
    if str(text).startswith(HUB):
        return Hub(str(text).removeprefix(HUB), config, split, column)
    return Files(Path(text))


def documents(path: Path) -> Iterator[str]:
    """Whole documents of a text file or folder, CRLF as LF; raises `LegibleError` when one is missing or not UTF-8."""
    parts: list[str] = []
    for piece in Files(path).pieces():
        parts.append(piece.text)
        if piece.ends:
            yield "".join(parts)
            parts = []


def beginning(path: Path, characters: int) -> str:
    """The first characters of a text file, or of a folder's first, as they stand there; raises as `documents` does."""
    found = ""
    for text, _ in _chunks(Files(path).files()[0]):
        found += text
        if len(found) >= characters:
            break
    return found[:characters]


def pieces(chunks: Iterable[tuple[str, int]], fits: Fits | None = None, name: str = "the text") -> Iterator[Piece]:
    """Documents of one text in pieces of about `PIECE` characters; a line `<|endoftext|>` separates documents.

    chunks: text, and how many bytes were read by then. A document's own first and last newlines do not count, an empty
    one is none. fits(left, right): whether the tokens of left + right are those of left and then those of right; only
    such a cut is made. Raises `TooLarge` for a stretch of `LONGEST` characters without one.
    """
    held, begun, done = "", False, 0
    # What of `held` was searched in vain, so that a long stretch is not searched anew with every chunk.
    searched = tried = 0
    for text, done in chunks:
        held += text
        while match := _SEPARATOR.search(held, searched):
            body, held = held[: match.start()], held[match.end() :]
            yield from _close(body, begun, done)
            begun, searched, tried = False, 0, 0
        if not begun and held.startswith("\n"):
            held, tried = held.lstrip("\n"), 0
        while len(held) > PIECE + WINDOW and (cut := _cut(held, fits, tried)):
            yield Piece(held[:cut], False, done)
            held, begun, tried = held[cut:], True, 0
        searched = max(0, len(held) - len(END_OF_TEXT) - 1)
        tried = len(held) - WINDOW - 3 if len(held) > PIECE + WINDOW else 0
        if len(held) > LONGEST:
            raise TooLarge(
                f"{name} has a stretch of more than {LONGEST:,} characters that cannot be cut without changing its "
                "tokens; break it into lines, or give another tokenizer.",
                code="bad_corpus",
            )
    match = _LAST_SEPARATOR.search(held)
    yield from _close(held[: match.start()] if match else held, begun, done)


def _close(body: str, begun: bool, done: int) -> Iterator[Piece]:
    body = body.rstrip("\n") if begun else body.strip("\n")
    if body or begun:
        yield Piece(body, True, done)


def _cut(held: str, fits: Fits | None, tried: int = 0) -> int:
    """Where to cut, at most `PIECE` and `WINDOW` before the end and not before `tried`; 0 for nowhere."""
    # The far half first: the pieces should be of about one size. What lies beyond `PIECE` only when nothing else does.
    spans = [(PIECE // 2, PIECE), (1, PIECE // 2), (PIECE, len(held) - WINDOW)]
    for start, stop in ((max(start, tried), stop) for start, stop in spans if stop >= tried):
        for pattern in _CUTS:
            found = [match.start() for match in pattern.finditer(held, start, stop + 1)]
            for cut in reversed(found[-4:]):
                left, right = held[max(0, cut - WINDOW) : cut], held[cut : cut + WINDOW]
                if right.strip("\n") and (fits is None or fits(left, right)):
                    return cut
    return 0


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    """The contents of an .xz file, at most CHUNK bytes at a time, within XZ_MEMORY; its streams follow each other.

    Raises LZMAError for what is damaged or needs a larger dictionary, EOFError for what is cut off.
    """
    data = file.read(CHUNK)
    while data:
        engine = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        while not engine.eof:
            if unpacked := engine.decompress(data, CHUNK):
                yield unpacked
            data = b""
            if engine.needs_input and not engine.eof:
                data = file.read(CHUNK)
                if not data:
                    raise EOFError("it ends in the middle")
        data = engine.unused_data.lstrip(b"\0")  # zeros pad what lies between streams
        while not data and (more := file.read(CHUNK)):
            data = more.lstrip(b"\0")


def _plain(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(CHUNK):
        yield data


def _chunks(path: Path) -> Iterator[tuple[str, int]]:
    """A file's text, line ends as LF, with how many of its bytes on disk were read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    read = 0
    try:
        with path.open("rb") as raw:
            for data in chain(_unpacked(raw) if path.suffix == ".xz" else _plain(raw), (b"",)):
                waiting = len(decoder.getstate()[0])
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    at = read - waiting + error.start
                    where = " of the unpacked text" if path.suffix == ".xz" else ""
                    raise LegibleError(
                        f"{path} is not UTF-8 text: byte {at:,}{where} is 0x{error.object[error.start]:02x}; "
                        "convert it first.",
                        code="bad_corpus",
                    ) from None
                if read == 0:
                    text = text.removeprefix("\ufeff")
                read += len(data)
                yield newlines.decode(text, final=not data), raw.tell()
    except (OSError, lzma.LZMAError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, lzma.LZMAError) and "memory" in str(error).lower():
            reason = f"unpacking takes more than {XZ_MEMORY >> 20} MiB; pack it with a smaller dictionary, as xz -9 has"
        raise LegibleError(f"{path} cannot be read ({reason}); give a UTF-8 text file.", code="bad_corpus") from None
