"""Runs on one GPU: every recompute setting of a shape, and equal runs with and without the sampler."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import checks
from case import Case, Check, Unfinished, case_name, case_of_run, judged
from runs import Ran, Runs
from shapes import FIRST, Shape, legal_settings

from harness.judge.derive import derive
from harness.records.run import RunRecord

PAIRS = 4
STEPS = 20
# The sampler asks the driver 20 times a second from its own process; above this it would distort what it measures.
SAMPLER_LIMIT = 1.02
# Equal runs, interleaved, on a GPU that nobody else uses: a gate of 5 % needs less than half of it as noise.
NOISE_LIMIT = 1.02


def train_settings(runs: Runs, shape: Shape, only: Sequence[str] | None) -> Iterator[Case]:
    """Train every legal setting, or those of ``only``; the first is the control without recompute.

    A control of an earlier sitting is trained again where a setting is left to compare with it.
    """
    legal = legal_settings(shape.settle(runs.target))
    for text in only or ():
        if text not in legal:
            found = "a rule forbids it, it does nothing in this model, or it combines some modules only"
            yield Case(case_name(shape.name, text), text, (Check("trained", "skipped", found),))
    wanted = [text for text in legal if only is None or text in ("none", *only)]
    texts = sorted(wanted, key=lambda text: text not in FIRST)
    kept = {text: runs.kept.get(case_name(shape.name, text)) for text in texts}
    is_whole = all(kept.values())
    control: RunRecord | None = None
    for text in texts:
        name, earlier = case_name(shape.name, text), kept[text]
        if earlier and (is_whole or text != "none"):
            yield earlier
            continue
        ran = runs.run(name, shape, recompute=text)
        if isinstance(ran, Unfinished):
            yield ran.case(name, text)
            continue
        if text == "none":
            control = ran.record
        found_checks = (*checks.of_training(ran), *_against_control(ran, text, control))
        yield case_of_run(name, found_checks, ran.seconds, ran.record, text)


def _against_control(ran: Ran, text: str, control: RunRecord | None) -> Iterator[Check]:
    record = ran.record
    if text == "none" or record is None or record.status != "ok":
        return
    if control is None or control.status != "ok":
        yield Check("same_losses", "not_run", "the run without recompute, to compare with, did not end well")
        return
    yield checks.same_losses(record, control)
    if text.startswith("full"):
        yield checks.peak_not_above(record, control)


def weigh_sampler(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Compare step times with and without the memory sampler, and those of equal runs: both kinds in turn."""
    name = case_name(shape.name, "sampler")
    if kept := runs.kept.get(name):
        yield kept
        return
    if runs.target.is_rehearsal:
        why = f"{checks.GPU_ONLY}: a CPU run has no sampler, and its step times scatter too much"
        yield Case(name, checks=tuple(Check(check, "skipped", why) for check in ("sampler_overhead", "equal_runs")))
        return
    sampled, bare, found, seconds = list[float](), list[float](), list[Check](), 0.0
    last: RunRecord | None = None
    for _ in range(PAIRS):
        for times, off in ((sampled, ()), (bare, ("--sample_interval_ms", "0"))):
            ran = runs.run(name, shape, *off, recompute="none", max_steps=STEPS)
            seconds += ran.seconds
            if isinstance(ran, Unfinished):
                yield replace(ran.case(name), seconds=seconds)
                return
            found.append(checks.trained(ran))
            if ran.record and not off:  # without the sampler nothing watches the GPU, which mbr-perf may well doubt
                found.append(checks.not_suspect(ran.record))
                last = ran.record
            if step := derive(ran.record).step_time_s if ran.record else None:
                times.append(step.median)
    found += [sampler_overhead(sampled, bare), equal_runs(sampled)]
    case = case_of_run(name, tuple(found), seconds, last)
    yield replace(case, facts={"step_times_s": {"sampled": sampled, "bare": bare}})


def sampler_overhead(on_s: Sequence[float], off_s: Sequence[float]) -> Check:
    """Check the ratio of median step times; it fails above SAMPLER_LIMIT, and without a run of each kind."""
    if not on_s or not off_s:
        return judged("sampler_overhead", holds=False, found="no step times of one kind")
    ratio = median(on_s) / median(off_s)
    found = f"ratio {ratio:.4f} (limit {SAMPLER_LIMIT}); ms per step with: {_listed(on_s)}; without: {_listed(off_s)}"
    return judged("sampler_overhead", holds=ratio <= SAMPLER_LIMIT, found=found)


def equal_runs(times_s: Sequence[float]) -> Check:
    """Compare the runs with odd numbers to those with even numbers: the slower half over the faster one."""
    if len(times_s) < PAIRS:
        return judged("equal_runs", holds=False, found=f"{len(times_s)} step times of {PAIRS} equal runs")
    halves = sorted((median(times_s[::2]), median(times_s[1::2])))
    ratio = halves[1] / halves[0]
    found = f"ratio {ratio:.4f} (limit {NOISE_LIMIT}); ms per step: {_listed(times_s)}"
    return judged("equal_runs", holds=ratio <= NOISE_LIMIT, found=found)


def _listed(seconds: Sequence[float]) -> str:
    return " ".join(f"{s * 1000:.1f}" for s in seconds)
