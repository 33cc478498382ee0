"""Sidecars for tests: processes of `cassq sidecar serve` over a directory, as people run them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.extents.protocol.messages import Request
from cassq.extents.replicas.upkeep import Upkeep
from cassq.extents.sidecar.net.sidecar_connection import ask
from cassq.reaper import Action
from cassq.reaper.actions import DONE
from tests.integration.deadlines import DEADLINE_SECONDS, eventually


class SidecarProcess:
    """One sidecar. zone: its own. It has its name and its directory in all its lives."""

    def __init__(self, place: Path, name: str, options: Sequence[str]) -> None:
        self.name = name
        self.data = place / name
        self._log = place / f"{name}.log"
        self._options = [
            *(sys.executable, "-m", "cassq", "sidecar", "serve", "--json", "--name", name),
            *("--data", str(self.data), "--listen", "127.0.0.1:0", "--zone", f"zone-{name}"),
            *options,
        ]
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._options, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._ended()
        assert line, self._log.read_text()
        self.address = json.loads(line)["address"]

    def kill(self) -> None:
        """As by a power cut of its machine, as far as a process can."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._ended()

    def stop(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait(DEADLINE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def lose_data(self) -> None:
        shutil.rmtree(self.data)

    def flip(self, payload: bytes) -> int:
        """Turn a bit of this payload over in each of its files that has it; how many have."""
        hit = 0
        for path in self.data.rglob("*"):
            held = path.read_bytes() if path.is_file() else b""
            at = held.find(payload)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([held[at] ^ 1]))
                hit += 1
        return hit

    def ask(self, request: Request) -> Any:
        """The reply to a request."""
        return ask(self.address, request)


class SidecarProcesses:
    """Some of them, a to e, over an embedded catalog; `client` reaps by hand alone."""

    def __init__(self, place: Path, count: int, options: Sequence[str] = ()) -> None:
        self.catalog = f"file:{place / 'catalog'}"
        self.url = f"{self.catalog}?store=sidecar&repair_after=0.1"
        given = ["--catalog", self.catalog, "--drain-seconds", "1", *options]
        self.all = [SidecarProcess(place, name, given) for name in "abcde"[:count]]
        for each in self.all:
            each.start()
        self.client = cassq.connect(self.url)
        self.upkeep: Upkeep = self.client.ports.upkeep  # type: ignore[assignment]
        self.settled()

    def __getitem__(self, name: str) -> SidecarProcess:
        return next(each for each in self.all if each.name == name)

    def settled(self, *names: str) -> None:
        """Wait until these (or all) live, as far as the catalog knows."""
        wanted = set(names) or {each.name for each in self.all}

        def live() -> bool:
            fleet = self.upkeep.fleet()
            rows = fleet.sidecars.values()
            return wanted <= {row.name for row in rows if row.alive(fleet.now_ms)}

        eventually("they live", live)

    def lost(self, name: str) -> None:
        """Wait until a sidecar that is gone counts as lost."""

        def is_lost() -> bool:
            fleet = self.upkeep.fleet()
            return fleet.is_lost(fleet.sidecars[name])

        eventually("its lease lapses", is_lost)

    def where(self) -> dict[str, list[str]]:
        """The sidecars of every extent, by pipe."""
        return {
            placement.pipe_id: sorted(at.sidecar for at in placement.replicas)
            for placement in self.client.ports.catalog.sidecars.placements()
        }

    def repaired(self, count: int) -> list[Action]:
        """Reap until so many repairs are done; all that was told of them."""
        actions: list[Action] = []

        def done() -> bool:
            actions.extend(self.client.reaper.reap(only=("repair",)))
            return sum(action.outcome == DONE for action in actions) >= count

        eventually(f"{count} repairs", done)
        return actions

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`cassq …` at this place, in this process."""
        done = CliRunner().invoke(main, [*words, "--url", self.url])
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def close(self) -> None:
        self.client.close()
        for each in self.all:
            each.kill()
