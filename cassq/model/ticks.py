"""Ticks: the times at which a schedule is due, by a cron expression or at an interval. Pure.

Times are milliseconds since 1970 UTC. Cron expressions have the syntax of Debian's cron, and follow
its rules for daylight saving time (`cronsim`): a job at a fixed time that the change to summer time
skips runs once, right after the change; one whose time comes twice runs only the first time; a job
with `*` in the minutes or hours keeps its pace.

Invariants:
1. Which ticks there are does not depend on where one starts to look: `after` is monotonic.
2. Each result of `after` is later than its argument.
"""

from __future__ import annotations

import abc
import re
from datetime import UTC, datetime, tzinfo

from cassq.errors import ConfigError
from cassq.plurals import counted

EVERY = "@every"
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
INTERVAL_SECONDS_MIN = 1.0
INTERVAL_SECONDS_MAX = 366 * 86400.0
_CRON_LENGTH_MAX = 200

# The fields of an expression, by the parser's names for them, and the values that each may have.
_FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, or L for the last day",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT; 0 and 7 are Sunday",
}
_HINT = "write five fields, as in '0 3 * * *', or @daily, or @every 5m"
# Names that mean a different zone on each machine.
_MACHINE_ZONES = {"localtime", "posixrules"}
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_INTERVAL = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


class Ticks(abc.ABC):
    """The ticks of a schedule."""

    @abc.abstractmethod
    def after(self, at_ms: int) -> int:
        """The first tick later than `at_ms`. ConfigError if there is none in the next 50 years."""

    def latest(self, first_ms: int, until_ms: int) -> int:
        """The last tick up to `until_ms`. first_ms: a tick that is not later than that. Cost: some
        forty calls of `after`, however many ticks lie in between."""
        found, high = first_ms, until_ms
        while found < high:  # no tick lies between `high` and `until_ms`
            middle = (found + high) // 2
            tick = self.after(middle)
            if tick <= until_ms:
                found = tick
            else:
                high = middle
        return found

    def next(self, after_ms: int, count: int) -> list[int]:
        """The next `count` ticks after `after_ms`."""
        found: list[int] = []
        for _ in range(count):
            after_ms = self.after(after_ms)
            found.append(after_ms)
        return found


class EveryTicks(Ticks):
    """Ticks at an interval, counted from `anchor_ms`, which is not a tick itself."""

    def __init__(self, interval_ms: int, anchor_ms: int) -> None:
        self._interval_ms = interval_ms
        self._anchor_ms = anchor_ms

    def after(self, at_ms: int) -> int:
        passed = max(0, at_ms - self._anchor_ms) // self._interval_ms
        return self._anchor_ms + (passed + 1) * self._interval_ms


