"""A worker: takes tasks until its supervisor ends it. Run as many processes of it as you like."""

import json
import logging
import signal
import sys

import cassq


class BadAddressError(Exception):
    """Trying again would not help."""


def send(mail: dict[str, str]) -> None:
    """The work itself, which may take an hour, and may fail."""
    if "@" not in mail["to"]:
        raise BadAddressError(f"{mail['to']!r} is not an address")
    print("sent to", mail["to"], flush=True)


def main(url: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with cassq.connect(url) as client:
        queue = client.create_queue(
            "mails",
            retry_schedule=[10, 100, 1000],  # seconds to wait after each failure
            max_deliveries=5,  # then it is a dead letter
        )
        with queue.popper() as popper:
            # What systemd, Kubernetes or Ctrl-C sends: finish the task in hand, then end.
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, lambda *_: popper.stop())
            for message in popper:
                try:
                    send(json.loads(message.payload))
                except BadAddressError as exc:
                    message.dead(exc)  # a dead letter at once, with the reason
                except Exception as exc:
                    message.nack(error=exc)  # again, by the schedule
                else:
                    message.ack()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "file:cassq-data")
