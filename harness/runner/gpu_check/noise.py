"""What the sampler costs, and by how much equal runs differ: runs with and without it in turn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from harness.analysis.derive import derive
from harness.runner.gpu_check.case import Case, Unfinished, case_name, figures_of
from harness.runner.gpu_check.checks import Check, judged, trained
from harness.runner.gpu_check.product import Ran
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape

PAIRS = 4
STEPS = 20
# The sampler asks the driver 20 times a second from a process of its own; above this it would bend what it measures.
SAMPLER_LIMIT = 1.02
# Equal runs, interleaved, on a GPU that nobody else uses: a gate of 5 % needs less than half of it as noise.
NOISE_LIMIT = 1.02


def weigh_sampler(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Step time with the memory sampler over step time without it, and of runs with it every other over the rest."""
    name = case_name(shape.name, "sampler")
    if kept := runs.kept_case(name, shape, recompute="none"):
        yield kept
        return
    if runs.target.is_rehearsal:
        needs = "needs a GPU: a processor has no sampler, and its step times differ by more than what is looked for"
        yield Case(name, checks=tuple(Check(check, "skipped", needs) for check in ("sampler_overhead", "equal_runs")))
        return
    steps = ("--recompute", "none", "--max_steps", str(STEPS))
    on, off = list[Ran](), list[Ran]()
    for _ in range(PAIRS):
        for kind, options in ((on, ()), (off, ("--sample_interval_ms", "0"))):
            ran = runs.run(name, (*shape.options(runs.target), *steps, *options))
            if isinstance(ran, Unfinished):
                yield replace(ran.case(name), seconds=ran.seconds + sum(r.seconds for r in (*on, *off)))
                return
            kind.append(ran)
    sampled, bare = _step_times(on), _step_times(off)
    found = (*(trained(ran) for ran in (*on, *off)), sampler_overhead(sampled, bare), equal_runs(sampled))
    yield Case(name, "none", found, figures_of(on[-1].record), sum(r.seconds for r in (*on, *off)), on[-1].record,
               {"step_times_s": {"sampled": sampled, "bare": bare}})  # fmt: skip


def sampler_overhead(on_s: Sequence[float], off_s: Sequence[float]) -> Check:
    """The ratio of median step times; fails above SAMPLER_LIMIT, and without a run of each kind."""
    if not on_s or not off_s:
        return judged("sampler_overhead", holds=False, found="no step times of one kind")
    ratio = median(on_s) / median(off_s)
    found = f"ratio {ratio:.4f} (limit {SAMPLER_LIMIT}); ms per step with: {_listed(on_s)}; without: {_listed(off_s)}"
    return judged("sampler_overhead", holds=ratio <= SAMPLER_LIMIT, found=found)


def equal_runs(times_s: Sequence[float]) -> Check:
    """Every other of equal runs against the rest: the slower half over the faster one."""
    if len(times_s) < PAIRS:
        return judged("equal_runs", holds=False, found=f"{len(times_s)} step times of {PAIRS} equal runs")
    halves = sorted((median(times_s[::2]), median(times_s[1::2])))
    ratio = halves[1] / halves[0]
    found = f"ratio {ratio:.4f} (limit {NOISE_LIMIT}); ms per step: {_listed(times_s)}"
    return judged("equal_runs", holds=ratio <= NOISE_LIMIT, found=found)


def _listed(seconds: Sequence[float]) -> str:
    return " ".join(f"{s * 1000:.1f}" for s in seconds)


def _step_times(ran: Sequence[Ran]) -> list[float]:
    """Median step time of each run that has one, in seconds."""
    times = [derive(r.record).step_time_s for r in ran if r.record]
    return [summary.median for summary in times if summary]
