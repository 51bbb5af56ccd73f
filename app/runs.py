"""Training runs as the web process finds them: folders that `legible train` wrote, and the state each is in.

    with announced(settings.data_dir, folder): ...     # `legible train`: data_dir/runs/<id>.json names the folder
    runs = Runs(settings)                               # those, and what LEGIBLE_RUNS names besides
    with runs.open("novel-legible") as run: ...         # its recipe, its history so far, its branches, its state

A run is what its folder holds; the record says only where that is and which process writes it. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from legible_core.errors import LegibleError, NotFound
from legible_core.replace import sync
from legible_core.training.history import HeldOut, History, is_whole, read_recipe

State: TypeAlias = Literal["preparing", "training", "stopped", "diverged", "finished"]

FRESH_SECONDS = 5.0
# Where nothing is known of its process, a log that stays silent for so long, and for so many of its steps, is no longer
# written.
SILENT_SECONDS = 60.0
SILENT_STEPS = 20
PREPARING_SECONDS = 3600.0
KEPT = 8
# A process that began so long after a run was announced is another one, which got its number.
LATER_SECONDS = 60.0
RECIPE = "recipe.json"  # what makes a folder a run's
MAX_RECORDS = 1000
MAX_BRANCHES = 20
MAX_RECORD_BYTES = 1 << 16


@dataclass(frozen=True)
class Record:
    """Where a run is and who writes it; `pid` and `host` are None for a folder that was only named."""

    folder: Path
    started: float = 0.0
    pid: int | None = None
    host: str | None = None
    ended: bool = False

    @property
    def alive(self) -> bool | None:
        """Whether the process that writes it lives; None where it is another machine's or unknown."""
        if self.ended:
            return False
        if self.pid is None or self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it lives, under another user
            pass
        began = _began(self.pid)
        return began is None or began < self.started + LATER_SECONDS

    @property
    def gone(self) -> bool:
        """Whether the process that wrote it is known to have ended."""
        return self.alive is False


def _began(pid: int) -> float | None:
    """When a process began, in seconds since 1970, to a second; None where the system does not tell (Linux does)."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        boot = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(encoding="utf-8"), re.MULTILINE)
        return None if boot is None else int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def announced(data_dir: Path, folder: Path, *, really: bool = True) -> Iterator[None]:
    """Let the workbench know of a run's folder while the body trains it, and afterwards that it ended.

    A run that failed before it began is not remembered. Nothing is done when not `really` (of several processes one
    speaks). Training goes on where the record cannot be written; standard error says so. Raises `LegibleError` for a
    folder whose name is no text: neither a record nor a page could name it.
    """
    if not _is_text(folder):
        raise LegibleError(
            f"The run's folder {str(folder)!a} has a name that is not UTF-8 text; give --out another one.",
            code="bad_options",
        )
    place = data_dir / "runs" / f"{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}.json"
    record = {
        "version": 1, "folder": str(folder.absolute()), "started": time.time(), "pid": os.getpid(),
        "host": socket.gethostname(), "ended": False,
    }  # fmt: skip
    if really:
        _write(place, record)
    try:
        yield
    finally:
        if really and (folder / RECIPE).is_file():
            _write(place, {**record, "ended": True})
        elif really:  # it never began, so nothing is there that a page could show
            with suppress(OSError):
                place.unlink()


def _is_text(folder: Path) -> bool:
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _write(place: Path, record: dict[str, Any]) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.stem}.{os.getpid()}.draft")
        draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sync(draft)
        draft.replace(place)
    except OSError as error:
        print(f"The workbench will not list this run: {place} cannot be written ({error.strerror}).", file=sys.stderr)


@dataclass
class Branch:
    """A run's own course, or one of its decay branches: `name` is "" or decay-<tokens>."""

    name: str
    history: History
    steps: int
    state: State = "preparing"

    @property
    def number(self) -> int:
        """The last step that was logged; 0 before the first."""
        return int(self._last("number") or 0)

    @property
    def last_loss(self) -> float | None:
        """The loss of the last step that was logged, in nats a token."""
        return self._last("loss")

    @property
    def mean_loss(self) -> float | None:
        """The running mean that the guard follows: the logarithm of the cumulative perplexity."""
        perplexity = self.perplexity or 0.0
        return math.log(perplexity) if 0 < perplexity < math.inf else None

    @property
    def perplexity(self) -> float | None:
        """The cumulative perplexity, as the last line gives it."""
        return self._last("perplexity")

    def _last(self, column: str) -> float | None:
        log = self.history.log
        return log[column][-1] if len(log) else None

    @property
    def held_out(self) -> HeldOut | None:
        """The held-out loss where training ended last; None for a run that has not ended yet."""
        return self.history.held_out

    @property
    def diverged(self) -> str | None:
        """Why the guard stopped it, while nothing was trained since."""
        for event in reversed(self.history.events):
            if event.event == "diverged" and event.number > self.number:
                return event.text
        return None


