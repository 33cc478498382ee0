"""The program of one process of `cassq gateway`: `python -m cassq.cli.gateway.child`.

When its supervisor ends, the process ends as after SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import traceback
from pathlib import Path
from typing import Any, NoReturn

from cassq.cli.orders import end_process, read_orders
from cassq.cli.start import GARBAGE_OBJECTS
from cassq.cli.ui.daemon_log import log_as_daemon
from cassq.errors import CassqError
from cassq.gateway.actions.service import open_service
from cassq.gateway.serving import GatewayOptions, ServingPlace, serve
from cassq.worker.eventloop.loops import loop_factory
from cassq.worker.journal import nothing
from cassq.worker.reports import BEAT, ENDED, READY, Reporter


def main() -> NoReturn:
    """Carry out the orders on standard input."""
    # Loaded objects stay, and the hundred that a request makes leave no garbage cycles.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    orders, lifeline = read_orders()
    log_as_daemon(as_json=orders["json"])
    reporter = Reporter(orders["report_fd"])
    code = 1
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            well = runner.run(_serve(orders, reporter, lifeline))
        code = 0 if well else 1
    except CassqError as exc:
        reporter.failed(exc, {})
        code = exc.exit_code
    except Exception:
        traceback.print_exc()
    end_process(code)


async def _serve(orders: dict[str, Any], reporter: Reporter, lifeline: int) -> bool:
    stop, renew = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, renew.set)

    def supervisor_ended() -> None:
        if not os.read(lifeline, 4096):
            loop.remove_reader(lifeline)
            stop.set()

    loop.add_reader(lifeline, supervisor_ended)
    facts = {**nothing(), "running": 0, "stuck": 0}
    paths = {
        name: None if orders[name] is None else Path(orders[name])
        for name in ("credentials", "cert", "key")
    }
    place = ServingPlace(
        [socket.socket(fileno=fd) for fd in orders["sockets"]], orders["counts"], orders["slot"]
    )
    well = await serve(
        open_service(orders["url"], groups=orders["groups"]),
        GatewayOptions(**paths, grace=orders["grace"]),
        place,
        stop,
        renew,
        ready=lambda: reporter.send(READY, popper=f"gateway process {orders['slot']}"),
        each_second=lambda: reporter.send(BEAT, facts=facts),
    )
    reporter.send(ENDED, facts=facts)
    return well


if __name__ == "__main__":
    main()
