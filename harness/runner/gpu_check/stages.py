"""What is done: every setting of a shape trained, an OOM provoked and survived, the sampler weighed."""

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import median

from harness.analysis.derive import derive
from harness.records.run import RunRecord
from harness.runner.gpu_check import checks
from harness.runner.gpu_check.case import Case, case_name, figures_of
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.product import Ran
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape, legal_settings
from harness.runner.gpu_check.target import Target

SAMPLER_PAIRS = 3
SAMPLER_STEPS = 20
# The sampler asks the driver 20 times a second from a process of its own; above this it would bend what it measures.
SAMPLER_LIMIT = 1.02

# Certain to be too much: with OOM_SAMPLES per micro-batch a layer keeps more than OOM_TENSORS tensors of hidden size.
OOM_SAMPLES = 16
OOM_TENSORS = 16
OOM_VOCABULARY = 10**12  # a processor: an embedding of hundreds of TB, which no operating system promises


def train_settings(runs: Runs, shape: Shape, only: Sequence[str] | None) -> Iterator[Case]:
    """Every legal setting, or those of ``only`` among them; the first is the control without recompute."""
    control: RunRecord | None = None
    for text in legal_settings(shape.settle(runs.target)):
        if only is not None and text not in ("none", *only):
            continue
        name = case_name(shape.name, text)
        ran = runs.run(name, (*shape.options(runs.target), "--recompute", text))
        if ran is None:
            yield Case(name, text)
            continue
        if text == "none":
            control = ran.record
        yield Case(name, text, tuple(_checks(ran, text, control)), figures_of(ran.record), ran.seconds, ran.record)


def _checks(ran: Ran, text: str, control: RunRecord | None) -> Iterator[Check]:
    yield checks.trained(ran)
    record = ran.record
    if record is None or record.status != "ok":
        return
    yield checks.memory_measured(record)
    yield checks.memory_in_order(record)
    yield checks.recompute_acts(record)
    if text == "none":
        return
    if control is None or control.status != "ok":
        yield Check("same_losses", "skipped", "the run without recompute, to compare with, failed")
        return
    yield checks.same_losses(record, control)
    if text.startswith("full"):
        yield checks.peak_not_above(record, control)


def survive_oom(runs: Runs, shape: Shape) -> Iterator[Case]:
    """A request that cannot fit is recorded as out of memory, and the next run on the same GPU is a normal one."""
    oom = case_name(shape.name, "oom")
    too_much = ("--recompute", "none", *oversize(runs.target, shape))
    ran = runs.run(oom, (*shape.options(runs.target), *too_much))
    if ran is None:
        yield Case(oom)
        return
    yield Case(oom, checks=checks.out_of_memory(ran), figures=figures_of(ran.record), seconds=ran.seconds,
               record=ran.record)  # fmt: skip
    after = case_name(shape.name, "after_oom")
    ran = runs.run(after, (*shape.options(runs.target), "--recompute", "none"))
    if ran is None:
        yield Case(after)
        return
    yield Case(after, "none", tuple(_checks(ran, "none", None)), figures_of(ran.record), ran.seconds, ran.record)


def oversize(target: Target, shape: Shape) -> tuple[str, ...]:
    """Options under which ``shape`` needs half as much again as the GPU has; its weights alone would fit."""
    if target.total_bytes is None:
        return ("--set", f"model.vocab_size={OOM_VOCABULARY}")
    spec = shape.settle(target).spec
    bytes_of_layer = OOM_TENSORS * OOM_SAMPLES * spec.batch.seq_length * spec.model.hidden_size * 2
    layers = ceil(1.5 * target.total_bytes / bytes_of_layer) + 2
    batch = str(OOM_SAMPLES)
    return ("--num_layers", str(layers), "--micro_batch_size", batch, "--global_batch_size", batch)


def weigh_sampler(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Step time with the memory sampler over step time without it, runs of both kinds in turn."""
    name = case_name(shape.name, "sampler")
    if runs.target.is_rehearsal:
        yield Case(name, checks=(Check("sampler_overhead", "skipped", "needs a GPU: there is no sampler otherwise"),))
        return
    steps = ("--recompute", "none", "--max_steps", str(SAMPLER_STEPS))
    on, off = list[Ran](), list[Ran]()
    for _ in range(SAMPLER_PAIRS):
        for kind, options in ((on, ()), (off, ("--sample_interval_ms", "0"))):
            ran = runs.run(name, (*shape.options(runs.target), *steps, *options))
            if ran is None:
                yield Case(name, seconds=sum(r.seconds for r in (*on, *off)))
                return
            kind.append(ran)
    found = (*(checks.trained(ran) for ran in (*on, *off)), sampler_overhead(_step_times(on), _step_times(off)))
    yield Case(name, "none", found, figures_of(on[-1].record), sum(r.seconds for r in (*on, *off)), on[-1].record)


def sampler_overhead(on_s: Sequence[float], off_s: Sequence[float]) -> Check:
    """The ratio of median step times; fails above SAMPLER_LIMIT, and without a run of each kind."""
    if not on_s or not off_s:
        return checks.judged("sampler_overhead", holds=False, found="no step times of one kind")
    ratio = median(on_s) / median(off_s)
    listed = " ".join(f"{s * 1000:.1f}" for s in on_s), " ".join(f"{s * 1000:.1f}" for s in off_s)
    found = f"ratio {ratio:.4f} (limit {SAMPLER_LIMIT}); ms per step with: {listed[0]}; without: {listed[1]}"
    return checks.judged("sampler_overhead", holds=ratio <= SAMPLER_LIMIT, found=found)


def _step_times(ran: Sequence[Ran]) -> list[float]:
    """Median step time of each run that has one, in seconds."""
    times = [derive(r.record).step_time_s for r in ran if r.record]
    return [summary.median for summary in times if summary]