@dataclass
class Run:
    """One run, as of the last `refresh`."""

    name: str
    record: Record
    recipe: dict[str, Any]
    main: Branch
    branches: list[Branch] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def active(self) -> bool:
        return any(each.state in ("training", "preparing") for each in (self.main, *self.branches))

    def schedule(self, name: str) -> int:
        """A whole number of the recipe's schedule; 0 where it has none."""
        value = self.recipe["schedule"].get(name)
        return value if is_whole(value) and value > 0 else 0

    def refresh(self) -> None:
        """Read what was added, here and in the branches. Raises `NotFound` when the folder is gone."""
        self.recipe = read_recipe(self.record.folder)
        size = max(1, self.schedule("batch_tokens"))
        self.main.steps = self.schedule("tokens") // size
        known = {branch.name for branch in self.branches}
        for path in sorted(self.record.folder.glob("decay-*"))[:MAX_BRANCHES]:
            if path.name not in known and re.fullmatch(r"decay-\d{1,18}", path.name) and path.is_dir():
                self.branches.append(Branch(path.name, History(path), 0))
        self.branches.sort(key=lambda branch: int(branch.name.partition("-")[2]))
        for branch in (self.main, *self.branches):
            branch.history.refresh()
            if branch is not self.main:
                branch.steps = branch.history.log.last
        for branch in (self.main, *self.branches):
            branch.state = self._state(branch)

    def _state(self, branch: Branch) -> State:
        history = branch.history
        if branch.diverged is not None:
            return "diverged"
        if branch.steps and branch.number >= branch.steps:
            return "finished"
        courses = (self.main, *self.branches)
        # One process writes the run or a branch; which of them, only the files say.
        if self.record.alive:
            newest = max(each.history.touched_at or 0.0 for each in courses)
            if newest < self.record.started - 1.0:  # it has written nothing yet
                return "preparing" if branch is self.main else "stopped"
            if (history.touched_at or 0.0) < newest:
                return "stopped"
            return "training" if len(history.log) else "preparing"
        changed = history.changed_at
        if changed is None:
            waiting = branch is self.main and not self.record.gone
            young = time.time() - self.record.started < PREPARING_SECONDS
            return "preparing" if waiting and young else "stopped"
        lately = sorted(history.log["seconds"][-20:])
        silent = max(SILENT_SECONDS, SILENT_STEPS * lately[len(lately) // 2])
        newest = max(each.history.changed_at or 0.0 for each in courses)
        if self.record.gone or changed < newest or time.time() - changed > silent:
            return "stopped"
        return "training"


class Runs:
    """The runs of this installation by name, at most `FRESH_SECONDS` old; safe from many threads."""

    def __init__(self, data_dir: Path, named: tuple[str, ...] = ()) -> None:
        self._data_dir, self._named = data_dir, named
        self._lock = threading.Lock()
        self._names: dict[str, Record] = {}
        self._at = float("-inf")
        self._open: OrderedDict[Path, Run] = OrderedDict()

    def names(self) -> dict[str, Record]:
        """Every run's name and record, the latest first; one whose folder is gone is listed while a record names it."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                self._names = _named([*self._records(), *self._folders()])
                self._at = time.monotonic()
            return dict(self._names)

    def any(self) -> bool:
        return bool(self.names())

    @contextmanager
    def open(self, name: str) -> Iterator[Run]:
        """The run with what its files hold now, this thread's alone for the body.

        Raises `NotFound` when there is none of this name, or its folder is gone.
        """
        record = self.names().get(name)
        if record is None:
            raise NotFound(f"There is no run called {name[:100]!r} here.", hint="The page of all runs lists them.")
        with self._lock:
            run = self._open.get(record.folder)
            if run is None:
                run = Run(name, record, {"model": {}, "schedule": {}}, Branch("", History(record.folder), 0))
                self._open[record.folder] = run
            self._open.move_to_end(record.folder)
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
        with run.lock:
            run.name, run.record = name, record
            run.refresh()
            yield run

    def _records(self) -> list[Record]:
        found = []
        for path in sorted((self._data_dir / "runs").glob("*.json"))[:MAX_RECORDS]:
            record = _read(path)
            if record is not None:
                found.append(record)
        return found

    def _folders(self) -> list[Record]:
        """What was named: a run's folder, or one that holds runs' folders."""
        found = []
        for name in self._named:
            root = Path(name).expanduser().absolute()
            own = (root / RECIPE).is_file()
            for folder in [root] if own else sorted(path.parent for path in root.glob(f"*/{RECIPE}"))[:MAX_RECORDS]:
                try:
                    found.append(Record(folder, (folder / RECIPE).stat().st_mtime))
                except OSError:
                    continue
        return found


def _named(records: list[Record]) -> dict[str, Record]:
    """Names for folders: each its own; of two alike, the later one's ends in a part of its address' hash."""
    found: dict[str, Record] = {}
    folders: set[Path] = set()
    for record in sorted(records, key=lambda record: record.started):
        if record.folder in folders or not _is_text(record.folder):
            continue
        folders.add(record.folder)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", record.folder.name).strip(".-") or "run"
        if name.endswith(".json"):  # an address that ends so is the JSON of the run without it
            name = f"{name.removesuffix('.json')}-json"
        if name in found:
            name += "-" + hashlib.sha256(str(record.folder).encode()).hexdigest()[:6]
        found[name] = record
    return dict(reversed(found.items()))


def _read(path: Path) -> Record | None:
    """A record, or None for a file that is none."""
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
        folder = Path(data["folder"])
        if not folder.is_absolute():
            return None
        return Record(folder, float(data["started"]), int(data["pid"]), str(data["host"]), bool(data["ended"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
