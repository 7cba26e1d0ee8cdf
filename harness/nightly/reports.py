"""Writes the reports of a night into its folder and to the requested places."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from harness.errors import BadRequestError, RunFailedError, raise_all
from harness.history.run import write_pages
from harness.nightly.junit import night_junit
from harness.nightly.show import Outputs, night_page
from harness.nightly.values import SPEED, CaseRun, NightVerdict
from harness.nightly.words import allowed_text, change_text, finding_of, is_red, outcome_text
from harness.records.batches import NIGHT_FOLDERS
from harness.records.disk import why_unwritable
from harness.records.metrics import BY_NAME
from harness.records.night import JUDGED, REPORT
from harness.records.redact import redact_shapes
from harness.records.store import write_atomically
from harness.show import chart as look
from harness.show import json
from harness.show.chart import Axis, Bar, Bars
from harness.show.html import html
from harness.show.markup import markdown
from harness.show.page import Block, Code, Line, Listing, Only, Picture, Section, Span
from harness.show.provenance import command_text, machine_facts
from harness.units import counted


def require_outputs(outputs: Outputs) -> None:
    """Raise one BadRequestError for all outputs that cannot be written, before hours of running."""
    raise_all(
        [
            BadRequestError(f"--{name} {path}: {why}", remedy="name another place")
            for name, path in vars(outputs).items()
            if path is not None and (why := _obstacle(path, is_folder=name == "html"))
        ]
    )


def _obstacle(path: Path, *, is_folder: bool) -> str:
    if path.exists() and is_folder != path.is_dir() and (is_folder or path.is_dir()):
        return "not a folder" if is_folder else "a folder"
    if not is_folder and not path.parent.is_dir():
        return f"no folder {path.parent}"
    why = why_unwritable(path)
    return f"cannot be written: {why}" if why else ""


def delete_earlier(outputs: Outputs) -> None:
    """Delete the JUnit file of an earlier night: after a kill, CI would take it for the result of tonight."""
    if outputs.junit and outputs.junit.is_symlink() and outputs.junit.is_file():
        outputs.junit.write_text("")
    elif outputs.junit and outputs.junit.is_file():
        outputs.junit.unlink()


class Written(NamedTuple):
    """The written files, and why others could not be written. That changes no verdict."""

    paths: tuple[Path, ...]
    problems: tuple[str, ...]


def write_night_reports(verdict: NightVerdict, outputs: Outputs | None = None, results: Path | None = None) -> Written:
    """Write every format into the night's folder, then what ``outputs`` asks for. ``results``: where history is."""
    folder, shown, asked = verdict.night_dir / REPORT, _shown(verdict), outputs or Outputs()
    jobs = [(folder / name, partial(_write, shown, text)) for name, text in FORMATS.items()]
    if asked.junit:
        jobs.append((asked.junit, partial(_write, shown, night_junit)))
    if asked.step_summary:
        jobs.append((asked.step_summary, partial(append_summary, shown)))
    if asked.html:
        home = NIGHT_FOLDERS.home(verdict.night_dir, results)
        jobs.append((asked.html / "index.html", partial(_write_pages, shown, home)))
    paths, problems = list[Path](), list[str]()
    for path, write in jobs:
        try:
            write(path)
        except RunFailedError as error:
            problems.append(error.message)
        except OSError as error:
            problems.append(f"{path}: cannot be written: {error.strerror or error}")
        else:
            paths.append(path)
    return Written(tuple(paths), tuple(problems))


def _shown(verdict: NightVerdict) -> NightVerdict:
    """Mask folders that look like secrets, because people share these files."""
    cases = tuple(
        case.model_copy(
            update={
                "runs": _runs(case.runs),
                "pairs": case.pairs and replace(case.pairs, runs=_runs(case.pairs.runs)),
                "golden_path": case.golden_path and redact_shapes(case.golden_path),
            }
        )
        for case in verdict.cases
    )
    return verdict.model_copy(update={"night_dir": _masked(verdict.night_dir), "cases": cases})


