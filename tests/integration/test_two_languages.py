"""The example with two languages on one queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.flights_runs import ROOT, run_example

BILLS = ROOT / "examples" / "two_languages" / "bills.py"


@pytest.mark.long(reason="starts a gateway and a consumer; the SDK comes from npm")
@pytest.mark.parametrize(("language", "tool"), [("shell", "curl"), ("javascript", "npm")])
def test_orders_of_python_are_billed_in_another_language(
    language: str, tool: str, needs: Callable[[str], str]
) -> None:
    needs(tool)
    done = run_example(BILLS, "--orders", "300", "--language", language, seconds=300)
    assert done.returncode == 0, done.stdout
    assert "300 bills came back. Everything is as expected" in done.stdout
