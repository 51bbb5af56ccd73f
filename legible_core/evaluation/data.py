"""Tasks out of local files, as the questions that lm-evaluation-harness would ask; imports no torch.

suite = load_suite("blimp", Path("../shared/eval"), limit=100)    # 67 parts of at most 100 items
suite.parts[0].items[0].questions                                 # ((context, continuation), ...)

DIR/blimp/<paradigm>.jsonl     sentence_good, sentence_bad, field, linguistics_term
DIR/lambada/*.jsonl            text; its last word is the target
DIR/arc_easy/*.jsonl           question, choices {text, label}, answerKey
DIR/winogrande/*.jsonl         sentence with one _, option1, option2, answer "1" or "2"
DIR/wikitext2/*.txt            text whose documents begin with a line " = Title = "
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from legible_core.errors import LegibleError, NotFound, TooLarge

MAX_FILE_BYTES = 256 << 20
MAX_LINE_BYTES = 1 << 20
MAX_LABEL = 80

Kind = Literal["choice", "cloze", "rolling"]


@dataclass(frozen=True, slots=True)
class Item:
    """One item: its questions, the index of the right one, and what its figures are divided by.

    choice: one question per answer, `lengths` their characters. cloze: one question. rolling: one text as the
    continuation of an empty context, `lengths` the words and bytes of the original.
    """

    questions: tuple[tuple[str, str], ...]
    gold: int = 0
    lengths: tuple[int, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Part:
    """Items that have a mean of their own: a paradigm of BLiMP, or a whole task."""

    name: str
    items: tuple[Item, ...]
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of what is asked: questions, right answers, lengths. Results pair only under the same digest."""
        asked = [[item.questions, item.gold, item.lengths] for item in self.items]
        return hashlib.sha256(json.dumps(asked, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Suite:
    """A task: its parts, how an item becomes figures, and whether it was cut short by a limit."""

    name: str
    kind: Kind
    parts: tuple[Part, ...]
    limit: int | None = None
    source: str = "local files"

    @property
    def items(self) -> int:
        return sum(len(part.items) for part in self.parts)


@dataclass(frozen=True)
class Description:
    """What a task is called elsewhere, for people and in the harness, and what it needs."""

    title: str
    kind: Kind
    harness: str
    suffix: str
    item: Callable[[dict[str, Any], str], Item]


def load_suite(name: str, data: Path, limit: int | None = None) -> Suite:
    """A task out of its folder under `data`; `limit` keeps the first items of each part.

    Raises `NotFound` for a missing folder or file, `LegibleError` with file and line for a malformed item.
    """
    task = TASKS[name]
    if not data.is_dir():
        raise NotFound(f"There is no data folder {data}; give the folder that holds {', '.join(TASKS)}.")
    folder = data / name
    files = sorted(folder.glob(f"*{task.suffix}")) if folder.is_dir() else []
    if not files:
        raise NotFound(f"{name} needs its data in {folder} as *{task.suffix}, and there is none.")
    if name != "blimp" and len(files) > 1:
        shown = ", ".join(path.name for path in files[:4])
        raise LegibleError(f"{folder} holds several files ({shown}); {name} takes exactly one.", code="bad_data")
    parts = []
    for path in files:
        labels: dict[str, str] = {}
        items: list[Item] = []
        for where, entry in _pages(path) if task.kind == "rolling" else _lines(path):
            if limit is not None and len(items) == limit:
                break
            items.append(task.item(entry, where))
            labels = labels or labels_of(name, entry, where)
        if not items:
            raise LegibleError(f"{path} holds no item.", code="bad_data")
        if name == "blimp" and not printable_line(path.stem):
            raise _bad(f"{name}/{path.name!a}", f"the file's name names its paradigm, and {NO_LABEL}")
        parts.append(Part(path.stem if name == "blimp" else name, tuple(items), labels))
    return Suite(name, task.kind, tuple(parts), limit)


def available(data: Path) -> list[str]:
    """The tasks whose folder is there."""
    return [name for name in TASKS if (data / name).is_dir()]


# ---- one form of item for each task ------------------------------------------------------------------------------


def _blimp(entry: dict[str, Any], where: str) -> Item:
    good, bad = (_text(entry, key, where) for key in ("sentence_good", "sentence_bad"))
    return _choice("", (good, bad), 0, where)


def labels_of(task: str, entry: dict[str, Any], where: str) -> dict[str, str]:
    """Field and linguistic term of a paradigm of BLiMP, out of its first item; nothing for other tasks."""
    if task != "blimp":
        return {}
    # One paradigm writes its field syntax/semantics, the others syntax_semantics.
    named = (("field", "field"), ("term", "linguistics_term"))
    found = {key: _text(entry, name, where).replace("/", "_") for key, name in named}
    for key, name in named:
        if not printable_line(found[key]):
            raise _bad(where, f"{name} {NO_LABEL}")
    return found


NO_LABEL = f"is not one printable line of at most {MAX_LABEL} characters"


def printable_line(text: object, limit: int = MAX_LABEL) -> bool:
    """Whether it can stand in a row of a report, of a page and of a card: not where it has a lone surrogate."""
    return isinstance(text, str) and len(text) <= limit and text.isprintable()


def _lambada(entry: dict[str, Any], where: str) -> Item:
    context, _, word = _text(entry, "text", where).rpartition(" ")
    if not context.strip() or not word:
        raise _bad(where, "text has no last word after others")
    return Item(((context, f" {word}"),), where=where)


def _arc(entry: dict[str, Any], where: str) -> Item:
    question, key = _text(entry, "question", where), _text(entry, "answerKey", where)
    choices = entry.get("choices")
    texts = choices.get("text") if isinstance(choices, dict) else None
    labels = choices.get("label") if isinstance(choices, dict) else None
    if not isinstance(texts, list) or not isinstance(labels, list) or not 2 <= len(texts) == len(labels) <= 26:
        raise _bad(where, "choices must hold lists text and label, equally long, of 2 to 26 answers")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise _bad(where, "an answer is empty or no text")
    if key not in labels:
        raise _bad(where, f"answerKey is {key[:20]!r}, which is none of the labels")
    return _choice(f"Question: {question}\nAnswer:", tuple(texts), labels.index(key), where)


def _winogrande(entry: dict[str, Any], where: str) -> Item:
    sentence, answer = _text(entry, "sentence", where), _text(entry, "answer", where)
    before, blank, after = sentence.partition("_")
    if not blank or not after.strip() or answer not in ("1", "2"):
        raise _bad(where, 'it needs a sentence with a _ before its end, and answer "1" or "2"')
    questions = tuple((before + _text(entry, key, where), f" {after.strip()}") for key in ("option1", "option2"))
    return Item(questions, int(answer) - 1, (len(after.strip()),) * 2, where)


def _wikitext(entry: dict[str, Any], where: str) -> Item:
    """Scored detokenised, counted in words and bytes of the original, as the harness does."""
    original = _text(entry, "page", where)
    words, size = len(re.split(r"\s+", original)), len(original.encode("utf-8"))
    return Item((("", detokenised(original)),), lengths=(words, size), where=where)


def _choice(context: str, answers: tuple[str, ...], gold: int, where: str) -> Item:
    """Answers after a context, with the harness's space between them, also where the context is empty."""
    questions = tuple((context, f" {answer}") for answer in answers)
    return Item(questions, gold, tuple(len(answer) for answer in answers), where)


def detokenised(text: str) -> str:
    """WikiText's spaced punctuation as running text, by the rules of the harness's `wikitext`, in its order."""
    text = text.replace("s '", "s'")
    text = re.sub(r"/' [0-9]/", r"/'[0-9]/", text)
    for mark in "-,.":
        text = text.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        text = text.replace(f" {mark} ", f"{mark} ")
    for pattern, replacement in _BRACKETS:
        text = re.sub(pattern, replacement, text)
    text = text.replace("= = = =", "====").replace("= = =", "===").replace("= =", "==")
    text = text.replace(" ° ", "°").replace(" \n", "\n").replace("\n ", "\n")
    return text.replace(" N ", " 1 ").replace(" 's", "'s")


_BRACKETS = (
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
)

TASKS: dict[str, Description] = {
    "blimp": Description("BLiMP", "choice", "blimp", ".jsonl", _blimp),
    "lambada": Description("LAMBADA", "cloze", "lambada_openai", ".jsonl", _lambada),
    "arc_easy": Description("ARC-Easy", "choice", "arc_easy", ".jsonl", _arc),
    "winogrande": Description("WinoGrande", "choice", "winogrande", ".jsonl", _winogrande),
    "wikitext2": Description("WikiText-2", "rolling", "wikitext", ".txt", _wikitext),
}


def task_names(wanted: str) -> list[str]:
    """Names out of `a,b,c`; the harness's own name of a task means the same. Raises naming the valid ones."""
    aliases = {task.harness: name for name, task in TASKS.items()}
    found: list[str] = []
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        name = aliases.get(word, word)
        if name not in TASKS:
            raise LegibleError(f"There is no task {word[:60]!r}; the tasks are {', '.join(TASKS)}.", code="bad_task")
        if name not in found:
            found.append(name)
    if not found:
        raise LegibleError(f"--tasks names no task; the tasks are {', '.join(TASKS)}.", code="bad_task")
    return found


# ---- files -----------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line, entry) of every line that is not blank."""
    for number, line in enumerate(_read(path).split(b"\n"), 1):
        where = f"{path.parent.name}/{path.name}, line {number}"
        if not line.strip():
            continue
        if len(line) > MAX_LINE_BYTES:
            raise _bad(where, f"it is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise _bad(where, "it is no JSON in UTF-8") from None
        if not isinstance(entry, dict):
            raise _bad(where, "it is no JSON object")
        yield where, entry


def _pages(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and number, document) of a text whose documents begin with a line " = Title = "."""
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"{path.parent.name}/{path.name}, byte {error.start}", "it is not UTF-8 text") from None
    heading = re.compile(r"^ = [^=\n](?:[^\n]*[^=\n])? = $", re.MULTILINE)
    starts = [match.start() for match in heading.finditer(text)]
    if not starts or text[: starts[0]].strip():
        starts.insert(0, 0)
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True), 1):
        if text[start:end].strip():
            yield f"{path.parent.name}/{path.name}, document {number}", {"page": text[start:end]}


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise TooLarge(f"{path} is over the limit of {MAX_FILE_BYTES:,} bytes.")
    return data


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _bad(where, f"{key} is missing, empty or no text")
    return value


def _bad(where: str, what: str) -> LegibleError:
    return LegibleError(f"{where}: {what}.", code="bad_data")
