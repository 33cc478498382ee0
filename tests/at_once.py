"""`pytest --at-once`: prints failures as they come, since a run of everything ends hours later."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--at-once", action="store_true", help="print failures as they come, and again at the end"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("--at-once") and reporter is not None:
        config.pluginmanager.register(AtOnce(reporter))


class AtOnce:
    """Prints the failures of a run, in the process that reports it."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.write_sep("_", f"{report.nodeid} ({report.when})", red=True)
            self._reporter.write_line(report.longreprtext)
