"""Derives figures from raw records. Nothing is stored, so that a better formula needs no new run."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from harness.experiment import flops
from harness.experiment.experiment import NOT_DESCRIBED, ExperimentSpec, MeasureSpec
from harness.judge import readings
from harness.judge.coverage import NOT_LOGGED, covered_peak, covered_window, no_peak
from harness.judge.readings import Window, combined_clocks, median_or_none, rank_clocks, run_clocks
from harness.judge.statistics import sample_stdev
from harness.records.metrics import METRICS, SUMMARY_METRICS, Metrics, Peak, Summary
from harness.records.rank import RankRecord
from harness.records.run import RunRecord


def derive(record: RunRecord, measure: MeasureSpec | None = None) -> Metrics:
    """Return the figures of a run over the window of ``measure`` (default: the run's own)."""
    spec, ranks = record.spec, record.ranks
    window = covered_window(record, *(measure or spec.measure).window)
    if record.no_time:
        window = replace(window, seconds=(), missing=())
    model_flops = flops.model_flops_per_step(spec) if spec.is_described else 0
    recompute_flops = flops.recompute_flops_per_step(spec, record.effective) if spec.is_described else 0
    bounds, losses = (window.start, window.end), [] if record.no_time else _losses(ranks)
    counted_s = window.seconds if spec.is_described else ()
    throughput = [flops.achieved_tflops(model_flops, s, spec.num_gpus) for s in counted_s]
    token_rates = [spec.tokens_per_step / (s * spec.num_gpus) for s in window.seconds]
    mfu, hfu = _utilizations(spec, counted_s, model_flops, recompute_flops)
    work = [rank.counted_flops_per_step for rank in ranks if rank.counted_flops_per_step is not None]
    metrics = Metrics(
        tflops_per_gpu=summarize(throughput, bounds),
        step_time_s=summarize(window.seconds, bounds),
        tokens_per_s_per_gpu=summarize(token_rates, bounds),
        peak_allocated_bytes=covered_peak(record, readings.allocated),
        peak_reserved_bytes=covered_peak(record, readings.reserved),
        peak_device_bytes=covered_peak(record, readings.device_used(record.nodes)),
        counted_flops_per_step=sum(work) if len(work) == spec.num_gpus else None,
        mfu=mfu,
        hfu=hfu,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        model_flops_per_step=model_flops,
        recompute_flops_per_step=recompute_flops,
        clocks=run_clocks(rank_clocks(ranks, record.nodes, bounds)),
        formula_version=flops.FORMULA_VERSION,
    )
    return replace(metrics, problems=_problems(record, window, metrics))


def combine(runs: Sequence[Metrics]) -> Metrics:
    """Combine repeats: median of medians, highest peaks, FLOPs if equal, every problem. ValueError without runs."""
    if not runs:
        raise ValueError("no runs to combine")
    if len(runs) == 1:
        return runs[0]
    problems = {name: text for run in reversed(runs) for name, text in run.problems.items()}
    counted = {run.counted_flops_per_step for run in runs}
    if len(counted) > 1:
        problems["counted_flops_per_step"] = f"the runs counted different FLOPs: {', '.join(sorted(map(str, counted)))}"

    def of(name: str) -> list[Any]:
        return [getattr(run, name) for run in runs]

    figures: dict[str, Any] = {name: _median_summary(of(name)) for name in SUMMARY_METRICS}
    figures |= {name: _highest(of(name)) for name in runs[0].peaks}
    return replace(
        runs[0],
        **figures,
        counted_flops_per_step=counted.pop() if len(counted) == 1 else None,
        mfu=median_or_none(of("mfu")),
        hfu=median_or_none(of("hfu")),
        clocks=combined_clocks(of("clocks")),
        problems=problems,
        num_runs=len(runs),
    )


def summarize(values: Sequence[float], window: tuple[int, int]) -> Summary | None:
    """Return median, mean and spread of per-step values; None without values."""
    if not values:
        return None
    spread = sample_stdev(values)
    return Summary(median(values), fmean(values), spread, len(values), window)


def _utilizations(
    spec: ExperimentSpec, seconds: Sequence[float], model_flops: int, recompute_flops: int
) -> tuple[float | None, float | None]:
    """Return MFU and HFU at the median step time; None if the GPU has no published peak for the precision."""
    peak = spec.gpu_type.peak_flops.get(spec.precision.peak)
    if peak is None or not seconds:
        return None, None
    middle = median(seconds)
    mfu = flops.utilization(model_flops, middle, spec.num_gpus, peak)
    return mfu, flops.utilization(model_flops + recompute_flops, middle, spec.num_gpus, peak)


def _losses(ranks: Sequence[RankRecord]) -> list[float]:
    """Return the losses in step order from the lowest rank of the last pipeline stage."""
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        losses = [step.loss for step in sorted(rank.steps, key=lambda step: step.step) if step.loss is not None]
        if losses:
            return losses
    return []


def _problems(record: RunRecord, window: Window, metrics: Metrics) -> dict[str, str]:
    spec = record.spec
    problems = dict.fromkeys((*SUMMARY_METRICS, "mfu", "hfu"), record.no_time or window.problem)
    for name, peak in metrics.peaks.items():
        if peak is None:
            problems[name] = no_peak(record, name)
        elif peak.missing_ranks:
            lacking = f"{len(peak.missing_ranks)} of {spec.num_gpus} ranks, the first is rank {peak.missing_ranks[0]}"
            problems[name] = f"no reading from {lacking}, so the peak may be higher"
    if metrics.counted_flops_per_step is None:
        problems["counted_flops_per_step"] = NOT_LOGGED if record.imported else "not every rank counted its FLOPs"
    if spec.gpu_type.peak_flops.get(spec.precision.peak) is None:
        problems["mfu"] = problems["hfu"] = f"the peak FLOP/s of {spec.compute_dtype} on {spec.gpu} is unknown"
    if not spec.is_described:
        problems |= dict.fromkeys(("tflops_per_gpu", "mfu", "hfu"), NOT_DESCRIBED)
    known = {name: text for name, text in problems.items() if text}
    derived = {metric.name: known[name] for metric in METRICS for name in metric.of if name in known}
    return derived | known


def _median_summary(summaries: Sequence[Summary | None]) -> Summary | None:
    present = [s for s in summaries if s is not None]
    if len(present) < len(summaries):
        return None
    medians = [s.median for s in present]
    middle, spread = median(medians), sample_stdev(medians)
    average = fmean([s.mean for s in present])
    return Summary(middle, average, spread, sum(s.n for s in present), present[0].window)


def _highest(found: Sequence[Peak | None]) -> Peak | None:
    present = [peak for peak in found if peak is not None]
    return max(present, key=lambda peak: peak.value) if len(present) == len(found) else None
