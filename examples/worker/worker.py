"""What a worker does with a message: `cassq worker worker:send --queue mails`."""

import json

import cassq


def send(message: cassq.Message) -> None:
    """May take an hour, and may fail: an error is recorded, and the message comes again."""
    mail = json.loads(message.payload)
    if "@" in mail["to"]:
        print("sent to", mail["to"], flush=True)
    else:
        message.dead(f"{mail['to']!r} is not an address")  # trying again would not help
