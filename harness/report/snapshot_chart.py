"""The timeline of one or two snapshots as a file: a page that opens offline, or a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis.snapshots.values import DeviceMemory
from harness.errors import BadRequestError
from harness.records.atomic import write_bytes_atomically
from harness.report.charts.available import obstacle
from harness.report.charts.picture import Picture
from harness.report.html_page import escape, html_page


def require_timeline(path: Path) -> None:
    """BadRequestError for a name that says no format, and where nothing can be drawn."""
    if path.suffix not in _WRITERS:
        raise BadRequestError(f"--timeline {path}: of no known format", remedy=f"name a file *{', *'.join(_WRITERS)}")
    if obstacle():
        raise BadRequestError(f"--timeline {path}: {obstacle()}")


def write_timeline(devices: Sequence[tuple[str, DeviceMemory]], lines: Sequence[str], path: Path) -> Path:
    """Write it, replacing what is there; ``lines`` is what the page says besides. BadRequestError: no history, no room."""
    require_timeline(path)
    from harness.report.charts.snapshot_timeline import snapshot_timeline

    picture = snapshot_timeline(tuple(devices))
    if picture.vega_lite is None:
        raise BadRequestError(f"--timeline {path}: {picture.missing}")
    try:
        write_bytes_atomically(path, _WRITERS[path.suffix](picture, picture.vega_lite, lines))
    except OSError as error:
        raise BadRequestError(f"--timeline {path}: cannot be written: {error.strerror}") from error
    return path


def _html(picture: Picture, _: str, lines: Sequence[str]) -> bytes:
    from harness.report.charts import rendering

    body = [
        f"<h1>{escape(picture.title)}</h1>",
        f'<figure><div id="{picture.name}"></div><figcaption>{escape(picture.caption)}</figcaption></figure>',
        f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else "",
        *(f"<script>{script}</script>" for script in (rendering.library(), rendering.embedding([picture]))),
    ]
    return html_page(picture.title, body, runs_scripts=True).encode()


def _png(_picture: Picture, vega_lite: str, _lines: Sequence[str]) -> bytes:
    from harness.report.charts import rendering

    return rendering.png(vega_lite)


def _svg(_picture: Picture, vega_lite: str, _lines: Sequence[str]) -> bytes:
    from harness.report.charts import rendering

    return rendering.svg(vega_lite).encode()


_WRITERS: dict[str, Callable[[Picture, str, Sequence[str]], bytes]] = {".html": _html, ".png": _png, ".svg": _svg}
