"""Apps: the tasks of a program, and where the queues of their calls are.

    from cassq.tasks import App

    app = App("file:cassq-data")

    @app.task(retries=[10, 60, 600])
    def send(user_id: int, text: str) -> None: ...

    send.push(7, text="hi")         # in any process
    app.run()                       # or `cassq worker MODULE:app`

A call is a message whose payload holds the name of the task and the arguments. An app is a handler:
a worker calls it with a message, and it runs the task named there.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from cassq.base.arguments import check_seconds, message_place
from cassq.client.client import Client
from cassq.client.connecting import connect
from cassq.client.places import ensure_queue
from cassq.client.queue import Queue
from cassq.consumer.delivery import Message
from cassq.errors import (
    BackendError,
    ConfigError,
    UsageError,
)
from cassq.message.message_ids import MessageId
from cassq.model.queues import QueuePolicy, check_queue_name
from cassq.model.ticks import checked_cron, ticks_of
from cassq.producer.pusher import Pusher
from cassq.settings import Missed, Overlap, QueueSettings, WorkerSettings
from cassq.tasks import inline, running
from cassq.tasks.calls import Call, Codec, Serializer, result_key
from cassq.tasks.groups import group_of, have_keyed_group
from cassq.tasks.handles import Handle
from cassq.tasks.pushing import Pushing
from cassq.tasks.schedules import CronEntry, put_schedule
from cassq.tasks.steps.cancelling import cancel_call
from cassq.tasks.steps.context import Context
from cassq.tasks.steps.moving import MoveContext
from cassq.tasks.steps.overview import send_signal
from cassq.tasks.steps.records import CANCELLED
from cassq.tasks.task import Pushed, Task, TaskSettings
from cassq.tasks.workers import Workers
from cassq.worker.eventloop.message import Message as AsyncMessage
from cassq.worker.handler import AsyncHandler, Handler

logger: logging.Logger = logging.getLogger("cassq")

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "tasks"
# The `dedup_window` of queues that an app creates for tasks with `unique`.
UNIQUE_SECONDS = 86_400.0
RESULTS_SECONDS_MAX = 365 * 86_400.0


class Declaring(Protocol):
    """The decorator that `@app.task(...)` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """The tasks of a program. Thread-safe, and safe to use after a fork: each process opens its own
    client, at its first push."""

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        queues: Mapping[str, QueueSettings] | None = None,
        routes: Mapping[str, str] | None = None,
        serializer: Serializer = "json",
        results_kept: float = 86_400.0,
    ) -> None:
        """url: as for `cassq.connect`. queue: for tasks that name no other queue. queues: settings
        of queues that the app creates when it first needs them. routes: queues by patterns of task
        names, as in {"mail.*": "mails"}; the first pattern that matches counts. serializer: "json",
        or "msgpack", which also takes bytes and times. results_kept: how many seconds to keep the
        results of tasks with `results=True`, and the step records of tasks that are over. Cost:
        none before the first push.
        """
        self.url: str | None = url
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.codec: Codec = Codec(serializer)
        check_seconds("results_kept", results_kept, RESULTS_SECONDS_MAX, least=1)
        self.results_kept: float = results_kept
        self._default = check_queue_name(queue)
        self._settings = dict(queues or {})
        self._routes = dict(routes or {})
        for each in (*self._settings, *self._routes.values()):
            check_queue_name(each)
        self._crons: list[CronEntry] = []
        self._lock = threading.Lock()
        self._pid = 0
        self._client: Client | None = None
        self._pushers: dict[str, Pusher] = {}
        self._movers: dict[tuple[str, str], Pusher] = {}  # by queue, and id of the group
        self._pushing: Pushing | None = None

    # --- declaring ------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: Sequence[float] | None = None,
        timeout: float | None = None,
        unique: bool | Sequence[str] = False,
        key: str | None = None,
        priority: int = 0,
        results: bool = False,
    ) -> Declaring: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: Sequence[float] | None = None,
        timeout: float | None = None,
        unique: bool | Sequence[str] = False,
        key: str | None = None,
        priority: int = 0,
        results: bool = False,
    ) -> Any:
        """Make a function a task; it may be async. Use it as `@app.task`, or `@app.task(...)`.

        name: identifies it in calls; MODULE.FUNCTION by default. queue: where its calls are pushed;
        by default as the app's routes say. retries: seconds to wait before each further attempt; if
        the last attempt fails, the call becomes a dead letter; None: as the queue's policy says.
        timeout: seconds after which an attempt fails. unique: calls with equal arguments (or equal
        values of the named ones) count as one call within the queue's `dedup_window`. key: the name
        of a parameter; calls with the same value of it run one after another, in order. priority: 0
        to 9, the most urgent. results: keep what it returns, for `Handle.result`.

        Raises UsageError, which says what is wrong.
        """
        if isinstance(unique, str):
            raise UsageError(
                f"unique must be True, or the names of parameters, not {unique!r}",
                hint=f"write unique=({unique!r},)",
            )
        same = tuple(unique) if isinstance(unique, (list, tuple)) else bool(unique)

        def declared(function: Callable[..., Any]) -> Task[..., Any]:
            named = name or _name_of(function)
            if named in self.tasks:
                raise UsageError(
                    f"two tasks are named {named!r}", hint="give one of them another name="
                )
            chosen = self._queue_of(named, queue)
            task_settings = TaskSettings(
                chosen, retries, timeout, same, key, priority, bool(results)
            )
            return self.tasks.setdefault(named, Task(self, function, named, task_settings))

        return declared if function is None else declared(function)

    def cron(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        missed: Missed = "once",
        overlap: Overlap = "allow",
        name: str | None = None,
        queue: str | None = None,
        retries: Sequence[float] | None = None,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Callable[[Callable[[], R] | Callable[[Context], R]], Task[[], R]]:
        """Make a function a task that is pushed once at each tick, however many workers run. It
        must be callable without arguments; it may take a `Context`. A worker of the app, when it
        starts, creates the schedule, with the name of the task.

        cron, tz, missed, overlap: as for `Client.create_schedule`. The rest: as for `task`.
        """
        ticks_of(checked_cron(cron), tz, 0)

        def declared(function: Callable[[], R] | Callable[[Context], R]) -> Task[[], R]:
            declaring = self.task(
                name=name, queue=queue, retries=retries, timeout=timeout, priority=priority
            )
            task: Task[[], R] = declaring(function)
            try:
                task.bind((), {})
            except TypeError as exc:
                raise UsageError(
                    f"task {task.name!r} has a schedule, so it must be callable without arguments"
                ) from exc
            self._crons.append(CronEntry(task.name, cron, tz, missed, overlap))
            return task

        return declared

    def _queue_of(self, name: str, queue: str | None) -> str:
        if queue is not None:
            return check_queue_name(queue)
        fitting = (
            routed for pattern, routed in self._routes.items() if fnmatch.fnmatchcase(name, pattern)
        )
        return next(fitting, self._default)

    @property
    def queues(self) -> list[str]:
        """The names of the queues that its tasks use; the default queue if it has no tasks."""
        return sorted({task.settings.queue for task in self.tasks.values()} or {self._default})

    # --- pushing --------------------------------------------------------------------------------

    def push(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Push a call of a task by name; the task may be one of another program. Arguments are
        checked only if this app has the task."""
        task = self.tasks.get(name)
        if task is not None:
            return task.push(*args, **kwargs)
        call = Call(name, args, kwargs)
        return self.push_calls([Pushed(self._queue_of(name, None), call, results=True)])[0]

    def handle(self, message_id: str, queue: str | None = None) -> Handle[Any]:
        """The handle of a call that was pushed before, or elsewhere. message_id: the id of its
        message. queue: the name of its queue; None: the app's default."""
        message_place(message_id)
        return Handle(MessageId(message_id), queue or self._default, self)

    def push_calls(self, calls: Sequence[Pushed]) -> list[Handle[Any]]:
        """Push calls of one task together. Only their arguments, keys and dedup ids may differ."""
        if not calls:
            return []
        payloads = [self.codec.call(each.call) for each in calls]
        if inline.is_inline():
            return inline.take(self.tasks, calls, payloads)
        first = calls[0]
        pusher, kept = self._pusher(first.queue), first.results
        if len(calls) == 1:  # threads share the syncs of single pushes
            message_id = pusher.push(payloads[0], **first.as_push(payloads[0]).options())
            return [Handle(message_id, first.queue, self, kept=kept)]
        ids = pusher.push_many(
            payloads,
            keys=None if first.key is None else [each.key for each in calls],
            dedup_ids=None if first.dedup_id is None else [each.dedup_id for each in calls],
            delay=first.when.delay,
            due=first.when.due,
            priority=first.priority,
        )
        return [Handle(ids[at], first.queue, self, kept=kept) for at in range(len(ids))]

    async def push_soon(self, pushed: Pushed) -> Handle[Any]:
        """Push one call, together with others that are pushed at the same time. If the wait is
        cancelled, the call is pushed nevertheless."""
        payload = self.codec.call(pushed.call)
        if inline.is_inline():
            return await inline.take_soon(self.tasks, pushed, payload)
        message_id = await self._soon().push(pushed.queue, pushed.as_push(payload))
        return Handle(message_id, pushed.queue, self, kept=pushed.results)

    def _soon(self) -> Pushing:
        """The thread that pushes for this process's event loops."""
        found = self._pushing
        if found is None or self._pid != os.getpid():
            with self._lock:
                self._check_process()
                found = self._pushing = self._pushing or Pushing(self._pusher)
        return found

    def _pusher(self, queue: str) -> Pusher:
        with self._lock:
            self._check_process()
            found = self._pushers.get(queue)
            if found is None or found.closed:
                found = self._pushers[queue] = self._opened_queue(queue).pusher()
            return found

    # --- steps ----------------------------------------------------------------------------------

    def signal(
        self, message_id: str, name: str, value: object = None, queue: str | None = None
    ) -> bool:
        """Send a signal to the call with this message id: see `Task.signal`. queue: the name of its
        queue; None: the app's default."""
        return send_signal(
            self.move_context(), self.client, queue or self._default, message_id, name, value
        )

    def cancel(self, message_id: str, queue: str | None = None) -> bool:
        """Cancel a call: it does not run, or does not go on. message_id, queue: as for `signal`.

        Returns True if the call is cancelled, by this request or an earlier one. That is possible
        while it waits for a worker, a signal or its next attempt, is delayed, or sleeps. Returns
        False, and changes nothing, if a worker has it or it is over. Durable on return. Other
        groups of the queue still receive its message.

        Raises UsageError for an invalid id, and for a call that waits behind others where calls are
        kept in order: tasks with a `key`, and cp queues; MessageNotFoundError. Cost: that of
        `Queue.explain`, and one to four synced writes.
        """
        state = cancel_call(self.move_context(), self.client, queue or self._default, message_id)
        return state == CANCELLED

    def move_context(self) -> MoveContext:
        """What the steps of its tasks need. Cost: none once the client is open."""
        return MoveContext(self.client.ports, self.codec, self._mover)

    def _mover(self, queue: str, group_id: str) -> Pusher:
        """The pusher of calls that go on later: only this group receives them."""
        with self._lock:
            self._check_process()
            found = self._movers.get((queue, group_id))
            if found is None or found.closed:
                opened = self._connected().queue(queue).pusher_for(group_id)
                found = self._movers[queue, group_id] = opened
            return found

    # --- the client and its queues --------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The app's client in this process, opened when it is first needed."""
        with self._lock:
            self._check_process()
            return self._connected()

    def use(self, client: Client) -> None:
        """Use this client in this process from now on; `close` closes it. A client that the app
        used before stays open."""
        self._let_go()
        with self._lock:
            self._pid, self._client = os.getpid(), client

    def close(self) -> None:
        """Finish pushes, and close the client in this process. The app can be used again."""
        client = self._let_go()
        if client is not None:
            client.close()

    def _let_go(self) -> Client | None:
        """Finish pushes from event loops, and forget the client; returns it."""
        with self._lock:
            self._check_process()
            pushing, self._pushing = self._pushing, None
        if pushing is not None:
            pushing.close()
        with self._lock:
            client = self._client
            self._forget()
        return client

    def __enter__(self) -> App:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """Forget what was opened before a fork: it belongs to the parent."""
        if self._pid != os.getpid():
            self._forget()

    def _forget(self) -> None:
        self._pid, self._client, self._pushing = os.getpid(), None, None
        self._pushers, self._movers = {}, {}

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self.url)
        return self._client

    def _opened_queue(self, name: str) -> Queue:
        """The queue with this name, created if it does not exist. Raises ConfigError if its policy
        or its groups do not suit its tasks."""
        client = self._connected()
        tasks = [task.settings for task in self.tasks.values() if task.settings.queue == name]
        settings = self._settings.get(name, {})
        if any(task.unique for task in tasks):
            settings = {"dedup_window": UNIQUE_SECONDS, **settings}
        most = max((len(task.retries) for task in tasks if task.retries is not None), default=0)
        if most >= QueuePolicy().max_deliveries:
            settings = {"max_deliveries": most + 1, **settings}
        queue = ensure_queue(client, name, settings)
        if any(task.key is not None for task in tasks):
            have_keyed_group(queue)
        if queue.policy.max_deliveries <= most:
            raise ConfigError(
                f"queue {name!r} allows {queue.policy.max_deliveries} deliveries, and a task has"
                f" {most} retries",
                hint=f"client.queue({name!r}).update(max_deliveries={most + 1})",
            )
        return queue

    @property
    def timeout_max(self) -> float:
        """The longest `timeout` of its tasks in seconds; 0 if none has one."""
        return max((task.settings.timeout or 0.0 for task in self.tasks.values()), default=0.0)

    # --- running --------------------------------------------------------------------------------

    def __call__(self, message: Message) -> None:
        """Run the call in a message; a worker calls this. Raises what the task raises."""
        running.run(message, self)

    def handler_for(self, queue: str) -> Handler | AsyncHandler:
        """The handler of one of its queues: for threads, or for an event loop if all tasks of the
        queue are async."""
        tasks = [task for task in self.tasks.values() if task.settings.queue == queue]
        if not tasks or not all(task.is_async for task in tasks):
            return self
        return _AsyncHandler(self)

    def keep(self, task: Task[Any, Any], message_id: str, value: object) -> None:
        """Store a task's result. An error here is logged; the task succeeds, as its work is
        done."""
        try:
            result = self.codec.result(task.name, value)
        except UsageError as exc:
            logger.warning("%s", exc)
            result = self.codec.error(exc.message)
        try:
            self.client.ports.catalog.results.put(result_key(message_id), result, self.results_kept)
        except BackendError as exc:
            logger.warning("the result of task %r is not kept: %s", task.name, exc)

    def prepare(self) -> dict[str, str]:
        """Create the queues and schedules of its tasks, and change schedules that are declared
        differently now. Returns, for each queue, the consumer group that runs its tasks. Cost: a
        read or two for each that needs no change."""
        with self._lock:
            self._check_process()
            groups = {name: group_of(self._opened_queue(name)) for name in self.queues}
            client = self._connected()
        for entry in self._crons:
            task = self.tasks[entry.name]
            payload = self.codec.call(Call(task.name))
            put_schedule(client, task.settings.queue, entry, payload, task.settings.priority)
        return groups

    def run(self, *queues: str, **settings: Unpack[WorkerSettings]) -> None:
        """Run calls in this process until SIGTERM or SIGINT: in threads, and those of a queue whose
        tasks are all async in an event loop. `cassq worker` does so in several processes. queues:
        some of the app's queues; all by default. settings: as for `Queue.worker`; `concurrency` and
        `max_tasks` count for each queue. Raises UsageError for a queue that none of its tasks
        uses."""
        self.worker(*queues, **settings).run()

    def worker(self, *queues: str, **settings: Unpack[WorkerSettings]) -> Workers:
        """The workers that `run` runs. Their `stop` may be called from any thread."""
        unknown = [name for name in queues if name not in self.queues]
        if unknown:
            raise UsageError(
                f"no task uses queue {unknown[0]!r}", hint=f"tasks use {', '.join(self.queues)}"
            )
        groups = self.prepare()
        chosen = {name: groups[name] for name in (queues or self.queues)}
        client = self.client
        return Workers(
            [
                client.queue(name).worker(self.handler_for(name), **_with_group(settings, group))
                for name, group in chosen.items()
            ]
        )


class _AsyncHandler:
    """An app as a handler for an event loop."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def timeout_max(self) -> float:
        """See `App`."""
        return self._app.timeout_max

    async def __call__(self, message: AsyncMessage) -> None:
        await running.run_async(message.delivered, self._app)


def _with_group(settings: WorkerSettings, group: str) -> WorkerSettings:
    found = settings.copy()
    found.setdefault("group", group)
    return found


def _name_of(function: Callable[..., Any]) -> str:
    """MODULE.FUNCTION; for the main module, the name by which other modules import it."""
    module = getattr(function, "__module__", "") or ""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        elif file:
            module = Path(file).stem
    name = getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")
    return f"{module}.{name}"
