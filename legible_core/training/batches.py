"""The batches of the steps to come, made while the present step runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor


class Batches:
    """`make(step)` for one step after another, one ahead on a thread of its own, brought to a device.

    For a GPU a batch is made in pinned memory, so that its copy runs beside the computation. What is asked out of turn
    is made at once: a batch depends on its step alone, never on what was asked before.
    """

    def __init__(self, make: Callable[[int], Tensor], device: torch.device) -> None:
        self.make, self.device = make, device
        self.pool = ThreadPoolExecutor(1, "batches")
        self.ahead: tuple[int, Future[Tensor]] | None = None

    def take(self, step: int) -> Tensor:
        """The batch of this step, on the device."""
        ahead, future = self.ahead or (None, None)
        batch = future.result() if future is not None and ahead == step else self._make(step)
        self.ahead = step + 1, self.pool.submit(self._make, step + 1)
        return batch.to(self.device, non_blocking=True)

    def _make(self, step: int) -> Tensor:
        batch = self.make(step)
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
