"""What the program must know of the filesystem under its data folder: whether SQLite is safe there, and a lock file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import TracebackType

# SQLite's WAL needs memory shared between the processes of one machine, and locks that hold; these promise neither.
NETWORK = frozenset(
    {
        "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.rclone",
        "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "smb2",
        "smb3", "smbfs", "sshfs", "webdav",
    }
)  # fmt: skip


def network_filesystem(path: Path) -> str | None:
    """The kind of network filesystem that `path` is on; None for a local one, or where that cannot be told."""
    kind = filesystem_kind(path, _mounts())
    return kind if kind in NETWORK else None


def filesystem_kind(path: Path, mounts: list[tuple[str, str]]) -> str | None:
    """The kind of the mount that holds `path`: the longest mount point above it, the later of two equal ones."""
    real = os.path.realpath(path)
    best, kind = "", None
    for point, filesystem in mounts:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, filesystem
    return kind


def _mounts() -> list[tuple[str, str]]:
    """(mount point, kind) of every mount, in mount order."""
    if platform.system() == "Linux":
        try:
            lines = Path("/proc/self/mountinfo").read_text().splitlines()
        except OSError:
            return []
        return [_linux_mount(line) for line in lines if " - " in line]
    if platform.system() == "Darwin":  # "//user@host/share on /Volumes/share (smbfs, nodev, …)"
        listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False).stdout.splitlines()
        found = []
        for line in listed:
            point, _, kind = line.partition(" on ")[2].rpartition(" (")
            found.append((point, kind.split(",")[0].rstrip(")")))
        return found
    return []


def _linux_mount(line: str) -> tuple[str, str]:
    before, _, after = line.partition(" - ")
    point = before.split(" ")[4].encode().decode("unicode_escape")  # spaces are written \040
    return point, after.split(" ")[0]


class FileLock:
    """An exclusive lock between processes on one machine; let go when its holder ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def __enter__(self) -> FileLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(self._handle, msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(self._handle, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        os.close(self._handle)
        self._handle = None
