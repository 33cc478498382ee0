"""Names of queues and groups: kombu's names, written as cassq allows."""

from __future__ import annotations

import re
from functools import lru_cache

from cassq.model.queues import NAME_LENGTH_MAX

_OTHER = re.compile(r"[^A-Za-z0-9.-]")


@lru_cache(maxsize=1000)
def queue_name(name: str, prefix: str = "") -> str:
    """The cassq name for a kombu name: `_` is written as `__`, and other characters that cassq does
    not allow in hexadecimal, as in `_40_`. Names that are too long end with a hash.

    So different names stay different. "celery", for example, stays as it is.
    """
    from hashlib import blake2b

    def escaped(found: re.Match[str]) -> str:
        char = found.group()
        return "__" if char == "_" else f"_{ord(char):x}_"

    plain = prefix + _OTHER.sub(escaped, name)
    if len(plain) <= NAME_LENGTH_MAX:
        return plain if plain.strip(".") else f"_{plain.replace('.', '_2e_')}"
    return f"{plain[: NAME_LENGTH_MAX - 34]}_-{blake2b(name.encode(), digest_size=16).hexdigest()}"
