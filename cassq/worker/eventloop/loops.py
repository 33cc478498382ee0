"""For servers in an event loop: uvloop if it is installed, and a higher limit of open files."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable

logger: logging.Logger = logging.getLogger("cassq")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes uvloop's loop if that is installed, as it halves the cost of a request; otherwise
    None, for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def raised_files() -> int:
    """Raise the limit of open files to the hard limit; returns the limit that now applies."""
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
