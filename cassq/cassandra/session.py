"""CQL: one session with a Cassandra cluster, shared by the catalog and the extent store.

Statements are prepared once. Plain writes are used so that they are idempotent, and transient
failures are retried until the call's patience is over. Conditional statements (LWT) are sent once:
one without an answer may or may not have been applied, and raises BackendError with
`outcome_unknown`; its caller reads back. The number of requests in flight is bounded.

The driver's errors are translated here; nothing above sees them.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from weakref import ref

from cassandra import DriverException
from cassandra.cluster import Cluster, ResponseFuture, Session, _discard_cluster_shutdown
from cassandra.pool import Host
from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement

from cassq.base.clock import ATTEMPTS_MAX, Clock, Stopwatch, attempts
from cassq.base.counters import Requests
from cassq.cassandra.cluster_time import ClusterTime, Learn
from cassq.cassandra.connecting import ConnectBudget
from cassq.cassandra.connection import Encoder
from cassq.cassandra.contact import (
    CONSISTENCIES,
    SERIALS,
    STALE_SECONDS,
    Contact,
    cluster,
)
from cassq.cassandra.errors import (
    OverloadedError,
    explained,
    no_data_centre,
    reasons,
    unconnected,
)
from cassq.cassandra.nodes import NODE_PAUSE, Node, ask_nodes, schemas_differ, seem_agreed
from cassq.cassandra.speculation import Speculation
from cassq.cassandra.tries import (
    CONFLICT_PAUSE,
    PATIENCE_SECONDS,
    UNSURE_MAX,
    FailureBudget,
    Tries,
    note_answer,
    note_error,
    unanswered,
)
from cassq.errors import BackendError, BackendTimeoutError, ClosedError, ConfigError

logger: logging.Logger = logging.getLogger("cassq")

# The table of a statement, where its keyspace is not named.
_TABLE = re.compile(
    r"\b(FROM|INTO|UPDATE|TRUNCATE|ON|TABLE(?: IF(?: NOT)? EXISTS)?) (?!IF\b)(\w+)(?![\w.])"
)

# The same with a keyspace of the servers' own.
_SYSTEM_TABLE = re.compile(r"\bFROM (\w+\.\w+)")

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]  # its text, and the values of its question marks
Stamp = Callable[[], int]  # see `Cql.stamp`

IN_FLIGHT = 64
# Batches are prepared as a whole if they have at most this many statements, and once they were sent
# this often; at most this many different ones are counted or prepared.
WHOLE_MAX, WHOLE_AFTER, WHOLE_KEPT_MAX = 8, 8, 64
SCHEMA_SECONDS = 60.0
MEASUREMENTS = 3  # of the servers' time, at the start

# A server's time.
SERVER_TIME = "SELECT toUnixTimestamp(now()) FROM system.local"
# The replication of a keyspace; no row if it does not exist.
KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"


def _forget_timer(_answer: object, sent: ref[ResponseFuture]) -> None:
    """Free a statement, and the payloads in it, with the last reference to its future: a future and
    its timer refer to each other. The driver has cancelled the timer."""
    future = sent()
    if future is not None:
        future._timer = None


def settled(act: Callable[[], bool], look: Callable[[], bool]) -> bool:
    """The result of `act`, a conditional write; if its outcome is unknown, what `look` finds
    afterwards. look: checks, by a read with `serial=True`, for a value that only we can write."""
    try:
        return act()
    except BackendError as exc:
        if not exc.outcome_unknown:
            raise
        try:
            return look()
        except BackendError as again:
            raise exc from again


def _is_conditional(text: str) -> bool:
    return " IF " in text or "\nIF " in text


@cache
def kind_of(text: str, *, serial: bool = False) -> tuple[str, str]:
    """The kind of a statement: its verb and its table. serial: it is a read at a serial level."""
    text = text.lstrip()
    match = _TABLE.search(text) or _SYSTEM_TABLE.search(text)
    table = match[match.lastindex or 0] if match else ""
    if text.startswith("SELECT"):
        return ("serial read" if serial else "read"), table
    return ("conditional write" if _is_conditional(text) else "write"), table


def _deciding(texts: Sequence[str]) -> str:
    """The statement of a batch that decides its kind: a conditional one, if there is one."""
    return next((text for text in texts if _is_conditional(text)), texts[0])


class Cql:
    """A session. Thread-safe. time: the cluster's; it stamps plain writes, so that a client with a
    wrong wall clock does not undo the writes of others.

    Raises BackendUnavailableError when no contact point answers, ConfigError for wrong
    credentials or an unknown data centre.

    keyspace: used for every statement; None before it exists. patience, call: see `FailureBudget`.
    requests: counts outcomes, and times answers by `kind_of`. build: makes the driver's cluster.
    """

    def __init__(
        self,
        contact: Contact,
        clock: Clock,
        *,
        keyspace: str | None = None,
        patience: float = PATIENCE_SECONDS,
        call: Callable[[], tuple[int, int]] | None = None,
        requests: Requests | None = None,
        build: Callable[[Contact, Stamp, Speculation, ConnectBudget], Cluster] = cluster,
    ) -> None:
        self.contact: Contact = contact
        self._clock = clock
        self._patience = FailureBudget(clock, patience, call)
        self._speculation = Speculation(contact.speculate, clock.boot_ms)
        self._prepared: dict[str, PreparedStatement] = {}
        # Of batches, by the texts of their statements; a number until they are prepared.
        self._batches: dict[tuple[str, ...], int | PreparedStatement] = {}
        self._closed = False
        self.time: ClusterTime = ClusterTime(clock, self._ask_time)
        self.requests: Requests = requests or Requests()
        self._stamp_us = 0
        self._stamping = threading.Lock()
        try:
            budget = ConnectBudget(patience, clock.boot_ms)
            self._cluster = build(contact, self.stamp, self._speculation, budget)
        except DriverException as exc:
            raise unconnected(exc, contact, set()) from exc
        try:
            self._session: Session = self._cluster.connect()
        except BaseException as exc:
            names = self._data_centres()
            self._cluster.shutdown()
            raise unconnected(exc, contact, names) from exc
        self._session.client_protocol_handler = Encoder
        self._consistency = CONSISTENCIES[contact.consistency]
        self._serial = SERIALS[contact.serial]
        self._keyspace = keyspace
        self._schema_node: Host | None = None
        try:
            self._find_data_centre()
            if keyspace is not None and not self.read(KEYSPACE, (keyspace,)):
                raise ConfigError(
                    f"Cassandra at {contact.label} has no keyspace {keyspace!r}",
                    hint="create it: `cassq schema apply --url URL`",
                )
            if keyspace is not None:
                self.use(keyspace)
            for _ in range(MEASUREMENTS):
                asked_ms = clock.boot_ms()
                self.time.learn(asked_ms, self.read(SERVER_TIME)[0][0])
        except BaseException:
            self.close()
            raise

    def _find_data_centre(self) -> None:
        """Name the local data centre even if there is only one, so that all clients refer to it in
        the same way."""
        names, name = self._data_centres(), self.contact.data_centre
        if not name and len(names) > 1:
            raise no_data_centre(name, names)
        self.contact = replace(self.contact, data_centre=name or names.pop())

    def _data_centres(self) -> set[str]:
        return {host.datacenter for host in self._cluster.metadata.all_hosts() if host.datacenter}

    # --- reading ------------------------------------------------------------------------------

    def read(self, text: str, values: Sequence[Any] = (), *, serial: bool = False) -> list[Row]:
        """The rows of one SELECT, all pages. serial: linearized with conditional writes; only such
        a read shows whether one with an unknown outcome was applied."""
        return self.read_many([(text, values)], serial=serial)[0]

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        """The rows of each of several SELECTs, run concurrently."""
        level = self._serial if serial else self._consistency
        bounds = [self._bound(text, values, level) for text, values in statements]
        return [list(rows) for rows in self._all(bounds)]

    # --- plain writes -------------------------------------------------------------------------

    def write(self, text: str, values: Sequence[Any] = ()) -> None:
        """One plain, idempotent write, applied on return."""
        self.write_many([(text, values)])

    def write_many(self, statements: Iterable[Statement]) -> None:
        """Independent, plain, idempotent writes, run concurrently; all applied on return."""
        for _ in self._all([self._bound(t, v, self._consistency) for t, v in statements]):
            pass

    def batch(self, statements: Sequence[Statement]) -> BatchStatement | BoundStatement:
        """Writes to one partition that are applied together. A short batch that is sent often is
        prepared as a whole, which saves work on the server and in the client."""
        texts = tuple(text for text, _ in statements)
        whole = self._whole(texts) if len(texts) <= WHOLE_MAX else None
        if whole is not None:
            bound = whole.bind([value for _, values in statements for value in values])
            return self._levelled(bound, kind_of(_deciding(texts)), self._consistency)
        batch = BatchStatement(
            BatchType.UNLOGGED,
            consistency_level=self._consistency,
            serial_consistency_level=self._serial,
        )
        for text, values in statements:
            batch.add(self._statement(text), values)
        batch.kind = kind_of(_deciding(texts))
        return batch

    def _whole(self, texts: tuple[str, ...]) -> PreparedStatement | None:
        """The prepared statement for this batch, once it was sent often enough."""
        # Two threads may count, or prepare, the same one at once, which does no harm.
        found = self._batches.get(texts, 0)
        if isinstance(found, int):
            if len(self._batches) >= WHOLE_KEPT_MAX and texts not in self._batches:
                return None
            self._batches[texts] = found + 1
            if found < WHOLE_AFTER:
                return None
            inner = "; ".join(self._qualified(text) for text in texts)
            text = f"BEGIN UNLOGGED BATCH {inner}; APPLY BATCH"
            found = self._batches[texts] = self._prepare(text, text)
        return found

    # --- conditional writes -------------------------------------------------------------------

    def apply(self, text: str, values: Sequence[Any] = ()) -> tuple[bool, Row]:
        """One conditional write: whether it was applied, and if not, the row that was there.

        Raises BackendError with `outcome_unknown` when that is not known.
        """
        return self._apply(self._bound(text, values, self._consistency))

    def apply_batch(self, statements: Sequence[Statement]) -> bool:
        """Statements of one partition, some of them conditional: all of them are applied, or
        none. Raises as `apply` does."""
        return self._apply(self.batch(statements))[0]

    def apply_many(self, statements: Iterable[Statement]) -> list[bool | None]:
        """Independent conditional writes, run concurrently; None where the outcome is unknown."""
        return self._apply_all(
            [partial(self._bound, t, v, self._consistency) for t, v in statements]
        )

    def apply_batches(self, batches: Iterable[Sequence[Statement]]) -> list[bool | None]:
        """Like `apply_many`, for batches, each of one partition."""
        return self._apply_all([partial(self.batch, statements) for statements in batches])

    def answers_of(self, batches: Iterable[Sequence[Statement]]) -> list[bool | BackendError]:
        """Like `apply_batches`, but with the error of each batch that has no answer."""
        return self._answers([partial(self.batch, statements) for statements in batches])

    def apply_settled(self, text: str, values: Sequence[Any], look: Callable[[], bool]) -> bool:
        """Whether one conditional write was applied; if that is unknown, what `look` finds, as in
        `settled`."""
        return settled(lambda: self.apply(text, values)[0], look)

    def apply_until(
        self, text: str, values: Sequence[Any], look: Callable[[], bool], what: str
    ) -> None:
        """Repeat one conditional write, which may be applied twice, until it is applied, or `look`
        finds that it was or need not be. what: for the error, what stays unknown otherwise."""
        for _ in self.attempts(UNSURE_MAX):
            if self.apply_settled(text, values, look) or look():
                return
        raise unanswered(what)

    def apply_all(self, statements: Iterable[Statement], what: str) -> None:
        """Repeat independent conditional writes, which may be applied twice, side by side, until
        each has an answer, whatever it is. what: as for `apply_until`."""
        left = list(statements)
        for _ in self.attempts(UNSURE_MAX):
            answers = self.apply_many(left)
            left = [each for each, answer in zip(left, answers, strict=True) if answer is None]
            if not left:
                return
        raise unanswered(what)

    def attempts(self, most: int = ATTEMPTS_MAX) -> Iterator[None]:
        """See `cassq.base.clock`; they end when a call's patience would."""
        seconds = self._patience.seconds
        return attempts(self._clock, most, seconds=seconds, pause=CONFLICT_PAUSE)

    def tries(self) -> Tries:
        """The attempts of one statement, for callers that send it themselves."""
        return Tries(self._clock, self._patience)

    def _apply_all(self, writes: Sequence[Callable[[], Any]]) -> list[bool | None]:
        answers: list[bool | None] = []
        for answer in self._answers(writes):
            if isinstance(answer, bool):
                answers.append(answer)
            elif answer.outcome_unknown:
                answers.append(None)
            else:
                raise answer
        return answers

    def _answers(self, writes: Sequence[Callable[[], Any]]) -> list[bool | BackendError]:
        """The outcome of each conditional write, `IN_FLIGHT` of them at a time. writes: make the
        statements; this may fail too, because a statement may have to be prepared."""
        answers: list[bool | BackendError] = []
        for at in range(0, len(writes), IN_FLIGHT):
            for begun in [self._begun(make) for make in writes[at : at + IN_FLIGHT]]:
                try:
                    answers.append(
                        begun if isinstance(begun, BackendError) else self._answer(*begun)
                    )
                except BackendError as exc:
                    answers.append(exc)
        return answers

    def _begun(self, make: Callable[[], Any]) -> tuple[Any, ResponseFuture] | BackendError:
        """A statement and the future of its answer; or the error if it was not sent."""
        try:
            bound = make()
            return bound, self.send(bound)
        except BackendError as exc:
            return exc

    def _answer(self, bound: Any, sent: ResponseFuture) -> bool:
        try:
            return bool(self._result(sent, conditional=True)[0][0])
        except OverloadedError:
            self.requests.count("repeated")
            return self._apply(bound)[0]

    def _apply(self, statement: Any) -> tuple[bool, Row]:
        tries = self.tries()
        future = self.send(statement)
        while True:
            try:
                rows = self._result(future, conditional=True)
            except OverloadedError as exc:  # not begun
                tries.wait_after(exc)
                future = self.again(statement)
            else:
                first = rows[0] if rows else (False,)
                return bool(first[0]), tuple(first[1:])

    # --- sending ------------------------------------------------------------------------------

    def send(self, statement: Any) -> ResponseFuture:
        """Send a statement, for callers that keep several in flight themselves. Raises
        BackendUnavailableError if this thread's call has lost its patience."""
        if self._closed:
            raise ClosedError()
        timeout = self._patience.timeout(self.contact.timeout)
        watch = Stopwatch()
        try:
            future = self._session.execute_async(statement, timeout=timeout)
        except DriverException as exc:
            raise self._explained(exc, conditional=True) from exc
        future.add_callback(self._note_latency, statement, watch)
        sent = ref(future)
        future.add_callback(_forget_timer, sent)
        future.add_errback(_forget_timer, sent)
        return future

    def _note_latency(self, _rows: object, statement: Any, watch: Stopwatch) -> None:
        self.requests.latencies.note(statement.kind, watch.seconds())

    def again(self, statement: Any) -> ResponseFuture:
        """Send a statement again after a failed attempt."""
        self.requests.count("repeated")
        return self.send(statement)

    def bound(self, text: str, values: Sequence[Any]) -> BoundStatement:
        """A plain statement, ready to send."""
        return self._bound(text, values, self._consistency)

    def prepare(self, text: str) -> None:
        """Prepare a statement now, so that `bound` does not wait."""
        self._statement(text)

    def result(self, future: ResponseFuture, *, conditional: bool = False) -> list[Row]:
        """The rows of a statement that was sent; it is not retried."""
        return self._result(future, conditional=conditional)

    def execute(self, text: str, *, agree: bool = True) -> None:
        """Run an unprepared schema statement, at the node that ran the previous one and so has its
        result. agree: wait until all nodes have the result."""
        if self._schema_node is None or not self._schema_node.is_up:
            self._schema_node = next(iter(self._session.get_pool_state()), None)
        try:
            future = self._session.execute_async(
                self._qualified(text), timeout=SCHEMA_SECONDS, host=self._schema_node
            )
            future.result()
        except Exception as exc:
            raise self._explained(exc, conditional=True) from exc
        if agree:
            self.await_agreement()

    def await_agreement(self) -> None:
        """Wait until all nodes that are up have the same schema."""
        if not self.schema_agreed(SCHEMA_SECONDS):
            raise BackendTimeoutError(
                f"the nodes at {self.contact.label} do not agree on the schema", hint="try again"
            )

    def schema_agreed(self, seconds: float) -> bool:
        """Whether all nodes that are up have the same schema within `seconds`."""
        watch = Stopwatch()
        while schemas_differ(self._session):
            if watch.seconds() > seconds:
                return False
            self._clock.sleep(NODE_PAUSE)
        return seem_agreed(self._cluster.control_connection, self._clock, seconds)

    def use(self, keyspace: str) -> None:
        """Make statements from now on refer to the tables of this keyspace, and go to nodes that
        hold the rows. Cost: one read."""
        self._keyspace = keyspace
        try:
            self._cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)
        except DriverException:
            logger.info("the replication of %s is not known yet", self.contact.label)

    def nodes(self, *settings: str) -> list[Node]:
        """All nodes, by data centre and address, with these settings. Cost: as `ask_nodes`."""
        return ask_nodes(self._session, self._clock, self.contact.data_centre, settings)

    @property
    def cluster(self) -> Cluster:
        """The driver's cluster, for its metadata."""
        return self._cluster

    def abandon(self) -> object:
        """Return what a forked child must keep, untouched, for as long as it runs."""
        self._closed = True
        _discard_cluster_shutdown(self._cluster)  # its locks may be held for ever here
        return self

    def close(self) -> None:
        """End the session."""
        self._closed = True
        self._cluster.shutdown()

    def _all(self, statements: Sequence[Any]) -> Iterable[list[Row]]:
        """The rows of each, at most `IN_FLIGHT` at a time; failed ones are retried."""
        ahead: list[tuple[int, ResponseFuture]] = []
        for at, statement in enumerate(statements):
            while len(ahead) < min(IN_FLIGHT, len(statements) - at):
                ahead.append((self._clock.boot_ms(), self.send(statements[at + len(ahead)])))
            yield self._retried(*ahead.pop(0), statement)

    def _retried(self, sent_ms: int, future: ResponseFuture, statement: Any) -> list[Row]:
        """The rows of an attempt that was answered in time. A late answer is not trusted: if this
        process was stopped, the write may have been sent at any time since, with an old stamp."""
        tries = self.tries()
        while True:
            try:
                rows = self._result(future, conditional=False)
                if self._clock.boot_ms() < sent_ms + STALE_SECONDS * 1000:
                    return rows
            except BackendError as exc:
                tries.wait_after(exc)
            sent_ms, future = self._clock.boot_ms(), self.again(statement)

    def _result(self, future: ResponseFuture, *, conditional: bool) -> list[Row]:
        try:
            rows = list(future.result())
        except Exception as exc:
            error = self._explained(exc, conditional=conditional)
            note_error(self.requests, error)
            if isinstance(error, OverloadedError):
                self._speculation.note_overload()
            else:
                self._patience.lose(error)
            raise error from exc
        self._patience.succeeded()
        doubled, held_up = note_answer(self.requests, future)
        self._speculation.note(doubled=doubled)
        if held_up:
            self._speculation.note_overload()
        return rows

    def _bound(self, text: str, values: Sequence[Any], level: int) -> BoundStatement:
        bound = self._statement(text).bind(values)
        return self._levelled(bound, kind_of(text, serial=level == self._serial), level)

    def _levelled(self, bound: BoundStatement, kind: tuple[str, str], level: int) -> BoundStatement:
        bound.kind = kind
        bound.consistency_level = level
        bound.serial_consistency_level = self._serial
        return bound

    def stamp(self, after: int = 0) -> int:
        """A timestamp for a plain write: cluster time in microseconds, greater than any before, and
        than `after`."""
        if not self.time.is_known:
            # Only reads were sent yet. What this client's own clock says must not last, as later
            # stamps are greater than any that is noted.
            return max(self._clock.wall_ms() * 1000, after + 1)
        # Outside the lock: `now_ms` may send a request, whose stamp is requested here.
        now_us = self.time.now_ms() * 1000
        with self._stamping:
            self._stamp_us = max(now_us, self._stamp_us + 1, after + 1)
            return self._stamp_us

    def not_ahead(self, stamp_us: int) -> int:
        """A stamp, or the servers' time if that is earlier, since their clocks were set back: what
        is hidden because it is older than this must not hide what new clients write."""
        return min(stamp_us, self.time.servers_ms() * 1000)

    def _ask_time(self, learn: Learn) -> None:
        if self._closed:
            return
        asked_ms = self._clock.boot_ms()
        future = self.send(self._bound(SERVER_TIME, (), self._consistency))
        future.add_callbacks(
            lambda rows: learn(asked_ms, next(iter(rows))[0]),
            lambda exc: logger.info(
                "cannot read the time of %s: %s", self.contact.label, ", ".join(reasons(exc))
            ),
        )

    def _statement(self, text: str) -> PreparedStatement:
        if self._closed:
            raise ClosedError()
        # Two threads may prepare the same one: neither waits for the other, and it does no harm.
        return self._prepared.get(text) or self._prepare(text, self._qualified(text))

    def _prepare(self, text: str, qualified: str) -> PreparedStatement:
        tries = self.tries()
        while True:
            # The driver's `prepare` takes no timeout. Two threads may set theirs at once, and wait
            # for as long as the other: each is the client's timeout at most.
            self._session._default_timeout = self._patience.timeout(self.contact.timeout)
            try:
                prepared = self._session.prepare(qualified)
            except Exception as exc:
                error = self._explained(exc, conditional=False)
                self._patience.lose(error)
                tries.wait_after(error)
            else:
                # A speculative retry at another node must not apply a condition twice. It may where
                # the IF begins a line: senders of these count a row of their own as applied.
                prepared.is_idempotent = " IF " not in text
                self._prepared[text] = prepared
                return prepared

    def _qualified(self, text: str) -> str:
        """A statement with the keyspace of its table, since servers advise against `USE`."""
        if self._keyspace is None:
            return text
        return _TABLE.sub(rf'\1 "{self._keyspace}".\2', text, count=1)

    def _explained(self, exc: Exception, *, conditional: bool) -> BackendError:
        return explained(exc, self.contact.label, conditional=conditional)
