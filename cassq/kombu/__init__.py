"""cassq as a transport of kombu, and so of Celery: `cassq.kombu:Transport`.

    app = Celery("mail", broker_transport="cassq.kombu:Transport", broker="file:///var/lib/cassq")

`import cassq.celery` also registers URLs such as `cassq+file:///var/lib/cassq`. A queue of kombu is
a queue of cassq. A queue that ends with its consumer, such as the inbox of a worker's remote
control, is a group of its exchange's queue.
"""

from __future__ import annotations

from cassq import extras

with extras.wanted("cassq.kombu needs", "kombu", "celery"):
    import kombu  # noqa: F401

from cassq.kombu.transport import Transport

__all__ = ["Transport"]
