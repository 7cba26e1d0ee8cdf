"""Draws a night: the change of each case's speed against its golden."""

from collections.abc import Iterator

from harness.nightly.values import SPEED, NightVerdict
from harness.nightly.words import allowed_text, change_text, finding_of
from harness.records.metrics import BY_NAME
from harness.show import chart as look
from harness.show.chart import Axis, Bar, Bars
from harness.show.page import Picture
from harness.units import counted

_LOOKS = {"regression": (look.VERMILION, ""), "inconclusive": (look.ORANGE, ""), "improvement": (look.BLUE, ""),
          "pass": (look.GREEN, ""), "not judged": (look.GREY, "")}  # fmt: skip
_MOST = 20


def night_picture(verdict: NightVerdict) -> Iterator[Picture]:
    """Yield the picture: a bar per case with a golden, the slowest first. Yield nothing without such cases."""
    found = [(case.planned.name, finding) for case in verdict.cases if (finding := finding_of(case, SPEED))]
    judged = ((finding.judged_change, name, finding) for name, finding in found if finding.change is not None)
    changes = sorted((change or 0.0, name, finding) for change, name, finding in judged)
    rows = [
        Bar(name, f"{change_text(finding)}{allowed_text(finding)}", ((finding.verdict.text, change * 100),))
        for change, name, finding in changes[:_MOST]
    ]
    if not rows:
        return
    title = BY_NAME[SPEED].title
    without = len(verdict.cases) - len(rows)
    left = f" Not shown: {counted(without, 'case')}, see the table." if without else ""
    chart = Bars(Axis(f"Change of {title} that is judged (%)"), _LOOKS, tuple(rows))
    yield Picture(
        "changes", f"{title} against the nights or the golden values", f"Faster is to the right.{left}", chart
    )
