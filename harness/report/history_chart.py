"""The trend of a case as a file: a page that opens offline, or a picture."""

from collections.abc import Callable
from pathlib import Path

from harness.analysis.history.case_history import CaseHistory
from harness.errors import BadRequestError
from harness.records.atomic import write_bytes_atomically
from harness.report.charts.available import obstacle
from harness.report.charts.picture import Picture
from harness.report.history_terminal import level_change_text
from harness.report.html_page import escape, html_page


def require_chart(path: Path) -> None:
    """BadRequestError for a name that says no format, and where nothing can be drawn."""
    if path.suffix not in CHARTS:
        raise BadRequestError(f"--chart {path}: of no known format", remedy=f"name a file *{', *'.join(CHARTS)}")
    if obstacle():
        raise BadRequestError(f"--chart {path}: {obstacle()}")


def write_chart(history: CaseHistory, path: Path) -> Path:
    """Write it, replacing what is there. BadRequestError as above, where it cannot be written, and for no figures."""
    require_chart(path)
    from harness.report.charts.trend import trend_picture

    picture = trend_picture(history)
    if picture.vega_lite is None:
        raise BadRequestError(f"--chart {path}: {picture.missing}", remedy="name another --metric")
    try:
        write_bytes_atomically(path, CHARTS[path.suffix](history, picture, picture.vega_lite))
    except OSError as error:
        raise BadRequestError(f"--chart {path}: cannot be written: {error.strerror}") from error
    return path


def _html(history: CaseHistory, picture: Picture, _: str) -> bytes:
    from harness.report.charts import rendering

    lines = [level_change_text(history, found).plain for found in history.level_changes]
    items = "".join(f"<li>{escape(line)}</li>" for line in (*lines, *history.series.notes))
    body = [
        f"<h1>{escape(picture.title)}</h1><p>{escape(history.series.case)}</p>",
        f'<figure><div id="{picture.name}"></div><figcaption>{escape(picture.caption)}</figcaption></figure>',
        f"<ul>{items}</ul>" if items else "",
        *(f"<script>{script}</script>" for script in (rendering.library(), rendering.embedding([picture]))),
    ]
    return html_page(f"{history.series.case}: {picture.title}", body, runs_scripts=True).encode()


def _png(_history: CaseHistory, _picture: Picture, vega_lite: str) -> bytes:
    from harness.report.charts import rendering

    return rendering.png(vega_lite)


def _svg(_history: CaseHistory, _picture: Picture, vega_lite: str) -> bytes:
    from harness.report.charts import rendering

    return rendering.svg(vega_lite).encode()


CHARTS: dict[str, Callable[[CaseHistory, Picture, str], bytes]] = {".html": _html, ".png": _png, ".svg": _svg}
