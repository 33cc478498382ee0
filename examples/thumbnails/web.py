"""The web service: takes pictures, pushes a task for each thumbnail, and hands out the results.

uvicorn web:web
curl -T cat.jpg http://127.0.0.1:8000/pictures/cat.jpg
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse

from cassq.errors import MessageNotFoundError, TaskFailedError, UsageError
from jobs import PICTURES, QUEUE, THUMBNAILS, WIDTHS, app, thumbnail

BYTES_MAX = 20_000_000
WAIT_SECONDS_MAX = 30.0
FAILED_MAX = 100

Name = Annotated[str, InPath(pattern=r"^\w[\w.-]{0,99}$")]


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    """The client of cassq is opened before the first request, and closed after the last."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    THUMBNAILS.mkdir(exist_ok=True)
    await asyncio.to_thread(app.prepare)
    yield
    await asyncio.to_thread(app.close)


web = FastAPI(title="Thumbnails", lifespan=lifespan)


@web.put("/pictures/{name}", status_code=202)
async def put_picture(name: Name, request: Request) -> dict[str, str]:
    """Store a picture. Returns, for each width, the id of the call that makes its thumbnail; all
    of them are on disk by then."""
    picture = bytearray()
    async for part in request.stream():
        picture += part
        if len(picture) > BYTES_MAX:
            raise HTTPException(413, f"a picture may have {BYTES_MAX:,} bytes")
    await asyncio.to_thread((PICTURES / name).write_bytes, picture)
    handles = await asyncio.gather(*(thumbnail.push_async(name, width) for width in WIDTHS))
    return {str(width): handle.id for width, handle in zip(WIDTHS, handles, strict=True)}


@web.get("/thumbnails/{call}")
async def get_thumbnail(
    call: str, wait: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = 0.0
) -> Response:
    """The thumbnail that a call makes. 202: not yet, within `wait` seconds. 422: it cannot be
    made."""
    try:
        made = await app.handle(call).result_async(timeout=wait)
    except TimeoutError:
        return JSONResponse({"state": "not made yet"}, 202)
    except TaskFailedError as exc:
        raise HTTPException(422, str(exc)) from exc
    except UsageError as exc:
        raise HTTPException(404, str(exc)) from exc
    return FileResponse(THUMBNAILS / made)


@web.get("/failed")
def failed() -> list[dict[str, Any]]:
    """The calls that were given up, each with its error: they are dead letters."""
    letters = app.client.queue(QUEUE).dead_letters().peek(FAILED_MAX)
    return [
        {
            "id": letter.id,
            "picture": json.loads(letter.payload)["args"][0],
            "attempts": letter.death.get("deliveries"),
            "error": letter.death.get("error"),
        }
        for letter in letters
    ]


@web.post("/failed/{call}/retry")
def retry(call: str) -> dict[str, int]:
    """Have a call that was given up run again. It keeps its id."""
    try:
        merged = app.client.queue(QUEUE).dead_letters().merge(ids=[call])
    except (MessageNotFoundError, UsageError) as exc:
        raise HTTPException(404, str(exc)) from exc
    return {"retried": merged.messages}
