"""Judges the ranks' records and the launch together: status, first real failure, doubts."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import MIN_STEPS, ExperimentSpec
from harness.experiment.recompute_plan import PLAN
from harness.judge.likeness import SOFTWARE
from harness.judge.readings import bare_uuid, clock_doubts, is_victim
from harness.records.collect import Collected, LaunchOutcome
from harness.records.rank import Failure, RankRecord
from harness.records.run import BUILT_OTHERWISE, NodeSample, Status
from harness.units import counted, first_line, format_bytes, grouped, ranks_text

_SAME_LOSS = 1e-6  # relative; the order of summation of fp32 losses may differ between steps
_SMALLEST_MOVE = 1e-4  # Adam moves a weight by at most the learning rate per step; bf16 rounds 0.02 to steps of 1.2e-4
_RECORDED = "--snapshot_on_oom recorded every allocation during the measured steps, which slows them"
# Strongest evidence first; another rank usually causes a hang, a lost rank or a lost connection.
_STRENGTH = ("oom", "non_finite_loss", "signal", "error", "hang", "timeout", "lost")


def status_of(outcome: LaunchOutcome, ranks: tuple[RankRecord, ...]) -> tuple[Status, str | None]:
    """How the run ended and, if it failed, one sentence: rank, stage, phase, step, cause."""
    culprit = first_failed(ranks)
    failure = culprit.failure if culprit else None
    if outcome.status == "interrupted":
        return "interrupted", outcome.reason
    if failure and failure.kind == "lost" and outcome.status != "ok" and outcome.reason is not None:
        failure = None  # no rank recorded its end, e.g. because torchrun could not start ranks or died
    if culprit and failure:
        full = "disk full; " if outcome.disk_full else ""
        return ("oom" if failure.kind == "oom" else "failed"), full + _sentence(culprit, failure)
    if outcome.status != "ok":
        return "failed", outcome.reason or outcome.status
    return "ok", None


def first_failed(ranks: Iterable[RankRecord], named: int | None = None) -> RankRecord | None:
    """Return the rank whose failure explains the others; ``named``: the rank that a log names as the first."""
    failed = (rank for rank in ranks if rank.failure)
    return min(failed, key=lambda rank: (rank.rank != named, *_evidence(rank)), default=None)


def _evidence(rank: RankRecord) -> tuple[bool, int, float, int]:
    failure = rank.failure
    assert failure is not None
    step = math.inf if failure.step is None else failure.step
    return is_victim(failure) and failure.kind != "oom", _STRENGTH.index(failure.kind), step, rank.rank


def _sentence(rank: RankRecord, failure: Failure) -> str:
    where = f"rank {rank.rank} (stage {rank.coordinates.pp})"
    when = f" {failure.when}" if failure.when else ""
    what = first_line(failure.message, "no message")[:300]
    if failure.kind == "oom":
        asking = f", asking for {format_bytes(failure.request_bytes)}" if failure.request_bytes else ""
        return f"{where} ran out of memory{when}{asking}: {what}"
    return f"{where} failed{when}: {what}"


def suspicions(
    spec: ExperimentSpec, expected: EffectiveRecompute, collected: Collected, ranks: tuple[RankRecord, ...]
) -> tuple[str, ...]:
    """Return every reason that makes a run suspect, so that it gets no verdict. ``ranks`` include their clocks."""
    otherwise = built_otherwise(expected, ranks) if spec.is_described else None
    return (
        *doubts(collected.nodes, ranks),
        *disagreements(collected.nodes, ranks),
        *([_RECORDED] if spec.measure.snapshot_on_oom else []),
        *frozen_loss(spec, ranks),
        *collected.unwatched,
        *([otherwise] if otherwise else []),
    )


def doubts(nodes: Iterable[NodeSample], ranks: tuple[RankRecord, ...]) -> tuple[str, ...]:
    """Reasons not to trust the timing of a run: slow clocks, other processes on its GPUs, GPUs without samples."""
    own = {bare_uuid(rank.device.uuid): rank for rank in ranks if rank.device and rank.device.uuid}
    found: list[str] = []
    for node in nodes:
        for device in node.devices:
            rank = own.get(bare_uuid(device.uuid))
            if rank is None:
                continue
            name = f"GPU {device.index} of {node.hostname}"
            found.extend(f"{name} {why}" for why in (clock_doubts(rank.clocks) if rank.clocks else ()))
            if device.foreign_processes:
                found.append(f"{name} was shared with {', '.join(device.foreign_processes)}")
            if device.error and device.num_samples:  # without samples the figure is unknown, but no doubt
                found.append(f"{name} was not sampled to the end: {device.error}")
    return tuple(found)


def disagreements(nodes: Iterable[NodeSample], ranks: tuple[RankRecord, ...]) -> tuple[str, ...]:
    """Return the facts that differ between ranks, with the ranks of each value. Ignores ranks without the fact."""
    drivers = {bare_uuid(device.uuid): node.driver_version for node in nodes for device in node.devices}
    facts: dict[str, dict[int, str | None]] = {
        "device model": {rank.rank: rank.device.name for rank in ranks if rank.device},
        "driver": {
            rank.rank: driver
            for rank in ranks
            if rank.device and rank.device.uuid and (driver := drivers.get(bare_uuid(rank.device.uuid)))
        },
        **{name: {rank.rank: rank.versions[name] for rank in ranks if name in rank.versions} for name in SOFTWARE},
    }
    return tuple(
        f"ranks disagree on {what}: {_by_value(values)}"
        for what, values in facts.items()
        if len(set(values.values())) > 1
    )


def _by_value(values: Mapping[int, str | None]) -> str:
    holders = grouped((value or "none", rank) for rank, value in values.items())
    return "; ".join(f"{value} on {ranks_text(held)}" for value, held in holders.items())


def frozen_loss(spec: ExperimentSpec, ranks: tuple[RankRecord, ...]) -> tuple[str, ...]:
    """Doubt a run that does not train: its loss is the same in every step of the window.

    Every step has the same data, so the loss moves when the weights do. The check does not apply to fewer than
    `MIN_STEPS` steps, to a learning rate that moves no weight by `_SMALLEST_MOVE` over the window, or to a loss below
    nine tenths of the first step's: such a run has learned its data.
    """
    start, end = spec.measure.window
    if end - start < MIN_STEPS or spec.optimizer.lr * (end - start) < _SMALLEST_MOVE:
        return ()
    for rank in ranks:
        losses = {step.step: step.loss for step in rank.steps if step.loss is not None}
        window = [losses[step] for step in range(start, end) if step in losses]
        if len(window) < MIN_STEPS or 0 not in losses or window[0] < 0.9 * losses[0]:
            continue
        if max(window) - min(window) <= _SAME_LOSS * abs(window[0]):
            where = f"steps {start} to {end - 1}"
            return (
                f"the loss did not move: {window[0]:.6g} in {where} on rank {rank.rank}, so the weights do not change",
            )
    return ()


def read_back(expected: EffectiveRecompute, spec: ExperimentSpec, ranks: tuple[RankRecord, ...]) -> EffectiveRecompute:
    """Return what the built layers recompute if the spec does not describe the job fully; otherwise ``expected``."""
    if spec.is_described or not any(rank.recompute for rank in ranks):
        return expected
    return expected.model_copy(update=_as_built(ranks) | {"is_counted": True})


def _as_built(ranks: tuple[RankRecord, ...]) -> dict[str, Any]:
    """Count what one rank of every pipeline stage recomputes, because all ranks of a stage hold the same layers."""
    stages = [rank.recompute for rank in ranks if rank.recompute and rank.coordinates.is_first_copy]
    modules = sum((Counter(stage.modules) for stage in stages), Counter[str]())
    full_layers, num_layers = sum(s.full_layers for s in stages), sum(s.num_layers for s in stages)
    return {"modules": dict(sorted(modules.items())), "full_layers": full_layers, "num_layers": num_layers}


def built_otherwise(expected: EffectiveRecompute, ranks: tuple[RankRecord, ...]) -> str | None:
    """Return a sentence if a finished run's layers do not recompute as expected, or were not read back."""
    unread = [rank.rank for rank in ranks if rank.recompute is None]
    if unread:
        if not all(rank.finished for rank in ranks):
            return None
        which = "no rank" if len(unread) == len(ranks) else "some ranks only"
        return f"the built layers were read back on {which}: missing on {ranks_text(unread)}"
    built = expected.model_copy(update=_as_built(ranks))
    is_whole = expected.recompute.startswith(PLAN) and built.num_layers == expected.num_layers  # without MTP layers
    same = built.modules == expected.modules if is_whole else set(built.modules) == set(expected.modules)
    if same and built.full_layers == expected.full_layers:
        return None
    return f"{BUILT_OTHERWISE}{_as_text(built)}, expected {_as_text(expected)}"


def _as_text(effect: EffectiveRecompute) -> str:
    layers = {**effect.modules, **({"full recompute": effect.full_layers} if effect.full_layers else {})}
    return ", ".join(f"{name} in {counted(number, 'layer')}" for name, number in layers.items()) or "nothing"
