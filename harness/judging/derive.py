"""From raw records to figures: nothing here is stored, so that a better formula needs no new run."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.experiment.experiment import ExperimentSpec, MeasureSpec
from harness.judging import peaks, statistics
from harness.judging.clocks import combined_clocks, rank_clocks, run_clocks
from harness.judging.imported import job_window, without_copies
from harness.judging.metrics import PEAK_METRICS, SUMMARY_METRICS, Metrics, Summary
from harness.judging.peaks import Peak, worst_rank
from harness.judging.window import Window, window_of
from harness.planning import flops
from harness.records.rank import RankRecord
from harness.records.run import RunRecord


def derive(record: RunRecord, measure: MeasureSpec | None = None) -> Metrics:
    """The figures of one run over the window of ``measure`` (default: the one it was run with)."""
    spec, ranks = record.spec, record.ranks
    window = _window(record, *(measure or spec.measure).window)
    model_flops = flops.model_flops_per_step(spec)
    recompute_flops = flops.recompute_flops_per_step(spec, record.effective)
    bounds, losses = (window.start, window.end), _losses(ranks)
    throughput = [flops.achieved_tflops(model_flops, s, spec.num_gpus) for s in window.seconds]
    token_rates = [spec.tokens_per_step / (s * spec.num_gpus) for s in window.seconds]
    mfu, hfu = _utilizations(spec, window, model_flops, recompute_flops)
    metrics = Metrics(
        tflops_per_gpu=summarize(throughput, bounds),
        step_time_s=summarize(window.seconds, bounds),
        tokens_per_s_per_gpu=summarize(token_rates, bounds),
        peak_allocated_bytes=_peak(record, peaks.allocated),
        peak_reserved_bytes=_peak(record, peaks.reserved),
        peak_device_bytes=_peak(record, peaks.device_used(record.nodes)),
        counted_flops_per_step=_counted_flops(ranks, spec.num_gpus),
        mfu=mfu,
        hfu=hfu,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        model_flops_per_step=model_flops,
        recompute_flops_per_step=recompute_flops,
        clocks=run_clocks(rank_clocks(ranks, record.nodes, bounds)),
    )
    return replace(metrics, problems=_problems(record, window, metrics))


def _window(record: RunRecord, start: int, end: int) -> Window:
    if record.imported is not None:
        return job_window(record, record.imported, start, end)
    return window_of(record.ranks, record.spec.num_gpus, start, end)


def _peak(record: RunRecord, read: Callable[[RankRecord], int | None]) -> Peak | None:
    return without_copies(record, worst_rank(record.ranks, record.spec.num_gpus, read))


def combine(runs: Sequence[Metrics]) -> Metrics:
    """Repeats as one: the median of the runs' medians, the highest peak; FLOPs count only if all runs agree.

    A problem of any run is a problem of the whole. ValueError for no runs.
    """
    if not runs:
        raise ValueError("no runs to combine")
    if len(runs) == 1:
        return runs[0]
    problems = {name: text for run in reversed(runs) for name, text in run.problems.items()}
    counted = {run.counted_flops_per_step for run in runs}
    if len(counted) > 1:
        problems["counted_flops_per_step"] = f"the runs counted different FLOPs: {', '.join(sorted(map(str, counted)))}"
    return replace(
        runs[0],
        tflops_per_gpu=_median_summary([run.tflops_per_gpu for run in runs]),
        step_time_s=_median_summary([run.step_time_s for run in runs]),
        tokens_per_s_per_gpu=_median_summary([run.tokens_per_s_per_gpu for run in runs]),
        peak_allocated_bytes=_highest([run.peak_allocated_bytes for run in runs]),
        peak_reserved_bytes=_highest([run.peak_reserved_bytes for run in runs]),
        peak_device_bytes=_highest([run.peak_device_bytes for run in runs]),
        counted_flops_per_step=counted.pop() if len(counted) == 1 else None,
        mfu=_median_or_none([run.mfu for run in runs]),
        hfu=_median_or_none([run.hfu for run in runs]),
        clocks=combined_clocks([run.clocks for run in runs]),
        problems=problems,
        num_runs=len(runs),
    )


def summarize(values: Sequence[float], window: tuple[int, int]) -> Summary | None:
    """Median, mean and spread of per-step values; None when there are none."""
    if not values:
        return None
    spread = statistics.sample_stdev(values)
    return Summary(statistics.median(values), statistics.mean(values), spread, len(values), window)


def _counted_flops(ranks: Sequence[RankRecord], world_size: int) -> int | None:
    """FLOPs that all ranks together counted in one step; None unless every rank counted."""
    counted = [rank.counted_flops_per_step for rank in ranks if rank.counted_flops_per_step is not None]
    return sum(counted) if len(counted) == world_size else None


def _utilizations(
    spec: ExperimentSpec, window: Window, model_flops: int, recompute_flops: int
) -> tuple[float | None, float | None]:
    """MFU and HFU at the median step time; None where the GPU type has no published peak for the precision."""
    peak = spec.gpu_type.peak_flops.get(spec.precision.peak)
    if peak is None or not window.seconds:
        return None, None
    seconds = statistics.median(window.seconds)
    mfu = flops.utilization(model_flops, seconds, spec.num_gpus, peak)
    return mfu, flops.utilization(model_flops + recompute_flops, seconds, spec.num_gpus, peak)


def _losses(ranks: Sequence[RankRecord]) -> list[float]:
    """Losses in step order, from the lowest rank that has them: only the last pipeline stage does."""
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        losses = [step.loss for step in sorted(rank.steps, key=lambda step: step.step) if step.loss is not None]
        if losses:
            return losses
    return []


def _problems(record: RunRecord, window: Window, metrics: Metrics) -> dict[str, str]:
    problems: dict[str, str | None] = dict.fromkeys((*SUMMARY_METRICS, "mfu", "hfu"), window.problem)
    for name in PEAK_METRICS:
        problems[name] = _peak_problem(record, name, getattr(metrics, name))
    if metrics.counted_flops_per_step is None:
        problems["counted_flops_per_step"] = "not every rank counted its FLOPs"
    if record.spec.gpu_type.peak_flops.get(record.spec.precision.peak) is None:
        unknown = f"no peak is known for {record.spec.compute_dtype} on {record.spec.gpu}"
        problems |= {"mfu": unknown, "hfu": unknown}
    return {name: text for name, text in problems.items() if text}


def _peak_problem(record: RunRecord, name: str, peak: Peak | None) -> str | None:
    if peak is not None:
        return f"no reading from {_missing(record, peak)}; the peak may be higher" if peak.missing_ranks else None
    if record.imported is not None:
        return "the log does not say"
    if name != "peak_device_bytes":
        measured = any(rank.memory for rank in record.ranks)
        return "the run's memory meter cannot say" if measured else "no rank left a memory reading"
    if record.spec.gpu_type.is_cpu:
        return "a CPU run has no device memory"
    errors = [node.error for node in record.nodes if node.error]
    return errors[0] if errors else "no NVML sample for the ranks' GPUs"


def _missing(record: RunRecord, peak: Peak) -> str:
    """Few ranks by number; of a log all that it has no memory of, as its notes count them."""
    if record.imported is None:
        return f"rank {', '.join(map(str, peak.missing_ranks))}"
    unread = record.spec.num_gpus - sum(rank.memory is not None for rank in record.ranks)
    copies = unread - len(peak.missing_ranks)
    told = f" (copies of ranks with one: {copies})" if copies > 0 else ""
    return f"{unread} of {record.spec.num_gpus} ranks{told}"


def _median_summary(summaries: Sequence[Summary | None]) -> Summary | None:
    present = [s for s in summaries if s is not None]
    if len(present) < len(summaries):
        return None
    medians = [s.median for s in present]
    middle, spread = statistics.median(medians), statistics.sample_stdev(medians)
    average = statistics.mean([s.mean for s in present])
    return Summary(middle, average, spread, sum(s.n for s in present), present[0].window)


def _highest(found: Sequence[Peak | None]) -> Peak | None:
    present = [peak for peak in found if peak is not None]
    return max(present, key=lambda peak: peak.value) if len(present) == len(found) else None


def _median_or_none(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if len(present) == len(values) else None
