"""All reports of a sweep as files: one row per format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.sweep.values import SweepVerdict
from harness.errors import BadRequestError
from harness.records.atomic import write_atomically, write_bytes_atomically
from harness.records.sweeps import SweepData
from harness.report import json
from harness.report.charts.available import can_draw, obstacle
from harness.report.charts.picture import Picture
from harness.report.sweep_csv import sweep_csv
from harness.report.sweep_html import sweep_html
from harness.report.sweep_json import sweep_document
from harness.report.sweep_markdown import sweep_markdown

REPORT = "report"
PICTURES = ("memory_throughput", "price_of_memory", "rank_memory", "timeline", "predicted_measured", "step_times")
_PAGES = ("report.html", "report.md")
LEFT_OUT = f"{', '.join(_PAGES)} and the pictures"


@dataclass(frozen=True)
class _Material:
    verdict: SweepVerdict
    pictures: tuple[Picture, ...]
    folder: Path
    formats: tuple[str, ...]


def write_reports(
    verdict: SweepVerdict, data: SweepData, folder: Path, formats: Sequence[str] | None = None
) -> tuple[Path, ...]:
    """Write every format of :data:`FORMATS`, or those asked for, into ``folder``; the files' paths, the page first.

    Files that are there already are replaced. BadRequestError for an unknown format, and where nothing can be written.
    """
    chosen = tuple(formats or FORMATS)
    unknown = [name for name in chosen if name not in FORMATS]
    if unknown:
        raise BadRequestError(f"no report format {', '.join(unknown)}", remedy=f"one of: {', '.join(FORMATS)}")
    material = _Material(verdict, _pictures(data, verdict, chosen), folder, chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(path for name in FORMATS if name in chosen for path in FORMATS[name](material))
    except OSError as error:
        raise BadRequestError(f"{folder}: cannot be written: {error.strerror}", remedy="name another folder") from error


def write_tables(verdict: SweepVerdict, data: SweepData, folder: Path) -> tuple[Path, ...]:
    """CSV and JSON alone, at once; pages and pictures of an earlier report would tell of other runs, and are removed."""
    try:
        for name in (*_PAGES, *(f"{picture}.png" for picture in PICTURES)):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise BadRequestError(f"{folder}: cannot be written: {error.strerror}", remedy="name another folder") from error
    return write_reports(verdict, data, folder, ("csv", "json"))


def _pictures(data: SweepData, verdict: SweepVerdict, formats: Sequence[str]) -> tuple[Picture, ...]:
    if not can_draw() or not {"html", "md", "png"} & set(formats):
        return ()
    from harness.report.charts.gallery import pictures

    return pictures(data, verdict)


def _write(path: Path, text: str) -> tuple[Path, ...]:
    write_atomically(path, text)
    return (path,)


def _html(material: _Material) -> tuple[Path, ...]:
    drawn = [picture for picture in material.pictures if picture.vega_lite]
    scripts = []
    if drawn:
        from harness.report.charts import rendering

        scripts = [rendering.library(), rendering.embedding(drawn)]
    return _write(material.folder / "report.html", sweep_html(material.verdict, material.pictures, scripts, obstacle()))


def _markdown(material: _Material) -> tuple[Path, ...]:
    text = sweep_markdown(material.verdict, material.pictures, with_images="png" in material.formats)
    return _write(material.folder / "report.md", text)


def _csv(material: _Material) -> tuple[Path, ...]:
    return _write(material.folder / "report.csv", sweep_csv(material.verdict))


def _json(material: _Material) -> tuple[Path, ...]:
    return _write(material.folder / "report.json", json.text(sweep_document(material.verdict)) + "\n")


def _png(material: _Material) -> tuple[Path, ...]:
    paths = []
    for picture in material.pictures:
        if picture.vega_lite is None:
            continue
        from harness.report.charts import rendering

        path = material.folder / f"{picture.name}.png"
        write_bytes_atomically(path, rendering.png(picture.vega_lite))
        paths.append(path)
    return tuple(paths)


FORMATS: dict[str, Callable[[_Material], tuple[Path, ...]]] = {
    "html": _html, "md": _markdown, "csv": _csv, "json": _json, "png": _png,
}  # fmt: skip
