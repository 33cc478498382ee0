"""Replication: how many replicas a keyspace has, whether the servers can keep them, and changes.

One change adds or removes at most one replica, because then any quorum before it and any quorum
after it share a server, so nothing acknowledged is overlooked. Before the next change `nodetool
repair` must have copied the data to their new servers: cassq records that a repair is due.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from cassq.cassandra.nodes import Node
from cassq.cassandra.session import KEYSPACE, Cql
from cassq.errors import BackendUnavailableError, ConfigError, UsageError

_REPLICAS = re.compile(r"((?P<name>[A-Za-z0-9_.-]+)=)?(?P<count>[1-9][0-9]?)")

_STRATEGY = "'class': 'NetworkTopologyStrategy'"
# In `meta`, while a repair is due: the replication that it was changed to.
REPAIR_DUE = "repair_due"
SET_REPAIR_DUE = "UPDATE meta SET value = ? WHERE key = 'repair_due'"
DROP_REPAIR_DUE = "DELETE FROM meta WHERE key = 'repair_due'"


def replicas_of(cql: Cql) -> dict[str, int] | None:
    """Replicas by data centre of the keyspace; "" is for all of them. None: no keyspace."""
    found = cql.read(KEYSPACE, (cql.contact.keyspace,))
    if not found:
        return None
    settings = dict(found[0][0])
    factors = {name: count for name, count in settings.items() if count.isdigit()}
    if settings["class"].endswith("SimpleStrategy"):
        return {"": int(factors["replication_factor"])}
    return {name: int(count) for name, count in factors.items()}


def least_replicas(cql: Cql) -> int:
    """The number of replicas in the data centre with the fewest."""
    return min((replicas_of(cql) or {}).values(), default=1)


def as_text(replicas: Mapping[str, int]) -> str:
    """Replication as written in `--replication`: `dc1=3,dc2=3`, or `3`."""
    return ",".join(f"{name}={count}" if name else str(count) for name, count in replicas.items())


def parse_replication(text: str) -> dict[str, int]:
    """The inverse of `as_text`; ConfigError for anything else."""
    replicas: dict[str, int] = {}
    for part in text.split(","):
        match = _REPLICAS.fullmatch(part)
        name = (match["name"] or "") if match else ""
        if match is None or name in replicas or (not name and part != text):
            raise ConfigError(
                f"{text!r} is not a valid replication",
                hint="use --replication 3, or --replication dc1=3,dc2=3",
            )
        replicas[name] = int(match["count"])
    return replicas


def spread(replicas: Mapping[str, int], nodes: Sequence[Node]) -> dict[str, int]:
    """Replicas by data centre, with "" spread over all of them."""
    if "" in replicas:
        return dict.fromkeys(sorted({node.data_centre for node in nodes}), replicas[""])
    return dict(replicas)


# --- what the servers can keep ------------------------------------------------------------------


def obstacle(
    replicas: Mapping[str, int], nodes: Sequence[Node]
) -> ConfigError | BackendUnavailableError | None:
    """Why a quorum of these replicas cannot answer: there are too few servers, or too few of them
    are up. None if it can."""
    for name, count in spread(replicas, nodes).items():
        there = [node for node in nodes if node.data_centre == name]
        up = sum(node.up for node in there)
        needed = count // 2 + 1
        if not there:
            return ConfigError(
                f"there is no data centre {name!r}",
                hint=f"the data centres are {_listed(nodes)}",
            )
        if len(there) < needed:
            return ConfigError(
                f"data centre {name} has {servers(len(there))}, but {count} replicas need {needed}"
                " servers",
                hint="start more servers, or lower the replication:"
                f" `cassq schema change --replication {len(there)}`",
            )
        if up < needed:
            return BackendUnavailableError(
                f"only {up} of {servers(len(there))} in data centre {name} answer, but {count}"
                f" replicas need {needed}",
                hint="start the servers that are down (`nodetool status` lists them), then try"
                " again",
            )
    return None


def refuse_impossible(replicas: Mapping[str, int], nodes: Sequence[Node]) -> None:
    """Raise an error for replication that a keyspace cannot have now."""
    for name, count in spread(replicas, nodes).items():
        there = sum(node.data_centre == name for node in nodes)
        if there and count > there:
            raise ConfigError(
                f"data centre {name} has {servers(there)}: it cannot keep {count} replicas",
                hint=f"start more servers first, or give --replication {there}",
            )
    found = obstacle(replicas, nodes)
    if found is not None:
        raise found


def servers(count: int) -> str:
    """A number of servers, for people."""
    return "1 server" if count == 1 else f"{count} servers"


def _listed(nodes: Sequence[Node]) -> str:
    return ", ".join(sorted({node.data_centre for node in nodes}))


# --- making and changing ------------------------------------------------------------------------


def create_keyspace(cql: Cql, replicas: Mapping[str, int]) -> None:
    """Create the keyspace of the session, unless it exists."""
    cql.execute(
        f'CREATE KEYSPACE IF NOT EXISTS "{cql.contact.keyspace}"'
        f" WITH replication = {_factors(replicas)}"
    )


def set_replication(
    cql: Cql, desired: Mapping[str, int], *, repaired: bool, tables: bool
) -> str | None:
    """Change the replication of the session's keyspace; return what must be done next, if anything.

    repaired: all servers were repaired since the last change. tables: the keyspace has some; then
    one replica at most is added or removed. Raises ConfigError for replication that the servers
    cannot keep, or a keyspace that cassq did not create; UsageError if a repair or a smaller step
    must come first.
    """
    keyspace = cql.contact.keyspace
    there = replicas_of(cql)
    if there is None:
        raise ConfigError(
            f"there is no keyspace {keyspace!r}", hint="`cassq schema apply` creates it"
        )
    nodes = cql.nodes()
    refuse_impossible(desired, nodes)
    if "" in there and len(nodes) > 1:
        raise ConfigError(
            f"keyspace {keyspace!r} has SimpleStrategy, which cassq does not use",
            hint="change it to NetworkTopologyStrategy with ALTER KEYSPACE, then repair it",
        )
    old, new = spread(there, nodes), spread(desired, nodes)
    if tables:
        refuse_large_step(old, new, nodes)
    # Where there are fewer servers than a quorum, nothing can be read, and no server is added.
    noted = tables and obstacle(old, nodes) is None
    if noted:
        _check_repaired(cql, repaired=repaired)
    if old == new:
        return None
    if noted:
        cql.write(SET_REPAIR_DUE, (as_text(new),))
    cql.execute(f'ALTER KEYSPACE "{keyspace}" WITH replication = {_factors(new)}')
    if not noted:
        return None
    return (
        f"run `nodetool repair --full {keyspace}` on each server now; then"
        f" `cassq schema change --replication {as_text(new)} --repaired` notes that it is done"
    )


def _factors(replicas: Mapping[str, int]) -> str:
    counts = (f"'{name or 'replication_factor'}': {count}" for name, count in replicas.items())
    return f"{{{_STRATEGY}, {', '.join(counts)}}}"


def refuse_large_step(
    old: Mapping[str, int], new: Mapping[str, int], nodes: Sequence[Node]
) -> None:
    """Raise UsageError if more than one server gains or loses replicas. A data centre with fewer
    servers than replicas has one replica per server."""
    there = Counter(node.data_centre for node in nodes)
    steps = {
        name: min(new.get(name, 0), there[name]) - min(old.get(name, 0), there[name])
        for name in {*old, *new}
    }
    if sum(abs(step) for step in steps.values()) > 1:
        name = min(name for name, step in steps.items() if step)
        first = old.get(name, 0) + (1 if steps[name] > 0 else -1)
        shown = as_text({**old, name: first})
        raise UsageError(
            f"replication {as_text(old)} cannot become {as_text(new)} in one step: servers without"
            " the messages could outvote servers that have them",
            hint=f"begin with --replication {shown}, and repair after each step",
        )


def _check_repaired(cql: Cql, *, repaired: bool) -> None:
    due = repair_due(cql)
    if due and repaired:
        cql.write(DROP_REPAIR_DUE)
    elif due:
        raise UsageError(
            f"a repair is due since the replication was changed to {due}",
            hint=f"run `nodetool repair --full {cql.contact.keyspace}` on each server, then add"
            " --repaired",
        )


def repair_due(cql: Cql) -> str | None:
    """The last changed replication, if a repair has been due since that change."""
    rows = cql.read("SELECT value FROM meta WHERE key = 'repair_due'")
    return str(rows[0][0]) if rows else None
