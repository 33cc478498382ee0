"""The recipes of docs/asyncio.md do what they say: FastAPI, Django, gunicorn, Jupyter."""

from __future__ import annotations

import ast
import asyncio
import http.client
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cassq
import cassq.aio
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.stage import drain

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "asyncio.md"
URL = "file:cassq-data"

pytestmark = pytest.mark.embedded_only(reason="the recipes open a directory")


def blocks(heading: str, language: str = "python") -> list[str]:
    """The blocks below a heading of the page."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    section = rest.split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def names_of(heading: str) -> dict[str, Any]:
    """What the block below a heading defines, with what the first block of the page imports."""
    names: dict[str, Any] = {"__name__": "mails", "asyncio": asyncio, "cassq": cassq}
    (block,) = blocks(heading)
    exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pushed() -> list[tuple[bytes, str]]:
    """What is in the queue of the recipes: payloads and ids."""
    with cassq.connect(URL) as client, client.queue("mails").popper() as popper:
        return [(message.payload, message.id) for message in drain(popper)]


@pytest.mark.needs("module:fastapi", "module:httpx")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fastapi_pushes_in_the_loop_that_serves(here: Path) -> None:
    import httpx

    app = names_of("FastAPI")["app"]

    async def main() -> list[str]:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
                answers = await asyncio.gather(
                    *(web.post("/mails", params={"to": f"{n}@example.org"}) for n in range(50))
                )
                assert {answer.status_code for answer in answers} == {202}
                return [answer.json()["id"] for answer in answers]

    ids = asyncio.run(main())
    found = pushed()
    assert sorted(message_id for _, message_id in found) == sorted(ids)
    assert sorted(payload for payload, _ in found) == sorted(
        b"%d@example.org" % n for n in range(50)
    )


@pytest.mark.needs("module:django")
def test_django_pushes_in_async_views(here: Path) -> None:
    import django
    from django.conf import settings
    from django.test import AsyncClient
    from django.urls import path

    names = names_of("Django")
    if not settings.configured:
        settings.configure(ROOT_URLCONF="mail_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="-")
        django.setup()
    urls = type(sys)("mail_urls")
    urls.__dict__["urlpatterns"] = [path("mails", names["send_mail"])]
    sys.modules["mail_urls"] = urls

    async def main() -> list[str]:
        web = AsyncClient()
        answers = await asyncio.gather(
            *(web.post("/mails", data=b"%d" % n, content_type="text/plain") for n in range(20))
        )
        assert {answer.status_code for answer in answers} == {202}
        await names["opened"][0].close()
        return [answer.json()["id"] for answer in answers]

    ids = asyncio.run(main())
    assert sorted(message_id for _, message_id in pushed()) == sorted(ids)


@pytest.mark.needs("module:gunicorn")
def test_gunicorn_opens_its_clients_after_the_fork(here: Path) -> None:
    (block,) = blocks("gunicorn")
    (here / "mails.py").write_text("import cassq\n" + block)
    command = [sys.executable, "-m", "gunicorn", "mails", "--bind", "unix:socket", "--preload"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with (here / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--workers", "2", "--no-control-socket"],
            env={**os.environ, "PYTHONPATH": paths},
            stderr=log,
        )
    try:
        eventually("it listens", lambda: answers(here / "socket") or server.poll() is not None)
        ids = [post(here / "socket", b"%d" % n) for n in range(40)]
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_SECONDS) == 0
    finally:
        server.kill()  # nothing, once it has ended
        server.wait()
    assert "Error" not in (here / "log").read_text()
    found = pushed()
    assert sorted(message_id for _, message_id in found) == sorted(ids)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as end:
        return end.connect_ex(str(path)) == 0


def post(path: Path, body: bytes) -> str:
    """The answer to a request over a Unix socket."""
    web = http.client.HTTPConnection("localhost", timeout=DEADLINE_SECONDS)
    web.sock = socket.socket(socket.AF_UNIX)
    web.sock.connect(str(path))
    try:
        web.request("POST", "/mails", body)
        answer = web.getresponse()
        assert answer.status == 202
        return answer.read().decode()
    finally:
        web.close()


def test_cells_of_a_notebook_await(here: Path) -> None:
    """As IPython runs them: each cell is compiled so that it may await, in a loop that runs."""
    names: dict[str, Any] = {}

    async def main() -> None:
        for cell in blocks("Jupyter", "text"):
            code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            made = eval(code, names)
            if inspect.iscoroutine(made):
                await made

    asyncio.run(main())
    assert [message.payload for message in names["messages"]] == [b"ann@example.org"]
    assert pushed() == []
