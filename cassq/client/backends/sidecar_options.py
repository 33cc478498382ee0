"""The sidecar options of a URL, and their validation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from cassq.base.tls import tls_of
from cassq.errors import ConfigError
from cassq.extents.sidecar.settings import (
    REPAIR_AFTER_SECONDS,
    REPAIR_BYTES,
    REPLICAS,
    REPLICAS_MAX,
    Settings,
)

TOKEN_VARIABLE = "CASSQ_SIDECAR_TOKEN"
TOKEN_CHARACTERS_MAX = 256
REPAIR_AFTER_MAX = 30 * 86_400

TOKEN = re.compile(rf"[!-~]{{1,{TOKEN_CHARACTERS_MAX}}}")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RATE = re.compile(r"([1-9]\d{0,11})([KMG]?)")
_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def settings_of(options: Mapping[str, str]) -> Settings:
    """The sidecar settings of a URL's options.

    If the URL has no token, it is read from the environment, since `ps` and logs show URLs. Raises
    ConfigError, which never shows the token.
    """
    zone = options.get("zone")
    if zone is not None and not _ZONE.fullmatch(zone):
        raise ConfigError(
            f"{zone!r} is not a valid zone name",
            hint="a zone has 1 to 64 letters, digits, and characters of _.-",
        )
    return Settings(
        replicas=_replicas(options.get("replicas", str(REPLICAS))),
        zone=zone or "",
        token=_token(options),
        tls=tls_of(options, "sidecar_"),
        repair_after=_repair_after(options.get("repair_after", str(REPAIR_AFTER_SECONDS))),
        repair_rate=_repair_rate(options.get("repair_rate", str(REPAIR_BYTES))),
    )


def _replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= REPLICAS_MAX):
        raise ConfigError(f"replicas must be a number from 1 to {REPLICAS_MAX}, not {text!r}")
    return int(text)


def _repair_after(text: str) -> float:
    if not re.fullmatch(r"\d{1,8}(\.\d+)?", text, re.ASCII) or float(text) > REPAIR_AFTER_MAX:
        raise ConfigError(
            f"repair_after must be a number of seconds up to {REPAIR_AFTER_MAX:,}, not {text!r}"
        )
    return float(text)


def _repair_rate(text: str) -> int:
    rate = _RATE.fullmatch(text)
    if rate is None:
        raise ConfigError(
            f"repair_rate must be bytes per second, such as 500K, 64M or 1G, not {text!r}"
        )
    return int(rate[1]) * _SCALES[rate[2]]


def _token(options: Mapping[str, str]) -> str:
    text, where = options.get("sidecar_token"), "sidecar_token"
    if text is None:
        text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text:
            return ""
    if not TOKEN.fullmatch(text):
        raise ConfigError(
            f"{where} is not a valid token",
            hint=f"it has 1 to {TOKEN_CHARACTERS_MAX} ASCII characters and no spaces; in a URL"
            " %2B is a +, %26 an &, and %25 a %",
        )
    return text
