"""What a nemesis does to a server of any kind, each with the way back from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.servers.parts.node import Node

Note = Callable[[str], None]
Heal = Callable[[], None]


class LeftOutError(Exception):
    """A step cannot be made as things are; the next ones can."""


def healing(note: Note, what: str, act: Callable[..., Any], *args: Any) -> Heal:
    """Do something later, and note it."""

    def heal() -> None:
        act(*args)
        note(what)

    return heal


def stop(note: Note, node: Node) -> Heal:
    """SIGSTOP until it is healed."""
    note(f"SIGSTOP {node.name}")
    node.pause()
    return healing(note, f"SIGCONT {node.name}", node.resume)


def down(note: Note, nodes: Sequence[Node], *, politely: bool = False) -> Heal:
    """SIGKILL, or SIGTERM; all at once. They are started when it is healed."""
    names = ", ".join(node.name for node in nodes)
    note(f"{'SIGTERM' if politely else 'kill -9'} {names}")
    enders = [threading.Thread(target=node.stop if politely else node.kill) for node in nodes]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()

    def start() -> None:
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.await_ready()
        note(f"answers again: {names}")

    return start
