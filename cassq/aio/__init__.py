"""cassq for asyncio: the same queues, with methods that can be awaited.

    import cassq.aio

    async with cassq.aio.connect("file:cassq-data") as client:
        queue = await client.create_queue("thumbnails")
        await queue.push(b"cat.jpg")
        async with queue.popper() as popper:
            async for message in popper:
                print(message.payload)
                await message.ack()

Nothing here blocks the event loop: a few threads of each client make all blocking calls. A client
belongs to the loop in which it was opened.
"""

from __future__ import annotations

from cassq.aio.client import Client, Connecting, connect
from cassq.aio.popper import Popper
from cassq.aio.pusher import Pusher
from cassq.aio.queue import Queue
from cassq.worker.eventloop.message import Message

__all__ = ["Client", "Connecting", "Message", "Popper", "Pusher", "Queue", "connect"]