def _runs(runs: Iterable[CaseRun]) -> tuple[CaseRun, ...]:
    return tuple(replace(run, run_dir=_masked(run.run_dir)) for run in runs)


def _masked(path: Path) -> Path:
    return Path(redact_shapes(str(path)))


def _write_pages(verdict: NightVerdict, results: Path, index_file: Path) -> None:
    """Write the page of the night, the pages of all cases, and the index of the nights, into the index's folder."""
    folder = index_file.parent
    page = folder / f"{verdict.night_dir.name}.html"
    _write(verdict, night_html, page)
    pages = [page, *sorted({*folder.glob("*T*Z-*.html")} - {page}, reverse=True)]
    lines = [Line(("Night ", Span(each.stem, link=quote(each.name)))) for each in pages]
    links: tuple[Block, ...] = (lines[0], Section("Earlier nights", (Listing(tuple(lines[1:])),), folded=True))
    index = replace(night_page(verdict), blocks=(*night_picture(verdict), *links))
    golden_dir = Path(verdict.plan.golden_dir) if verdict.plan.golden_dir else None
    write_pages(results, folder, BY_NAME[SPEED], golden_dir, index)


def _write(verdict: NightVerdict, text: Callable[[NightVerdict], str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text(verdict), encoding="utf-8")  # a rename would replace the link or the device
    else:
        write_atomically(path, text(verdict))


def night_markdown(verdict: NightVerdict) -> str:
    """Return the whole report."""
    return markdown(night_page(verdict), level=2)


def append_summary(verdict: NightVerdict, path: Path) -> None:
    """Append the report to the file at ``path``, in which other programs may have written."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{night_markdown(verdict)}" if file.tell() else night_markdown(verdict))


def annotations(verdict: NightVerdict) -> Iterable[str]:
    """Yield GitHub's command for an annotation of each case that needs attention.

    https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands; escaped as @actions/core does.
    """
    for case in filter(is_red, verdict.cases):
        level = "warning" if case.outcome == "inconclusive" else "error"
        title = _escaped(f"{case.planned.name}: {outcome_text(case)}").replace(":", "%3A").replace(",", "%2C")
        yield f"::{level} title={title}::{_escaped(case.reason)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


_LOOKS = {"regression": (look.VERMILION, ""), "inconclusive": (look.ORANGE, ""), "improvement": (look.BLUE, ""),
          "pass": (look.GREEN, ""), "not judged": (look.GREY, "")}  # fmt: skip
_MOST_BARS = 20


def night_picture(verdict: NightVerdict) -> Iterator[Picture]:
    """Yield a bar per case with a golden: its judged change, the slowest first. Yield nothing without such cases."""
    speeds = [(case.planned.name, finding_of(case, SPEED)) for case in verdict.cases]
    judged = [(found.judged_change or 0.0, name, found) for name, found in speeds if found and found.change is not None]
    rows = tuple(
        Bar(name, f"{change_text(found)}{allowed_text(found)}", ((found.verdict.text, change * 100),))
        for change, name, found in sorted(judged, key=itemgetter(0))[:_MOST_BARS]
    )
    title = BY_NAME[SPEED].title
    if rows:
        caption = f"Faster is to the right. Shown: {len(rows)} of {counted(len(verdict.cases), 'case')}."
        chart = Bars(Axis(f"Change of {title} that is judged (%)"), _LOOKS, rows)
        yield Picture("changes", f"{title} against the nights or the golden values", caption, chart)


def night_html(verdict: NightVerdict) -> str:
    """Return the page: its picture, the cases, machine, software, command."""
    runs = (run for case in verdict.cases for run in case.all_runs)
    facts = machine_facts(run.record.provenance for run in runs if run.record)
    head = Only("html", (facts, Code(command_text(verdict.plan.command))))
    page = night_page(verdict)
    return html(replace(page, blocks=(*night_picture(verdict), *page.blocks, head)))


FORMATS: dict[str, Callable[[NightVerdict], str]] = {
    JUDGED: lambda verdict: json.text(verdict) + "\n",
    "night.md": night_markdown,
    "night.html": night_html,
    "junit.xml": night_junit,
}