class CronTicks(Ticks):
    """Ticks of a cron expression in a time zone, later than `since_ms`. Raises ConfigError, which
    names the wrong field."""

    def __init__(self, cron: str, zone: tzinfo, since_ms: int) -> None:
        from cronsim import CronSim, CronSimError  # for users of schedules alone

        self._cron = cron
        self._zone = zone
        self._since_ms = since_ms
        self._simulate = CronSim
        if len(cron.split()) != len(_FIELDS):
            raise ConfigError(
                f"cron {cron!r} has {counted(len(cron.split()), 'field')}, not {len(_FIELDS)}",
                hint=_HINT,
            )
        try:
            CronSim(cron, datetime.fromtimestamp(0, zone))
        except CronSimError as exc:
            raise _wrong_field(cron, str(exc)) from exc

    def after(self, at_ms: int) -> int:
        at_ms = max(at_ms, self._since_ms)
        start = datetime.fromtimestamp(at_ms // 1000, self._zone)
        # In the hour that comes twice, the first ticks found may be those of its first time.
        for tick in self._simulate(self._cron, start):
            found_ms = round(tick.timestamp()) * 1000
            if found_ms > at_ms:
                return found_ms
        raise ConfigError(
            f"cron {self._cron!r} never comes due", hint="check the day of the month and the month"
        )


def ticks_of(cron: str, tz: str, since_ms: int) -> Ticks:
    """The ticks, later than `since_ms`, of an expression that `checked_cron` returned; intervals
    are counted from there.

    Raises ConfigError for an invalid expression or time zone.
    """
    if cron.startswith(EVERY):
        return EveryTicks(_interval_ms(cron), since_ms)
    return CronTicks(ALIASES.get(cron, cron), zone_of(tz), since_ms)


def checked_cron(cron: str) -> str:
    """A cron expression in the form in which it is stored. Raises ConfigError if it is too long, an
    unknown alias or an invalid interval; `ticks_of` checks the fields of an expression."""
    if not isinstance(cron, str):
        raise ConfigError(f"cron must be a str, not {type(cron).__name__}", hint=_HINT)
    if len(cron) > _CRON_LENGTH_MAX:
        raise ConfigError(f"cron may have at most {_CRON_LENGTH_MAX} characters, not {len(cron)}")
    words = cron.split()
    if not words or not words[0].startswith("@"):
        return " ".join(words)
    name = words[0].lower()
    if name == EVERY:
        return interval_cron(_interval_ms(cron) / 1000)
    if name not in ALIASES or len(words) > 1:
        raise ConfigError(
            f"cron {cron!r} is not known", hint=f"use {EVERY} 5m, {', '.join(sorted(ALIASES))}"
        )
    return name


def interval_cron(seconds: float) -> str:
    """The expression for an interval: `@every 1h30m`. Raises ConfigError for one that is out of
    range, or not a number."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ConfigError(f"every must be a number of seconds, not {seconds!r}")
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise ConfigError(
            f"every must be between 1 second and 366 days, not {seconds:g} seconds",
            hint="for longer intervals use a cron expression, as in '0 3 1 1 *'",
        )
    left, text = round(seconds * 1000), ""
    for unit in "dhm":
        count, left = divmod(left, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return f"{EVERY} {text}{left / 1000:g}s" if left else f"{EVERY} {text}"


def _interval_ms(cron: str) -> int:
    text = "".join(cron.split()[1:]).lower()
    if not _INTERVAL.fullmatch(text):
        raise ConfigError(
            f"cron {cron!r} has no valid interval", hint=f"write {EVERY} 30s, {EVERY} 5m or 1h30m"
        )
    length_ms = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return round(length_ms)


def zone_of(tz: str) -> tzinfo:
    """The time zone of that name. ConfigError for a name that this machine does not know."""
    if not isinstance(tz, str):
        raise ConfigError(
            f"tz must be the name of a time zone, not {tz!r}", hint="for instance 'Europe/Vienna'"
        )
    if tz == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # for users of schedules alone

    try:
        if tz in _MACHINE_ZONES:
            raise KeyError(tz)
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as exc:
        raise ConfigError(f"tz {tz!r:.100} is not a known time zone", hint=_zone_hint(tz)) from exc


def _zone_hint(tz: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones() - _MACHINE_ZONES
    if not known:
        return "this machine has no time zones: install the package tzdata"
    near = get_close_matches(tz[:80], known, 1, 0.7)
    return f"did you mean {near[0]!r}?" if near else "write it as in 'Europe/Vienna', or 'UTC'"


def _wrong_field(cron: str, complaint: str) -> ConfigError:
    """The error for an expression, by the parser's complaint, `Bad FIELD`."""
    field = complaint.removeprefix("Bad ")
    if field not in _FIELDS:
        return ConfigError(f"cron {cron!r} is not valid: {complaint}", hint=_HINT)
    value = cron.split()[list(_FIELDS).index(field)]
    return ConfigError(
        f"the {field} {value!r} in cron {cron!r} is not valid",
        hint=f"allowed are {_FIELDS[field]}, and *, lists, ranges and steps of these",
    )
