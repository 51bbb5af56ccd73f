"""Starts this server's worker processes, and starts one again when it dies, slower each time it dies young."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from types import TracebackType

from app.jobs import Queue
from app.settings import Settings
from legible_core.errors import LegibleError

log = logging.getLogger("legible")

YOUNG_SECONDS = 20.0
LONGEST_PAUSE = 30.0
STOP_SECONDS = 5.0
PARENT = "LEGIBLE_PARENT_PID"


class Supervisor:
    """Keeps `settings.workers` workers alive while the block runs, and ends them after it.

    When one dies, its leases end at once: its jobs go back in line without waiting for them to run out.
    """

    def __init__(self, settings: Settings, queue: Queue) -> None:
        self.settings = settings
        self.queue = queue
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Supervisor:
        self._bury()
        for number in range(self.settings.workers):
            # One thread for the whole life of a worker: Linux ends a child when the *thread* that started it ends.
            thread = threading.Thread(target=self._keep, name=f"worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for process in list(self._processes.values()):
            process.terminate()  # it puts its job back in line
        for thread in self._threads:
            thread.join(STOP_SECONDS + 5)

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [process.pid for process in list(self._processes.values()) if process.poll() is None]

    def _bury(self) -> None:
        """Let go of jobs whose workers died with an earlier server, when we can see that they are dead."""
        if not self.queue.database.sqlite:
            return  # their processes may run on any machine
        for worker in self.queue.workers():
            if worker.host == socket.gethostname() and not _exists(worker.pid):
                self.queue.abandon(worker.id, blame=False)

    def _keep(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            worker, started = uuid.uuid4().hex, time.monotonic()
            try:
                process = self._start(worker)
            except OSError as error:
                log.error("no worker can be started: %s", error)
                pause = LONGEST_PAUSE
                continue
            self._processes[worker] = process
            if self._stopping.is_set():
                process.terminate()
            code = self._wait(process)
            del self._processes[worker]
            try:
                self.queue.abandon(worker, blame=not self._stopping.is_set())
            except LegibleError as error:
                log.warning("the jobs of worker %s wait for its lease to end: %s", process.pid, error)
            if self._stopping.is_set():
                return
            log.warning("worker %s ended with status %s; starting another", process.pid, code)
            died_young = time.monotonic() - started < YOUNG_SECONDS
            pause = min(LONGEST_PAUSE, max(0.5, pause * 2)) if died_young else 0.0

    def _start(self, worker: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.settings.environment(), PARENT: str(os.getpid())}
        return subprocess.Popen(self.command(worker), env=environment, stdin=subprocess.DEVNULL)

    def command(self, worker: str) -> list[str]:
        """What runs as the worker with this id."""
        return [sys.executable, "-m", "app.worker", "--id", worker]

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit status; once the supervisor stops, it has `STOP_SECONDS` to end by itself."""
        while True:
            try:
                return process.wait(0.25)
            except subprocess.TimeoutExpired:
                if self._stopping.is_set():
                    break
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _exists(pid: int) -> bool:
    """Whether a process with this number runs; where that cannot be asked, yes."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
