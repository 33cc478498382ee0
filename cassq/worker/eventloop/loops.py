"""The event loop of a server, and how many files it may open."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable

logger: logging.Logger = logging.getLogger("cassq")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop if it is installed: it halves the cost of a request."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def raised_files() -> int:
    """Raise the limit of open files to the hard limit; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as exc:  # the hard limit may be above what the system allows
        logger.warning(
            "the limit of open files could not be raised, and stays at %d: %s", soft, exc
        )
        return soft
    return hard
