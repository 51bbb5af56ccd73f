"""A queue for who may look and begin nothing: what was made is found, and what was not is said, and stays unmade."""

from __future__ import annotations

import time
from typing import Any

from app.jobs import INTERACTIVE, Job, Queue

NOT_BEGUN = "This was not made yet, and an embed begins no work; open the page itself first."


class ReadingOnlyQueue(Queue):
    """The same jobs as `queue` has. `refused`: something was asked for that would have been begun."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.database, lease_seconds=queue.lease_seconds, max_attempts=queue.max_attempts)
        self.refused = False

    def submit(
        self, kind: str, key: str, payload: dict[str, Any], *, priority: int = INTERACTIVE, subject: str | None = None
    ) -> Job:
        """The job for `key` where one waits or runs; else one that failed, stored nowhere, which says NOT_BEGUN."""
        found = self.find(key)
        if found is not None and found.active:
            return found
        self.refused = True
        now = time.time()
        return Job(
            id=0, kind=kind, key=key, subject=subject, payload=payload, priority=priority, state="failed", stage=None,
            done=None, total=None, attempt=0, lost=0, max_attempts=self.max_attempts, cancel_requested=False,
            worker=None, result=None, error={"code": "not_begun", "message": NOT_BEGUN}, created_at=now,
            started_at=None, finished_at=now,
        )  # fmt: skip
