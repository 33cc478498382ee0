"""The task: a thumbnail of a picture. `cassq worker jobs:app` runs its calls.

The pictures, the thumbnails and the queue are in one directory, which THUMBNAILS names.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from PIL import Image, UnidentifiedImageError

from cassq.tasks import App, Reject

FOLDER = Path(os.environ.get("THUMBNAILS", "thumbnails-data")).absolute()
PICTURES = FOLDER / "pictures"
THUMBNAILS = FOLDER / "thumbnails"
WIDTHS = (64, 128, 256)
QUEUE = "thumbnails"

app = App(f"file:{FOLDER / 'queue'}", queue=QUEUE)


# The retries are as short as that for the sake of the example, which waits for the last of them.
@app.task(results=True, retries=[0.2, 1.0], timeout=60)
def thumbnail(name: str, width: int) -> str:
    """Make a thumbnail of a picture, as wide and as high as that at most; returns its file's name.

    A picture that ends too early may still be on its way, so that is tried again; what is not a
    picture never becomes one. A call may run twice, and does no harm: the file is replaced whole.
    """
    made = THUMBNAILS / f"{Path(name).stem}-{width}.png"
    try:
        with Image.open(PICTURES / name) as picture:
            picture.thumbnail((width, width))
            write(made, picture)
    except (UnidentifiedImageError, Image.DecompressionBombError) as exc:
        raise Reject(f"{name} is not a picture: {exc}") from exc
    return made.name


def write(path: Path, picture: Image.Image) -> None:
    """Write a picture under a name of its own, then give it the right one."""
    with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            picture.save(file, "PNG")
            Path(file.name).rename(path)
        except BaseException:
            Path(file.name).unlink()
            raise
