"""All nights on one page: a row per night, a column per case, every cell a link to that night's own page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.records.atomic import write_atomically, write_bytes_atomically
from harness.report.html_page import escape, html_page
from harness.report.night_cells import CELL_STYLE, outcome_cell
from harness.report.night_html import anchor
from harness.report.night_index import IndexCase, NightEntry, case_names, read_nights
from harness.report.night_words import SPEED, marked
from harness.units import counted, format_percent

INDEX = "index.html"

_STYLE = f"""{CELL_STYLE}
body {{ max-width: none; }} a {{ color: inherit; }} .wide {{ max-height: 85vh; overflow: auto; }}
thead th {{ position: sticky; top: 0; background: #fff; }} td:first-child {{ position: sticky; left: 0; background: #fff; }}
"""


def write_index(nights_dir: Path, folder: Path) -> None:
    """``index.html`` in ``folder`` and the pages of all nights beside it, so that the folder may be copied anywhere.

    Pages of nights that are gone from ``nights_dir`` stay. OSError where nothing can be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = read_nights(nights_dir)
    for entry in entries:
        _copy_page(entry, folder)
    write_atomically(folder / INDEX, index_html(entries))


def index_html(entries: Sequence[NightEntry]) -> str:
    """The page; a table per suite, the suite with the newest night first. Pages lie beside it, as ``<night>.html``."""
    suites: dict[str, list[NightEntry]] = {}
    for entry in entries:
        if entry.night:
            suites.setdefault(entry.night.suite, []).append(entry)
    bad = [entry for entry in entries if entry.night is None]
    body = [
        f"<h1>Nights</h1><p>{counted(len(entries), 'night')}, the newest first; the figure is the change of TFLOP/s/GPU "
        "against the golden.</p>",
        *(f'<h2>{escape(suite)}</h2><div class="wide">{_table(nights)}</div>' for suite, nights in suites.items()),
        *(["<h2>Without a verdict</h2>", _problems(bad)] if bad else []),
    ]
    return html_page("Nights", body, style=_STYLE)


def page_name(entry: NightEntry) -> str:
    """The file of a night's page beside the index."""
    return f"{entry.folder.name}.html"


def _copy_page(entry: NightEntry, folder: Path) -> None:
    if entry.page is None:
        return
    content, copy = entry.page.read_bytes(), folder / page_name(entry)
    if not copy.is_file() or copy.read_bytes() != content:
        write_bytes_atomically(copy, content)


def _table(entries: Sequence[NightEntry]) -> str:
    names = case_names(entries)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("Night", "Outcome", *names))
    body = "".join(_row(entry, names) for entry in entries)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(entry: NightEntry, names: Sequence[str]) -> str:
    night = entry.night
    assert night is not None
    link = quote(page_name(entry)) if entry.page else ""
    cases: Mapping[str, IndexCase] = {case.name: case for case in night.cases}
    shard = f" shard {night.shard}" if night.shard else ""
    when = escape(f"{night.started_at[:16].replace('T', ' ')}{shard}")
    due = f", {counted(night.num_runs_missing, 'run')} missing" if night.num_runs_missing else ""
    cells = [
        f'<td><a href="{escape(link)}">{when}</a></td>' if link else f"<td>{when}</td>",
        outcome_cell(night.outcome, f"{night.outcome} (exit {night.exit_code}{due})", is_expected=False),
        *(_cell(cases.get(name), link) for name in names),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(case: IndexCase | None, link: str) -> str:
    if case is None:
        return '<td class="o-none"></td>'
    word = "refused" if case.refused else case.outcome
    text = marked(word, is_infrastructure=case.is_infrastructure, is_expected=case.is_expected)
    change = case.change(SPEED)
    there = f"{link}#{quote(anchor(case.name))}" if link else ""
    beside = "" if change is None else format_percent(change)
    return outcome_cell(case.outcome, text, is_expected=case.is_expected, link=there, beside=beside)


def _problems(entries: Sequence[NightEntry]) -> str:
    """Why there is nothing to show; a page that was written before the damage is linked."""
    return f"<ul>{''.join(_problem(entry) for entry in entries)}</ul>"


def _problem(entry: NightEntry) -> str:
    name = escape(entry.folder.name)
    linked = f'<a href="{escape(quote(page_name(entry)))}">{name}</a>' if entry.page else name
    return f'<li class="bad">{linked}: {escape(entry.problem)}</li>'
