"""The program of one process of `cassq worker`: `python -m cassq.cli.worker.child`.

When its supervisor ends, the process ends as after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from cassq.base.clock import wait_event
from cassq.cli.orders import end_process, read_orders
from cassq.cli.worker.logs import log_tasks
from cassq.client.client import Client
from cassq.client.connecting import DEFAULT_URL, connect
from cassq.errors import AbandonedTasksError, CassqError, UsageError
from cassq.tasks.app import App
from cassq.worker.choosing import AnyHandler, AnyWorker
from cassq.worker.handler import is_async, load_handler
from cassq.worker.journal import logger
from cassq.worker.loop import Hooks
from cassq.worker.reports import BEAT, DESCRIBED, ENDED, LEAVING, READY, Reporter, files_of
from cassq.worker.sources import State, loaded_sources, own_sources

BEAT_SECONDS = 1.0


def main() -> NoReturn:
    """Carry out the orders on standard input."""
    orders, lifeline = read_orders()
    reporter = Reporter(orders["report_fd"])
    describe = orders.get("describe", False)
    if not describe:
        log_tasks(orders["log"])
        # Python uses old byte code if the source has the same size, and a time in the same second.
        sys.dont_write_bytecode = sys.dont_write_bytecode or orders["reload"]
    try:
        handler = load_handler(orders["handler"])
    except BaseException as exc:  # a module may raise anything, SystemExit too
        files = own_sources(files_of(exc), Path.cwd()) | loaded_sources(Path.cwd())
        reporter.failed(exc, files)
        end_process(2)
    try:
        if describe:
            _describe(handler, orders["url"], reporter)
            code = 0
        else:
            code = _work(handler, orders, reporter, lifeline)
    except CassqError as exc:
        reporter.failed(exc, loaded_sources(Path.cwd()))
        code = exc.exit_code
    end_process(code)


def _describe(handler: AnyHandler, url: str | None, reporter: Reporter) -> None:
    """Report what the handler is. If it is an app, create its missing queues first."""
    if not isinstance(handler, App):
        reporter.send(DESCRIBED, groups=None)
        return
    url = url or handler.url or os.environ.get("CASSQ_URL") or DEFAULT_URL
    with connect(url) as client:
        handler.use(client)
        reporter.send(DESCRIBED, url=url, groups=handler.prepare())


def _work(handler: AnyHandler, orders: dict[str, Any], reporter: Reporter, lifeline: int) -> int:
    with connect(orders["url"], create=False) as client:
        if isinstance(handler, App):
            _prepare(handler, client, orders["url"])
            handler = handler.handler_for(orders["queue"])
            most = orders["tasks" if is_async(handler) else "threads"]
        else:
            most = _concurrency(handler, orders)
        worker = client.queue(orders["queue"]).worker(
            handler, group=orders["group"], concurrency=most, **orders["settings"]
        )
        # A process is replaced as soon as a thread of it is stuck.
        worker.settings = worker.settings._replace(stuck_max=0)
        sent: dict[str, State] = {}
        began: list[str] = []
        # For the time outside of the worker's run: before it nothing can be lost, so the process
        # ends; after it the worker must finish its end.
        signal.signal(signal.SIGTERM, lambda *_: None if began else end_process(0))

        def sources() -> dict[str, State]:
            """What was loaded since the last report."""
            found = loaded_sources(Path.cwd()) if orders["reload"] else {}
            new = {file: state for file, state in found.items() if file not in sent}
            sent.update(new)
            return new

        def ready(popper: str) -> None:
            began.append(popper)
            reporter.send(READY, popper=popper, files=sources())

        worker.hooks = Hooks(
            ready=ready,
            leaving=lambda why: reporter.send(LEAVING, why=why),
        )

        def beat() -> None:
            never = threading.Event()
            while not wait_event(never, BEAT_SECONDS):
                if worker.is_responsive():
                    reporter.send(BEAT, facts=worker.facts(), files=sources())

        # They end with the process. The reports of one of them show that threads can run at all.
        for name, work in (
            ("lifeline", partial(_stop_when_alone, worker, lifeline)),
            ("beat", beat),
        ):
            threading.Thread(target=work, name=name, daemon=True).start()
        code = 0
        try:
            worker.run()
        except AbandonedTasksError as exc:
            code = exc.exit_code
    reporter.send(ENDED, facts=worker.facts())
    return code


def _prepare(app: App, client: Client, url: str) -> None:
    """Make the app use the worker's client, because a task may push further calls."""
    if app.url is not None and app.url != url:
        logger.warning("the app was made with %s, but this worker uses %s", app.url, url)
    app.use(client)
    app.prepare()


def _concurrency(handler: AnyHandler, orders: dict[str, Any]) -> int | None:
    """How many tasks run at the same time. Raises UsageError for an option of the other kind."""
    threads, tasks = orders["threads"], orders["tasks"]
    if is_async(handler) and threads is not None:
        raise UsageError(
            f"{orders['handler']!r} is an async function, which cannot have --threads",
            hint="--async says how many of its tasks run at the same time",
        )
    if not is_async(handler) and tasks is not None:
        raise UsageError(
            f"{orders['handler']!r} is not an async function, so it cannot have --async",
            hint="--threads says how many of its tasks run at the same time",
        )
    most: int | None = threads or tasks
    return most


def _stop_when_alone(worker: AnyWorker, lifeline: int) -> None:
    while os.read(lifeline, 4096):
        continue
    worker.stop()


if __name__ == "__main__":
    main()
