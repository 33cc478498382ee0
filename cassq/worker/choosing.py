"""Which loop runs a handler: threads for a plain function, an event loop for an async one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from cassq.worker.handler import AsyncHandler, Handler, is_async
from cassq.worker.loop import LoopSettings, Worker, WorkSource

if TYPE_CHECKING:
    from cassq.worker.tasks import AsyncWorker

AnyHandler = Handler | AsyncHandler
AnyWorker: TypeAlias = "Worker | AsyncWorker"


def worker_of(source: WorkSource, handler: AnyHandler, settings: LoopSettings) -> AnyWorker:
    """The worker for a handler. Raises UsageError for what is not one."""
    if not is_async(handler):
        return Worker(source, cast(Handler, handler), settings)
    from cassq.worker.tasks import AsyncWorker  # asyncio takes long to load

    return AsyncWorker(source, cast(AsyncHandler, handler), settings)
