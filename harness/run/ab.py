"""`mbr-perf run --ab NAME=VALUE`: the request as it is (A) and with one value changed (B), as a sweep of two cells."""

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from harness.errors import BadRequestError, Problems
from harness.launch.environment import Host
from harness.measure.understanding import Settled, settle
from harness.resolve.sweep_file import Over
from harness.show import json
from harness.show.terminal import show_blocks
from harness.sweep.axes import RECOMPUTE, SweptAxis
from harness.sweep.reports import SweepDisplay
from harness.sweep.request import SweepRequest, read_axes, split_over
from harness.sweep.values import SweepVerdict

# mbr-perf sets it if a request does not, so A lacks it only if the axis says so explicitly.
_ALLOCATOR = "env.PYTORCH_CUDA_ALLOC_CONF"
_ENDED = {"ok", "oom", "failed", "interrupted"}
_SWEPT_EXAMPLE, _EXAMPLE = "--over tp=2,4", f"--ab recompute=mlp, or --ab {_ALLOCATOR}=expandable_segments:True"


def ab_request(text: str, sweep: SweepRequest, host: Host) -> SweepRequest:
    """Return the sweep of A and B. Prunes nothing, because only one of them may run out of memory.

    BadRequestError for several values, for a setting that cannot be varied, and for a B equal to A.
    """
    problems = Problems()
    axis: SweptAxis | None = None
    settled: Settled | None = None
    with problems.collecting():
        axis = _axis(text)
    with problems.collecting():
        settled = settle(sweep.run_request(sweep.asked), host)
    problems.raise_if_any()
    assert axis and settled  # otherwise there were problems
    spec, b = settled.spec, axis.values[0]
    a = axis.read(spec)
    if axis.name == _ALLOCATOR and a in ("unset", b):
        a = ""
    if a == b:
        raise BadRequestError(
            f"--ab {text}: A, the request as it is, already has this value", remedy="name another value"
        )
    is_explicit = axis.target == RECOMPUTE or axis.name == _ALLOCATOR
    asked = sweep.asked
    if axis.target == RECOMPUTE:  # the axis replaces the options that set A
        asked = replace(axis.ask(asked, a), recompute=None)
    return replace(
        sweep,
        asked=asked,
        over=(Over(axis.name, (a, b) if is_explicit else (b,), "--ab"),),
        control=f"{axis.name}={quote(a) if a else ''}" if is_explicit else "",
        prune=False,
        title=f"A/B of {axis.name}: A {a or 'without'}, B {b or 'without'}",
    )


def _axis(text: str) -> SweptAxis:
    """Return the axis with the one value of B, which may contain commas."""
    try:
        over = split_over(text if ";" in text or "=" not in text else f"{text};")
        axes = read_axes([over])
    except BadRequestError as problem:  # with the message of --over
        texts = [
            part.replace(_SWEPT_EXAMPLE, _EXAMPLE).replace("--over", "--ab")
            for part in (problem.message, problem.remedy)
        ]
        raise BadRequestError(texts[0].replace("--ab :", f"--ab {text}:"), remedy=texts[1]) from problem
    if len(over.values) != 1 or ";" in text:
        raise BadRequestError(
            f"--ab {text}: name one value, that of B", remedy=f"A is the request as it is; e.g. {_EXAMPLE}"
        )
    return axes[0]


@dataclass(frozen=True)
class AbOutcome:
    """``differs``: whether A and B ended differently; None if one of them did not run."""

    differs: bool | None
    told: tuple[str, ...]


def ab_outcome(verdict: SweepVerdict) -> AbOutcome:
    """Compare how A, the control, and B ended."""
    a, b = sorted(verdict.cells, key=lambda cell: not cell.is_control)
    told = [f"{letter} ({cell.name}): {cell.status}" for letter, cell in (("A", a), ("B", b))]
    if not {a.status, b.status} <= _ENDED:
        return AbOutcome(None, (*told, "A/B: no conclusion, because A or B has not run."))
    differs = a.status != b.status
    return AbOutcome(differs, (*told, f"A and B ended {'differently' if differs else 'in the same way'}."))


@dataclass(frozen=True)
class AbDisplay(SweepDisplay):
    """A sweep's display that also shows whether A and B ended differently."""

    def result(self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int) -> None:
        """Show the report of the sweep and the result of the A/B."""
        outcome = ab_outcome(verdict)
        if self.as_json:
            from harness.sweep.document import AbDocument

            more = {"sweep_dir": sweep_dir, "num_runs_due": num_due, "ab": outcome}
            json.answer(AbDocument.of_verdict(verdict, reports, **more))
        else:
            super().result(verdict, reports, sweep_dir, num_due)
            show_blocks("", *outcome.told)
