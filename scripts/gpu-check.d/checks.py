"""Checks of a run: each reads records and describes what it found."""

from case import Check, judged
from runs import Ran

from harness.errors import ExitCode
from harness.judge.derive import derive
from harness.judge.readings import bare_uuid
from harness.measure.ranks import built_otherwise
from harness.records.run import RunRecord
from harness.units import format_bytes

# Recompute replays the same kernels, so the first loss differs only by the order of atomic additions; after that,
# bf16 weights drift apart by their last bit and 6 steps carry it into the third digit of the loss at most.
FIRST_LOSS_TOLERANCE = 1e-3
LOSS_TOLERANCE = 1e-2

# Of two layers, one is whole in memory while it is replayed; where weights and optimizer make the peak, both are equal
# but for small temporaries.
PEAK_TOLERANCE = 0.01

GPU_ONLY = "needs a GPU"


def trained(ran: Ran) -> Check:
    """Check that the run ended well, by its exit code and by its record."""
    status = ran.record.status if ran.record else "no record"
    found = f"exit {ran.exit_code}, {status}"
    if ran.exit_code != ExitCode.OK:
        found += f": {(ran.record and ran.record.failure) or ran.output}"
    return judged("trained", holds=ran.exit_code == ExitCode.OK and status == "ok", found=found)


def not_suspect(record: RunRecord) -> Check:
    """Check that mbr-perf itself has no reason to doubt the run. A rehearsal may share its CPU with other runs."""
    found = "; ".join(record.suspect) or "no doubts"
    if record.suspect and record.spec.gpu_type.is_cpu:
        return Check("not_suspect", "skipped", f"{GPU_ONLY}: {found}")
    return judged("not_suspect", holds=not record.suspect, found=found)


def memory_in_order(record: RunRecord) -> Check:
    """Check device_used >= reserved >= allocated > 0: three independent meters agree."""
    metrics = derive(record)
    readings = {
        "device_used": metrics.peak_device_bytes,
        "reserved": metrics.peak_reserved_bytes,
        "allocated": metrics.peak_allocated_bytes,
    }
    if record.spec.gpu_type.is_cpu:
        return Check("memory_in_order", "skipped", f"{GPU_ONLY}: a CPU run has one meter only")
    missing = [name for name, peak in readings.items() if peak is None]
    if missing:
        return judged("memory_in_order", holds=False, found=f"no reading of {', '.join(missing)}")
    values = [peak.value for peak in readings.values() if peak is not None]
    found = " >= ".join(f"{name} {format_bytes(value)}" for name, value in zip(readings, values, strict=True))
    return judged("memory_in_order", holds=values[0] >= values[1] >= values[2] > 0, found=found)


def same_device(record: RunRecord) -> Check:
    """Check that the NVML sampler watched the GPU of every rank, as CUDA names it."""
    if record.spec.gpu_type.is_cpu:
        return Check("same_device", "skipped", f"{GPU_ONLY}: a CPU run has no sampler")
    seen = {bare_uuid(device.uuid) for node in record.nodes for device in node.devices}
    ranks = {rank.device.uuid for rank in record.ranks if rank.device and rank.device.uuid}
    holds = bool(ranks) and {bare_uuid(uuid) for uuid in ranks} <= seen
    where = ", ".join(sorted(ranks)) or "no GPU of known UUID"
    return judged("same_device", holds=holds, found=f"ranks on {where}; {len(seen)} watched")


def memory_measured(record: RunRecord) -> Check:
    """Check that the allocator's peak is above zero: all that a CPU run can show."""
    peak = derive(record).peak_allocated_bytes
    found = format_bytes(peak.value) if peak else "no reading"
    return judged("memory_measured", holds=peak is not None and peak.value > 0, found=found)


def recompute_acts(record: RunRecord) -> Check:
    """Check that the built layers recompute exactly what was predicted."""
    if any(rank.recompute is None for rank in record.ranks):
        return judged("recompute_acts", holds=False, found="the layers were not read back")
    otherwise = built_otherwise(record.effective, record.ranks)
    effect = record.effective
    acting = ", ".join(f"{name} on {count}" for name, count in effect.modules.items())
    layers = f"{effect.full_layers} whole layers" if effect.full_layers else acting or "nothing"
    return judged("recompute_acts", holds=otherwise is None, found=otherwise or f"as predicted: {layers}")


def of_training(ran: Ran) -> tuple[Check, ...]:
    """Return the checks of any run that should end well; only the first if it did not."""
    record = ran.record
    if record is None or record.status != "ok":
        return (trained(ran),)
    read = (not_suspect, memory_measured, memory_in_order, same_device, recompute_acts)
    return (trained(ran), *(check(record) for check in read))


def same_losses(record: RunRecord, control: RunRecord | None, without: str) -> Check:
    """Check that the losses are the control's within the tolerance of bf16: recompute and overlap change no result.

    ``without``: what the control leaves out.
    """
    if control is None or control.status != "ok":
        return Check("same_losses", "not_run", f"the run without {without}, to compare with, did not end well")
    mine, others = losses(record), losses(control)
    if not mine or len(mine) != len(others):
        return judged("same_losses", holds=False, found=f"{len(mine)} losses, the control has {len(others)}")
    apart = [abs(a - b) / abs(b) for a, b in zip(mine, others, strict=True)]
    holds = apart[0] <= FIRST_LOSS_TOLERANCE and max(apart) <= LOSS_TOLERANCE
    return judged("same_losses", holds=holds, found=f"first {apart[0]:.1e}, worst {max(apart):.1e} of the control's")


def peak_not_above(record: RunRecord, control: RunRecord) -> Check:
    """Check that whole-layer recompute needs no more memory than none, within PEAK_TOLERANCE."""
    mine, others = derive(record).peak_allocated_bytes, derive(control).peak_allocated_bytes
    if mine is None or others is None:
        return judged("peak_not_above", holds=False, found="a peak is missing")
    found = f"{format_bytes(mine.value)} against {format_bytes(others.value)} without recompute"
    holds = mine.value <= others.value * (1 + PEAK_TOLERANCE)
    return judged("peak_not_above", holds=holds, found=found)


def out_of_memory(ran: Ran) -> tuple[Check, ...]:
    """Check exit code, outcome, and the facts of the failed allocation: rank, phase, request."""
    record = ran.record
    status = record.status if record else "no record"
    holds = ran.exit_code == ExitCode.OUT_OF_MEMORY and status == "oom"
    ended = judged("recorded_as_oom", holds=holds, found=f"exit {ran.exit_code}, {status}")
    failed = next((rank for rank in record.ranks if rank.failure), None) if record else None
    if failed is None or failed.failure is None:
        return ended, judged("says_where", holds=False, found="no rank gives a reason")
    failure = failed.failure
    asked = format_bytes(failure.request_bytes) if failure.request_bytes else "nothing"
    where = judged(
        "says_where",
        holds=failure.kind == "oom" and failure.phase is not None and bool(failure.request_bytes),
        found=f"{failure.kind} of rank {failed.rank} in {failure.phase} of step {failure.step}, asking for {asked}",
    )
    return ended, where


def losses(record: RunRecord) -> list[float]:
    """Return the losses of all ranks in step order."""
    return [step.loss for rank in record.ranks for step in rank.steps if step.loss is not None]
