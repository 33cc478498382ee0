"""Checks of arguments: each error names the argument, what is allowed and what was passed."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NoReturn

from cassq.errors import UsageError

_MESSAGE_ID = re.compile(r"([0-9a-f]{24}):([0-9]{1,18})")
DELAY_MAX_SECONDS = 10 * 365 * 86400.0
ERROR_MAX = 4096  # characters of an error that are kept
_SHOWN_MAX = 100  # characters of a refused value that the error shows


def check_count(name: str, count: int, most: int) -> None:
    """UsageError unless `count` is a whole number from 1 to `most`."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{name} must be a whole number, not {count!r}")
    if not 1 <= count <= most:
        raise UsageError(f"{name} must be between 1 and {most}, not {count}")


def check_text(name: str, text: object) -> None:
    """UsageError unless `text` is a str."""
    if not isinstance(text, str):
        raise UsageError(f"{name} must be a str, not {text!r:.100}")


def check_seconds(name: str, seconds: float, most: float, *, least: float = 0) -> None:
    """UsageError unless `seconds` is a number from `least` to `most`."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"{name} must be a number of seconds, not {seconds!r}")
    if not least <= seconds <= most:
        raise UsageError(f"{name} must be between {least} and {most:.0f} seconds, not {seconds}")


def check_zone(name: str, when: datetime) -> None:
    """UsageError unless `when` has a time zone."""
    if when.tzinfo is None:
        raise UsageError(
            f"{name} needs a time zone", hint="for instance datetime(2030, 1, 1, tzinfo=UTC)"
        )


def split_address(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT, or None if it is anything else; a host of IPv6 may stand in
    brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def milliseconds(name: str, seconds: float | None) -> int:
    """A delay in seconds as milliseconds; None means no delay."""
    if seconds is None:
        return 0
    check_seconds(name, seconds, DELAY_MAX_SECONDS)
    return round(seconds * 1000)


def error_text(name: str, error: object) -> str:
    """The recorded form of a failure: a text unchanged, an exception as its type and text.

    At most `ERROR_MAX` characters; newlines stay, and characters that cannot be encoded (lone
    surrogates) are escaped. None is an empty text; raises UsageError for anything else.
    """
    match error:
        case None:
            text = ""
        case str():
            text = error
        case BaseException():
            text = _of_exception(error)
        case _:
            raise UsageError(
                f"{name} must be a text or an exception, not {_shown(error)}",
                hint=f"for instance {name}=str(...), or the exception itself",
            )
    # Sliced and encoded by `str` itself, whatever a subclass overrides.
    kept = str.__getitem__(text, slice(ERROR_MAX))
    return str.encode(kept, errors="backslashreplace").decode()[:ERROR_MAX]


def _of_exception(exc: BaseException) -> str:
    kind = type(exc).__name__
    try:
        text = str(exc)
    except Exception as failure:  # any class may have a broken __str__
        return f"{kind} (its text is unavailable: {type(failure).__name__})"
    return f"{kind}: {text}" if text else kind


def _shown(value: object) -> str:
    """A value and its type, for an error message."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:
        return f"an object of type {kind}"
    return f"{text[:_SHOWN_MAX]} of type {kind}"


def message_place(message_id: object) -> tuple[str, int]:
    """The pipe and seq that a message ID names; raises UsageError if it is not valid."""
    found = _MESSAGE_ID.fullmatch(message_id) if isinstance(message_id, str) else None
    if found is None:
        raise UsageError(
            f"{message_id!r} is not the id of a message", hint="it looks like PIPE:NUMBER"
        )
    return found[1], int(found[2])


def refuse_pickling(what: str, instead: str) -> NoReturn:
    """UsageError for what holds files, locks and threads of this process."""
    raise UsageError(f"a {what} cannot be pickled, copied or sent to another process", hint=instead)
