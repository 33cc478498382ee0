"""The logs of `cassq worker` and its processes on standard error, in one form."""

from __future__ import annotations

import logging

from cassq.cli.ui.daemon_log import log_as_daemon

TEXT, JSON, QUIET = "text", "json", "quiet"
FORMS = (TEXT, JSON, QUIET)


def log_tasks(form: str) -> None:
    """Log in this form from now on; `quiet` leaves out tasks that were done. If the handler's
    module configures logging itself, that is used instead."""
    log_as_daemon(as_json=form == JSON)
    level = logging.WARNING if form == QUIET else logging.INFO
    logging.getLogger("cassq.worker").setLevel(level)
    if logging.lastResort is not None:
        logging.lastResort.setLevel(level)
