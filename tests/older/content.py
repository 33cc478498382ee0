"""What is in a place that an earlier version made: how it is put there, and how it is found again.

It is written with what `import cassq` names alone, so that any version can make a place.
"""

from __future__ import annotations

import cassq

COUNT = 300
RESULTS = {
    # queue, group: what a group that pops until nothing is left gets
    ("plain", "default"): [b"plain 1", b"plain 2"],
    ("plain", "second"): [b"plain 0", b"plain 1", b"plain 2"],
    ("strict", "default"): [b"strict 1", b"strict 2"],
    ("packed", "default"): [b"packed " + b"x" * number for number in range(COUNT)],
    ("later", "default"): [b"at once"],
    ("held", "default"): [b"held"],
}
DEAD = [b"no good"]


def fill(client: cassq.Client) -> None:
    """Put it all there. The client is left open by whoever wants what it holds to be taken over."""
    plain = client.create_queue("plain", retry_schedule=[0.0])
    plain.create_group("second")
    with plain.pusher() as pusher:
        for number in range(3):
            pusher.push(b"plain %d" % number, headers={"number": str(number)})
    with plain.popper() as popper:
        first, second = popper.pop(2)
        first.ack()
        second.nack(error="not yet")
    strict = client.create_queue("strict", consistency="cp")
    with strict.pusher() as pusher:
        pusher.push_many([b"strict %d" % number for number in range(3)])
    with strict.popper() as popper:
        popper.commit(popper.pop())
    packed = client.create_queue("packed", compression="zstd")
    with packed.pusher() as pusher:
        pusher.push_many(RESULTS["packed", "default"])
    later = client.create_queue("later")
    with later.pusher() as pusher:
        pusher.push(b"much later", delay=9 * 365 * 86400.0)
        pusher.push(b"at once")
    bad = client.create_queue("bad")
    with bad.pusher() as pusher:
        pusher.push_many(DEAD)
    with bad.popper() as popper:
        popper.pop()[0].dead("it is bad")
    held = client.create_queue("held", claim_timeout=1.0)
    with held.pusher() as pusher:
        pusher.push(b"held")


def hold(client: cassq.Client) -> None:
    """Claim what nobody settles: the process is to end without closing anything."""
    assert len(client.queue("held").popper().pop()) == 1


def check(client: cassq.Client) -> None:
    """Find everything as it was put there, commit it, and push more: raises AssertionError."""
    for name in {queue for queue, _ in RESULTS} | {"bad"}:
        audit = client.queue(name).audit()
        assert not audit.findings, f"{name}: {audit.findings}"
    (letter,) = client.queue("bad").dead_letters().peek()
    assert letter.payload == DEAD[0], letter
    assert "it is bad" in str(letter.death), letter
    for (name, group), expected in RESULTS.items():
        assert drained(client.queue(name), group) == sorted(expected), (name, group)
    for name in {queue for queue, _ in RESULTS}:
        with client.queue(name).pusher() as pusher:
            pusher.push(b"new")
    for name, group in RESULTS:
        assert drained(client.queue(name), group) == [b"new"], (name, group)
        audit = client.queue(name).audit()
        assert not audit.findings, f"{name}: {audit.findings}"
    merged = client.queue("bad").dead_letters().merge()
    assert merged.complete, merged
    assert drained(client.queue("bad"), "default") == DEAD
    client.reap()


def drained(queue: cassq.Queue, group: str) -> list[bytes]:
    """All that a group gets, committed, but for what comes much later."""
    found: list[bytes] = []
    with queue.popper(group) as popper:
        while messages := popper.pop(100, wait=3.0 if not found else 0.0):
            for message in messages:
                number = message.headers.get("number")
                assert number is None or message.payload.endswith(number.encode()), message
            found += [message.payload for message in messages]
            popper.commit(messages)
    return sorted(payload for payload in found if payload != b"much later")
