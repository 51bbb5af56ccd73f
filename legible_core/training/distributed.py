"""Several processes of one run, started by torchrun: who is who, and what they have to agree on.

Every process holds the whole model and takes an equal share of every batch; PyTorch's DistributedDataParallel averages
their gradients. What is decided for all (losses, which channels the floor spares, when to stop) is averaged or asked
here, so that every process goes the same way. With one process every function is the identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from legible_core.errors import LegibleError, Unavailable
from legible_core.training.state import kept

# The first process may tokenise for hours while the others wait for it.
PATIENCE = timedelta(hours=24)
# How the backends word that a process is gone; they raise plain RuntimeErrors.
_LOST = re.compile(r"connection (closed|reset|refused)|peer|gloo|nccl|socket|store|timed? ?out|heartbeat", re.I)


class ProcessLost(Unavailable):
    """Another process of the run ended, so that this one cannot go on."""

    code = "process_lost"


def started_by_torchrun() -> bool:
    """Whether torchrun (or something that sets its variables) started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did, and leave them at the end; the device of this one.

    device: `cpu`, or `cuda` for this process's own GPU. Raises `LegibleError` for a device that is not there.
    """
    if not started_by_torchrun():
        yield check_device(device)
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    elif device != "cpu":
        raise LegibleError("Under torchrun every process has a GPU of its own: give --device cuda.", code="bad_device")
    chosen = check_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("gloo" if chosen.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def check_device(device: str) -> torch.device:
    """The device, tried; raises `LegibleError` when it is not there."""
    try:
        torch.zeros(1, device=device).item()
        return torch.device(device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):
        if re.fullmatch(r"cpu|cuda(:\d+)?", device) is None:
            raise LegibleError(
                f"There is no device {device!r}; use cpu, or cuda (or cuda:0, cuda:1, …) where there is a GPU.",
                code="bad_device",
            ) from None
        count = torch.cuda.device_count()
        seen = "PyTorch sees no GPU here" if not count else f"PyTorch sees cuda:0 to cuda:{count - 1} here"
        raise LegibleError(
            f"The device {device!r} cannot be used: {seen}; use cpu, or cuda where there is a GPU.", code="bad_device"
        ) from None


def rank() -> int:
    """This process's number, 0 for the one that writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def mean_of(value: Tensor) -> Tensor:
    """The mean over all processes of a tensor, elementwise; not differentiable."""
    if world() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / world()


def any_of(flag: bool) -> bool:
    """Whether any process says so."""
    if world() == 1:
        return flag
    said = torch.tensor(float(flag))
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return bool(said.item())


def share(rows: Tensor, micro: int) -> Tensor:
    """This process's rows of a batch: of every micro-batch of `micro` rows its equal part, in order.

    So the n-th micro-batch holds the same rows over all processes together as it does in one process.
    """
    if world() == 1:
        return rows
    own = micro // world()
    return rows.unflatten(0, (-1, micro))[:, rank() * own : (rank() + 1) * own].flatten(0, 1)


def same_everywhere(tensors: Iterable[Tensor]) -> None:
    """Give every process the first one's values, in place."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def agree(tensors: Iterable[Tensor]) -> bool:
    """Whether every process holds the same values, by their sums; a difference means that something went wrong."""
    if world() == 1:
        return True
    sums = torch.stack([tensor.detach().double().sum().cpu() for tensor in tensors])
    low, high = sums.clone(), sums.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(torch.equal(low, high))


@contextmanager
def first_alone() -> Iterator[bool]:
    """Run the body in the first process, then in the others, which find what it wrote; True in the first.

    When the body fails in the first process, the others stop with `ProcessLost` instead of waiting for it.
    """
    if world() == 1:
        yield True
        return
    failed = True
    if rank():
        _told(False)
        yield False
        return
    try:
        yield True
        failed = False
    finally:
        _told(failed)


def from_first(make: Callable[[], str]) -> str:
    """What the first process makes of it, in every process."""
    if world() == 1:
        return make()
    found: bytes | None = None
    try:
        if rank() == 0:
            found = make().encode()
    finally:
        if rank() == 0:
            _told(found is None)
        else:
            _told(False)
    data = torch.frombuffer(bytearray(found or b""), dtype=torch.uint8) if found else torch.zeros(0, dtype=torch.uint8)
    size = torch.tensor(len(data))
    dist.broadcast(size, 0)
    data = data if rank() == 0 else torch.zeros(int(size), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return data.numpy().tobytes().decode()


def _told(failed: bool) -> None:
    """The first process tells the others whether it failed; they raise `ProcessLost` if so."""
    word = torch.tensor(float(failed))
    dist.broadcast(word, 0)
    if rank() and word.item():
        raise ProcessLost("The first process of this run has stopped; it says why.")


@contextmanager
def losing(folder: Path) -> Iterator[None]:
    """Word what a lost process does to this one as one sentence, and a GPU without room as another."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise LegibleError(
            "The GPU's memory does not hold one micro-batch; give schedule.micro_batch_tokens a smaller number, which "
            f"is another run where there is a floor. {kept(folder)}",
            code="out_of_memory",
        ) from None
    except RuntimeError as error:
        if world() == 1 or not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
            raise
        raise ProcessLost(
            f"Another process of this run ended, so process {rank()} of {world()} stops too. {kept(folder)} The same "
            "command goes on from there."
        ) from None
