"""What a stretch of work costs: wall time, CPU seconds and memory, of this process and a server."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


def peak_rss_bytes() -> int:
    """The most memory this process ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status names no VmHWM")


def rss_bytes() -> int:
    """The memory this process holds now."""
    return int(psutil.Process().memory_info().rss)


def server_cpu_s(pid: int) -> float:
    """CPU seconds of a server, its processes and those of them that have ended."""
    if not pid:
        return 0.0
    server = psutil.Process(pid)
    times = server.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in server.children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue  # It ended meanwhile: its parent counts it from now on.
        total += used.user + used.system
    return float(total)


def server_rss_bytes(pid: int) -> int:
    """Memory of a server and its processes, what they share counted once."""
    if not pid:
        return 0
    server = psutil.Process(pid)
    private, shared = 0, 0
    for process in (server, *server.children(recursive=True)):
        try:
            memory = process.memory_info()
        except psutil.NoSuchProcess:
            continue
        private += memory.rss - memory.shared
        shared = max(shared, memory.shared)
    return private + shared


class Meter:
    """Adds up what the blocks under `with meter:` cost; it may be entered many times."""

    def __init__(self, server_pid: int = 0) -> None:
        self._server_pid = server_pid
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.server_cpu_s = 0.0
        self.server_rss_bytes = 0

    def __enter__(self) -> Self:
        self._server_start = server_cpu_s(self._server_pid)
        self._cpu_start = time.process_time()
        self._wall_start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall_s += time.perf_counter() - self._wall_start
        self.cpu_s += time.process_time() - self._cpu_start
        self.server_cpu_s += server_cpu_s(self._server_pid) - self._server_start
        self.server_rss_bytes = max(self.server_rss_bytes, server_rss_bytes(self._server_pid))

    def costs(self) -> dict[str, float]:
        """The figures for a table; of a server only where there is one."""
        own = {"cpu_s": self.cpu_s, "rss_bytes": float(peak_rss_bytes())}
        if not self._server_pid:
            return own
        server = {
            "server_cpu_s": self.server_cpu_s,
            "server_rss_bytes": float(self.server_rss_bytes),
        }
        return {**own, **server}
