"""What is pushed and popped is freed at once: nothing waits for the garbage collector, which comes
late where payloads are large and objects few."""

from __future__ import annotations

import json
import subprocess
import sys

import cassq
from tests.integration.client import garbage


def test_nothing_is_left_to_the_garbage_collector(client: cassq.Client) -> None:
    words = [sys.executable, "-m", garbage.__name__, client.url]
    found: dict[str, dict[str, int]] = json.loads(subprocess.check_output(words))
    assert len(found) == 10
    assert {name: types for name, types in found.items() if garbage.too_much(types)} == {}
