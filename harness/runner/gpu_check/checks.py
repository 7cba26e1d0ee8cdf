"""What must hold of a run: each check a function of records, with what it found in words."""

from dataclasses import dataclass
from typing import Literal

from harness.analysis.derive import derive
from harness.analysis.peaks import Peak, bare_uuid
from harness.errors import ExitCode
from harness.records.run import RunRecord
from harness.runner.gpu_check.product import Ran
from harness.runner.outcome_of_ranks import built_otherwise
from harness.units import format_bytes

# skipped: nothing on this machine could look; not_run: a later sitting can.
Verdict = Literal["pass", "fail", "skipped", "not_run"]

# Recompute replays the same kernels, so the first loss differs only by the order of atomic additions; after that,
# bf16 weights drift apart by their last bit and 6 steps carry it into the third digit of the loss at most.
FIRST_LOSS_TOLERANCE = 1e-3
LOSS_TOLERANCE = 1e-2

# Of two layers, one is whole in memory while it is replayed; where weights and optimizer make the peak, both are equal
# but for small temporaries.
PEAK_TOLERANCE = 0.01


# Of a check that there was no time to begin with.
NO_TIME = "not in this time"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``found`` says what was seen, or why nothing could be."""

    name: str
    verdict: Verdict
    found: str


def judged(name: str, *, holds: bool, found: str) -> Check:
    """A check that was carried out."""
    return Check(name, "pass" if holds else "fail", found)


def trained(ran: Ran) -> Check:
    """The run ended well and says so in its record, too."""
    status = ran.record.status if ran.record else "no record"
    found = f"exit {ran.exit_code}, {status}"
    if ran.exit_code != ExitCode.OK:
        found += f": {(ran.record and ran.record.failure) or ran.said}"
    return judged("trained", holds=ran.exit_code == ExitCode.OK and status == "ok", found=found)


def memory_in_order(record: RunRecord) -> Check:
    """device_used >= reserved >= allocated > 0: three meters that know nothing of each other agree."""
    metrics = derive(record)
    readings = {
        "device_used": metrics.peak_device_bytes,
        "reserved": metrics.peak_reserved_bytes,
        "allocated": metrics.peak_allocated_bytes,
    }
    if record.spec.gpu_type.is_cpu:
        return Check("memory_in_order", "skipped", "needs a GPU: a processor has one meter only")
    missing = [name for name, peak in readings.items() if peak is None]
    if missing:
        return judged("memory_in_order", holds=False, found=f"no reading of {', '.join(missing)}")
    values = [peak.value for peak in readings.values() if peak is not None]
    found = " >= ".join(f"{name} {format_bytes(value)}" for name, value in zip(readings, values, strict=True))
    return judged("memory_in_order", holds=values[0] >= values[1] >= values[2] > 0, found=found)


def same_device(record: RunRecord) -> Check:
    """Every rank's GPU, as CUDA names it, is one that the NVML sampler has watched."""
    if record.spec.gpu_type.is_cpu:
        return Check("same_device", "skipped", "needs a GPU: a processor has no sampler")
    seen = {bare_uuid(device.uuid) for node in record.nodes for device in node.devices}
    ranks = {rank.device.uuid for rank in record.ranks if rank.device and rank.device.uuid}
    holds = bool(ranks) and {bare_uuid(uuid) for uuid in ranks} <= seen
    return judged("same_device", holds=holds, found=f"ranks on {', '.join(sorted(ranks)) or 'no GPU of known UUID'}; "
                  f"{len(seen)} watched")  # fmt: skip


def memory_measured(record: RunRecord) -> Check:
    """The allocator's peak is a number above zero; all that a processor can say."""
    peak = derive(record).peak_allocated_bytes
    return judged("memory_measured", holds=peak is not None and peak.value > 0, found=_shown(peak))


def recompute_acts(record: RunRecord) -> Check:
    """The built layers carry exactly what was predicted."""
    if any(rank.recompute is None for rank in record.ranks):
        return judged("recompute_acts", holds=False, found="the layers were not read back")
    otherwise = built_otherwise(record.effective, record.ranks)
    effect = record.effective
    acting = ", ".join(f"{name} on {count}" for name, count in effect.modules.items())
    layers = f"{effect.full_layers} whole layers" if effect.full_layers else acting or "nothing"
    return judged("recompute_acts", holds=otherwise is None, found=otherwise or f"as predicted: {layers}")


def same_losses(record: RunRecord, control: RunRecord) -> Check:
    """Recompute changes memory, never the training: losses as without it, within bf16's tolerance."""
    mine, others = losses(record), losses(control)
    if not mine or len(mine) != len(others):
        return judged("same_losses", holds=False, found=f"{len(mine)} losses, the control has {len(others)}")
    apart = [abs(a - b) / abs(b) for a, b in zip(mine, others, strict=True)]
    holds = apart[0] <= FIRST_LOSS_TOLERANCE and max(apart) <= LOSS_TOLERANCE
    return judged("same_losses", holds=holds, found=f"first {apart[0]:.1e}, worst {max(apart):.1e} of the control's")


def peak_not_above(record: RunRecord, control: RunRecord) -> Check:
    """Whole-layer recompute needs no more memory than none, within PEAK_TOLERANCE."""
    mine, others = derive(record).peak_allocated_bytes, derive(control).peak_allocated_bytes
    if mine is None or others is None:
        return judged("peak_not_above", holds=False, found="a peak is missing")
    found = f"{format_bytes(mine.value)} against {format_bytes(others.value)} without recompute"
    holds = mine.value <= others.value * (1 + PEAK_TOLERANCE)
    return judged("peak_not_above", holds=holds, found=found)


def out_of_memory(ran: Ran) -> tuple[Check, ...]:
    """Exit code, outcome, and the facts of a failed allocation: rank, phase, request."""
    record = ran.record
    status = record.status if record else "no record"
    ended = judged(
        "recorded_as_oom",
        holds=ran.exit_code == ExitCode.OUT_OF_MEMORY and status == "oom",
        found=f"exit {ran.exit_code}, {status}",
    )
    failed = next((rank for rank in record.ranks if rank.failure), None) if record else None
    if failed is None or failed.failure is None:
        return ended, judged("says_where", holds=False, found="no rank says why")
    failure = failed.failure
    asked = format_bytes(failure.request_bytes) if failure.request_bytes else "nothing"
    where = judged(
        "says_where",
        holds=failure.kind == "oom" and failure.phase is not None and bool(failure.request_bytes),
        found=f"{failure.kind} of rank {failed.rank} in {failure.phase} of step {failure.step}, asking for {asked}",
    )
    return ended, where


def losses(record: RunRecord) -> list[float]:
    """Losses in step order."""
    return [step.loss for rank in record.ranks for step in rank.steps if step.loss is not None]


def _shown(peak: Peak | None) -> str:
    return format_bytes(peak.value) if peak else "no reading"
