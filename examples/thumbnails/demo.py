"""The command: starts the service and a worker, and sends pictures, two of them broken.

What it says is checked; the exit code is 1 if anything is not as expected.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx

HERE = Path(__file__).parent
SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 40.0
CUT_OFF, NO_PICTURE = "cut-off.jpg", "letter.jpg"


class UnexpectedError(click.ClickException):
    """Something was not as expected."""


def pictures_of(folder: Path | None) -> list[Path]:
    """The pictures in a folder; by default those that come with Matplotlib."""
    if folder is None:
        spec = importlib.util.find_spec("matplotlib")  # found, not imported, which takes long
        if spec is None or spec.origin is None:
            raise click.ClickException("the pictures are in a package: pip install matplotlib")
        folder = Path(spec.origin).parent / "mpl-data" / "sample_data"
    found = sorted(each for each in folder.iterdir() if each.suffix in (".jpg", ".jpeg", ".png"))
    if not found:
        raise click.UsageError(f"there is no picture in {folder}")
    return found


@contextmanager
def running(
    *command: str, log: Path, environment: dict[str, str], keep: tuple[int, ...] = ()
) -> Iterator[None]:
    """Run a program of Python beside this one, and end it with SIGTERM. log: what it prints goes
    there."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=HERE,
            env=environment,
            pass_fds=keep,
            stdout=file,
            stderr=file,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Service:
    """The running service, as its clients see it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def send(self, name: str, picture: bytes) -> dict[str, str]:
        """The ids of the calls that make a picture's thumbnails, by their widths."""
        answer = self._client.put(f"/pictures/{name}", content=picture).raise_for_status()
        ids: dict[str, str] = answer.json()
        return ids

    def save(self, name: str, width: str, call: str, out: Path) -> None:
        """Wait for a thumbnail, and keep it."""
        answer = self._client.get(f"/thumbnails/{call}", params={"wait": 30})
        if answer.status_code != 200:
            raise UnexpectedError(f"{name} has no thumbnail {width} wide: {answer.text}")
        path = out / f"{Path(name).stem}-{width}.png"
        path.write_bytes(answer.content)
        click.echo(f"  {name:32} {width:>4} wide: {len(answer.content):7,} bytes, in {path.name}")

    def await_failure(self, call: str) -> None:
        """Wait for a call to be given up."""
        answer = self._client.get(f"/thumbnails/{call}", params={"wait": 30})
        if answer.status_code != 422:
            raise UnexpectedError(f"call {call} was not given up: {answer.status_code}")

    def failed(self) -> list[dict[str, Any]]:
        """The calls that were given up."""
        found: list[dict[str, Any]] = self._client.get("/failed").raise_for_status().json()
        return found

    def retry(self, call: str) -> None:
        """Have a call that was given up run again."""
        self._client.post(f"/failed/{call}/retry").raise_for_status()


def show(service: Service, folder: Path, pictures: list[Path], out: Path) -> None:
    """Send everything, wait for what becomes of it, and mend one of the broken pictures."""
    click.echo("\nThumbnails of real pictures:")
    calls = {picture.name: service.send(picture.name, picture.read_bytes()) for picture in pictures}
    whole = max(pictures, key=lambda picture: picture.stat().st_size)
    cut_off = service.send(CUT_OFF, whole.read_bytes()[: whole.stat().st_size // 2])
    letter = service.send(NO_PICTURE, b"Dear reader, this is not a picture.\n")
    for name, ids in calls.items():
        for width, call in ids.items():
            service.save(name, width, call, out)

    click.echo("\nTwo files are broken. Their calls are dead letters, after three attempts or one:")
    for call in (*cut_off.values(), *letter.values()):
        service.await_failure(call)
    failed = service.failed()
    for each in failed:
        click.echo(f"  {each['picture']}, attempt {each['attempts']}: {each['error']}")
    attempts = {(each["picture"], each["attempts"]) for each in failed}
    if attempts != {(CUT_OFF, 3), (NO_PICTURE, 1)}:
        raise UnexpectedError(f"these calls were given up: {failed}")

    click.echo(f"\nThe rest of {CUT_OFF} arrives, and its calls are retried; they keep their ids:")
    shutil.copyfile(whole, folder / "pictures" / CUT_OFF)
    for width, call in cut_off.items():
        service.retry(call)
        service.save(CUT_OFF, width, call, out)


@click.command()
@click.option(
    "--pictures",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Make thumbnails of the pictures in this folder.  [default: Matplotlib's samples]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=HERE / "out",
    help="Where the thumbnails are saved.  [default: the folder `out` beside this script]",
)
def main(pictures: Path | None, out: Path) -> None:
    """Start a web service and a worker for thumbnails, send them pictures, two of them broken, and
    show what becomes of each."""
    found = pictures_of(pictures)
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cassq-thumbnails.")))
        # Listening before the service does, so that requests need not wait for it to start.
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        environment = {**os.environ, "THUMBNAILS": str(folder)}
        web = ("uvicorn", "web:web", "--fd", str(door.fileno()), "--log-level", "warning")
        kept = (door.fileno(),)
        log = out / "web.log"
        stack.enter_context(running(*web, log=log, environment=environment, keep=kept))
        worker = ("cassq", "worker", "jobs:app", "--threads", "2")
        log = out / "worker.log"
        stack.enter_context(running(*worker, log=log, environment=environment))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=SECONDS_MAX))
        show(Service(client), folder, found, out)
        audit = (sys.executable, "-m", "cassq", "audit", "thumbnails")
        environment["CASSQ_URL"] = f"file:{folder / 'queue'}"
        click.echo("\n$ cassq audit thumbnails")
        subprocess.run(audit, env=environment, check=True, timeout=SECONDS_MAX)
    click.echo(f"\nEverything is as expected. The thumbnails are in {out}, and what was logged.")


if __name__ == "__main__":
    main()
