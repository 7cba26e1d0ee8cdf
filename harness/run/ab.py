"""`mbr-perf run --ab NAME=VALUE`: the request as it is (A) and with one value changed (B), as a sweep of two cells."""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from harness.cli.options import EngineOptions, ExperimentOptions, JudgeOptions, LaunchOptions, RunOutput
from harness.errors import BadRequestError, ExitCode, Problems
from harness.launch.environment import Host, this_host
from harness.measure.understanding import settle
from harness.records.job import CLUSTERS
from harness.resolve.sweep_file import Over
from harness.sweep.ask import SweepOptions, sweep_request
from harness.sweep.axes import RECOMPUTE, UNSET, SweptAxis
from harness.sweep.reports import SweepDisplay
from harness.sweep.request import SweepRequest, read_axes, split_over
from harness.sweep.run import dry_run_sweep, start_sweep

# mbr-perf sets it if a request does not, so A lacks it only if the axis says so explicitly.
_ALLOCATOR = "env.PYTORCH_CUDA_ALLOC_CONF"
_EXAMPLE = f"--ab recompute=mlp, or --ab {_ALLOCATOR}=expandable_segments:True"


def run_ab(
    values: Sequence[str],
    asked: ExperimentOptions,
    engine: EngineOptions,
    judge: JudgeOptions,
    launch: LaunchOptions,
    output: RunOutput,
) -> ExitCode:
    """Run A and B as a sweep. BadRequestError on a cluster, for several values, and for options of one run."""
    over = " ".join(f"--over {quote(value)}" for value in values)
    if len(values) > 1:
        problem = f"--ab is given {len(values)} times, but A and B differ in one thing"
        raise BadRequestError(problem, remedy=f"mbr-perf sweep {over}")
    if launch.launcher in CLUSTERS:
        problem = f"--ab does not work with --launcher {launch.launcher}"
        raise BadRequestError(problem, remedy=f"mbr-perf sweep --launcher {launch.launcher} {over}")
    given = {"--explain": output.explain, "--run_dir": launch.run_dir, "--nnodes": launch.nnodes > 1}
    if names := [name for name, value in given.items() if value]:
        raise BadRequestError(f"{', '.join(names)}: for one run, but --ab makes two", remedy="leave it out")
    how = SweepOptions(repeats=launch.repeats, as_json=output.as_json)
    display = SweepDisplay(as_json=output.as_json)
    request = ab_request(values[0], sweep_request(asked, engine, how, judge, launch), this_host())
    if output.dryrun:
        dry_run_sweep(request, display)
        return ExitCode.OK
    return start_sweep(request, display, is_warm=True)


def ab_request(text: str, sweep: SweepRequest, host: Host) -> SweepRequest:
    """Return the sweep of A and B. BadRequestError for a setting that cannot be varied, or a B equal to A."""
    problems = Problems()
    axis = problems.tried(lambda: _axis(text))
    settled = problems.having(problems.tried(lambda: settle(sweep.run_request(sweep.asked), host)))
    assert axis  # otherwise there were problems
    a, b, asked = axis.read(settled.spec), axis.values[0], sweep.asked
    if axis.name == _ALLOCATOR and a in (UNSET, b):
        a = ""
    if a == b:
        problem = f"--ab {text}: A, the request as it is, already has this value"
        raise BadRequestError(problem, remedy="name another value")
    is_explicit = axis.target == RECOMPUTE or axis.name == _ALLOCATOR
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
    over = split_over(text if ";" in text or "=" not in text else f"{text};", "--ab")
    (axis,) = read_axes([over])
    if len(over.values) != 1 or ";" in text:
        problem = f"--ab {text}: name one value, that of B"
        raise BadRequestError(problem, remedy=f"A is the request as it is; e.g. {_EXAMPLE}")
    return axis
