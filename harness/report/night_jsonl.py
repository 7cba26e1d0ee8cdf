"""A night as JSON lines: one line per case, for what collects lines."""

import json
import os
from pathlib import Path

from harness.analysis.night.values import NightVerdict
from harness.report.json import SCHEMA_VERSION
from harness.report.night_aa import aa_line
from harness.report.night_json import case_document


def night_lines(verdict: NightVerdict) -> str:
    """A line per case that says by itself which night it is of; a night judged again says so by ``finished_at``.

    ``aa``, where the night had one, says of every case what its A/A leaves in doubt.
    """
    plan = verdict.plan
    about = {
        "schema_version": SCHEMA_VERSION,
        "night_id": plan.night_id,
        "suite": plan.suite,
        "shard": plan.shard or None,
        "started_at": plan.started_at,
        "finished_at": verdict.finished_at,
        "aa": aa_line(verdict.aa),
    }
    documents = ({**about, **case_document(case)} for case in verdict.cases)
    return "".join(json.dumps(each, ensure_ascii=False, allow_nan=False) + "\n" for each in documents)


def append_whole(path: Path, text: str) -> None:
    """Append in one write, so that several writers' lines do not mix; a line that a kill cut short is closed first.

    OSError where not all of it could be written.
    """
    content = text.encode("utf-8")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            content = b"\n" + content
        written = os.write(descriptor, content)
        if written < len(content):
            raise OSError(None, f"only {written} of {len(content)} bytes were written", str(path))
    finally:
        os.close(descriptor)
