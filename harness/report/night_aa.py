"""What the reports of a night say of its A/A."""

from dataclasses import asdict

from harness.analysis.night.aa import AA_ALPHA
from harness.analysis.night.aa_evidence import pairs_that_show
from harness.analysis.night.values import AaFinding, AaVerdict, NightVerdict
from harness.report.figures import BY_NAME
from harness.report.json import Document
from harness.report.night_remarks import run_lines
from harness.report.night_words import p_text
from harness.units import format_percent, format_share

_WITHHELD = {"time": "no time", "memory": "no memory", "exact": "no counted work"}


def aa_lines(verdict: NightVerdict) -> tuple[str, ...]:
    """Whether it holds and how its labels compare; where it does not, what is not judged and where its runs are."""
    aa = verdict.aa
    if aa is None:
        return ()
    told = "; ".join(_finding(finding) for finding in aa.findings if finding.p_value is not None)
    named = f"A/A of {aa.case}, {aa.num_pairs} pairs{', replayed: nothing was measured' if aa.is_replayed else ''}"
    if aa.holds:
        return (f"{named}: holds: {told}",)
    withheld = " and ".join(_WITHHELD[gate] for gate in aa.doubts)
    why = "; ".join(aa.doubts.values())
    return (
        f"{named}: {why}: {withheld} is judged tonight{f'. {told}' if told else ''}",
        *(_fix(finding) for finding in aa.findings if finding.is_blind),
        *(f"Runs of the A/A: {line}" for line in run_lines(aa.runs)),
    )


def aa_document(aa: AaVerdict | None) -> Document | None:
    """For JSON; null where there is no A/A."""
    if aa is None:
        return None
    return {
        "case": aa.case,
        "holds": aa.holds,
        "is_replayed": aa.is_replayed,
        "num_pairs": aa.num_pairs,
        "alpha": AA_ALPHA,
        "doubts": dict(aa.doubts),
        "comparison": [asdict(finding) for finding in aa.findings],
        "runs": [
            {
                "number": run.number,
                "label": run.reason,
                "run_dir": str(run.run_dir),
                "status": run.record.status if run.record else None,
                "failure": run.record.failure if run.record else None,
            }
            for run in aa.runs
        ],
    }


def _finding(finding: AaFinding) -> str:
    """``TFLOP/s/GPU of A' against A -0.1 %, p 0.93; one run varies by 0.2 %; below 2 % nothing shows``."""
    if finding.change is None or finding.p_value is None or finding.noise is None or finding.visible is None:
        return ""
    title = BY_NAME[finding.metric].title
    change = f"{title} of A' against A {format_percent(finding.change)}, {p_text(finding.p_value)}"
    noise = f"one run varies by {format_share(finding.noise)}"
    return f"{change}; {noise}; below {format_share(max(finding.visible, finding.limit))} nothing shows"


def _fix(finding: AaFinding) -> str:
    """What lets an A/A tell that could not."""
    steadier = "a quieter machine, longer runs"
    if finding.noise is None or finding.threshold is None:
        return f"What would let the A/A tell: {steadier}"
    pairs = pairs_that_show(finding.threshold, finding.noise, AA_ALPHA)
    return f"What would let the A/A tell: {f'--aa_pairs {pairs}, ' if pairs else ''}{steadier}"
