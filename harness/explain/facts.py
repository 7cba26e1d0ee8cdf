"""Makes a side of a comparison from all that a run recorded."""

import math
from collections import Counter
from statistics import median

from harness.explain.values import ABSENT, IMAGE, NONE_SEEN, Group, Key, Side
from harness.judge.coverage import measured_device
from harness.judge.derive import derive
from harness.judge.likeness import SOFTWARE, hostnames, own_devices
from harness.judge.metrics import METRICS, Metrics
from harness.judge.plausible import doubts_of
from harness.judge.readings import bare_uuid, rank_clocks
from harness.predict.flops import FORMULA_VERSION
from harness.records.golden import leaves
from harness.records.run import IMPORTED, REPLAYED, RunRecord
from harness.units import counted

_ALWAYS: tuple[Group, ...] = ("settings", "recompute", "software")
_OF_THE_IMPORT: frozenset[Key] = frozenset(
    {
        ("device", "device_name"),
        ("place", "hosts"),
        ("harness", "mbr_perf"),
        ("harness", "git_commit"),
        ("harness", "command"),
        *(("software", name) for name in (*SOFTWARE, IMAGE)),
    }
)
SLOW_RANK = 0.02  # show a rank whose own steps take this much longer than those of the median rank


def run_side(record: RunRecord, name: str = "") -> Side:
    """Return the run with everything that its ranks, sampler and harness recorded; metrics only if it ended well."""
    metrics = derive(record)
    numbers, steps = _numbers(record), metrics.step_time_s
    if steps and steps.relative_spread is not None:
        numbers["spread_of_steps"] = steps.relative_spread
    found = _facts(record, metrics, numbers)
    facts: dict[Key, str] = {(group, key): value for group, texts in found.items() for key, value in texts.items()}
    closed = {*_ALWAYS, *(("environment",) if record.provenance.environment else ())}
    if record.imported is not None:  # its log does not describe the machine or its software
        facts = {key: value for key, value in facts.items() if key not in _OF_THE_IMPORT}
        closed -= {"software"}
    return Side(
        name=name or record.run_id,
        kind="run",
        metrics=_figures(record, metrics),
        facts=facts,
        closed=frozenset(closed),
        numbers=numbers,
        sources=record.sources,
        spec=record.spec,
        effective=record.effective,
        caveats=_caveats(record, metrics),
    )


def _figures(record: RunRecord, metrics: Metrics) -> dict[str, float]:
    if record.status != "ok":
        return {}
    read = {metric.name: metric.read(metrics) for metric in METRICS}
    return {name: value for name, value in read.items() if value is not None and math.isfinite(value) and value > 0}


def _caveats(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    ended = f"the run ended as {record.status}: {record.failure or 'no failure recorded'}"
    short = metrics.problems.get("step_time_s")
    return (
        *([] if record.status == "ok" else [ended]),
        *(f"suspect: {why}" for why in doubts_of(record, metrics)),
        *([short] if short else []),
        *(note for note in record.notes if note.startswith((REPLAYED, IMPORTED))),
    )


def _facts(record: RunRecord, metrics: Metrics, numbers: dict[str, float]) -> dict[Group, dict[str, str]]:
    spec, where = record.spec, record.provenance
    asked, (start, end) = leaves(spec.identity()), spec.measure.window
    return {
        "device": {"gpu": spec.gpu, "device_name": measured_device(record) or ABSENT},
        "settings": {name: value for name, value in asked.items() if name != "gpu"},
        "recompute": _recompute(record),
        "clocks": _clocks(record, numbers),
        "processes": _processes(record),
        "memory": _memory(record, metrics),
        "ranks": _ranks(record, numbers),
        "environment": where.environment,
        "software": {name: version or ABSENT for name, version in {**where.versions, IMAGE: where.container}.items()},
        "driver": {"driver_version": where.driver_version} if where.driver_version else {},
        "window": {
            "max_steps": str(spec.measure.max_steps),
            "window": f"[{start}, {end})",
            **(
                {"spread_of_steps": f"{numbers['spread_of_steps'] * 100:.1f} %"} if "spread_of_steps" in numbers else {}
            ),
        },
        "place": {
            "hosts": ", ".join(hostnames(record)),
            "gpus_per_node": str(spec.gpus_per_node),
            **({"cpus": str(where.num_cpus)} if where.num_cpus else {}),
        },
        "formula": {"formula_version": FORMULA_VERSION},
        "harness": {
            "mbr_perf": where.mbr_perf,
            **({"git_commit": where.git_commit} if where.git_commit else {}),
            "command": " ".join(where.command),
        },
    }


def _recompute(record: RunRecord) -> dict[str, str]:
    """Return what the layers recompute: the calculation and, if ranks read it back, the built model of every stage."""
    effect = record.effective
    acting = {f"acts.{name}": f"{count} of {effect.num_layers} layers" for name, count in effect.modules.items()}
    inert = {f"inert.{name}": reason for name, reason in effect.inert_modules.items()}
    full = {"full_layers": f"{effect.full_layers} of {effect.num_layers}"} if effect.full_layers else {}
    built: Counter[str] = Counter()
    for rank in record.ranks:
        if rank.recompute and rank.coordinates.is_first_copy:
            built.update(rank.recompute.modules)
    return {
        "implementation": effect.implementation,
        **acting,
        **inert,
        **full,
        **{f"built.{name}": counted(count, "layer") for name, count in built.items()},
    }


def _numbers(record: RunRecord) -> dict[str, float]:
    each = rank_clocks(record.ranks, record.nodes, record.spec.measure.window).values()
    clocks = [own.sm_clock_mhz for own in each if own.sm_clock_mhz]
    power = [device.max_power_w for _, device in own_devices(record) if device.max_power_w]
    numbers = {"sm_clock_min_mhz": min(clocks), "sm_clock_max_mhz": max(clocks)} if clocks else {}
    if power:
        numbers["max_power_w"] = max(power)
    start, end = record.spec.measure.window
    each_s = ([s.seconds for s in rank.steps if start <= s.step < end and s.seconds > 0] for rank in record.ranks)
    times = [median(own) for own in each_s if own]
    if len(times) > 1:
        numbers["imbalance"] = max(times) / median(times) - 1
    return numbers


def _clocks(record: RunRecord, numbers: dict[str, float]) -> dict[str, str]:
    devices = own_devices(record)
    if not devices:
        return {}
    each = rank_clocks(record.ranks, record.nodes, record.spec.measure.window)
    slowed = {
        bare_uuid(rank.device.uuid): each[rank.rank].slowdowns
        for rank in record.ranks
        if rank.rank in each and rank.device and rank.device.uuid
    }
    throttled = [
        f"GPU {device.index} of {host}: {', '.join(slowdowns)}"
        for host, device in devices
        if (slowdowns := slowed.get(bare_uuid(device.uuid)))
    ]
    units = {"sm_clock_min_mhz": "MHz", "sm_clock_max_mhz": "MHz", "max_power_w": "W"}
    return {
        "throttling": "; ".join(throttled) or NONE_SEEN,
        **{name: f"{numbers[name]:.0f} {unit}" for name, unit in units.items() if name in numbers},
    }


def _processes(record: RunRecord) -> dict[str, str]:
    devices = own_devices(record)
    if not devices:
        return {}
    foreign = [
        f"GPU {device.index} of {host}: {', '.join(device.foreign_processes)}"
        for host, device in devices
        if device.foreign_processes
    ]
    unknown = sum(device.num_unidentified_processes for _, device in devices)
    unidentified = {"unidentified_processes": str(unknown)} if unknown else {}
    return {"foreign_processes": "; ".join(foreign) or NONE_SEEN, **unidentified}


def _memory(record: RunRecord, metrics: Metrics) -> dict[str, str]:
    retries = [rank.memory.num_alloc_retries for rank in record.ranks if rank.memory]
    known = [count for count in retries if count is not None]
    found = {"alloc_retries": str(sum(known)) if sum(known) else NONE_SEEN} if known else {}
    for name, peak in metrics.peaks.items():
        if peak is not None:
            found[f"worst_rank.{name}"] = f"rank {peak.rank} (stage {peak.stage})"
    return found


def _ranks(record: RunRecord, numbers: dict[str, float]) -> dict[str, str]:
    """Return the rank with the longest own steps. Every rank's steps include waiting, so differences look small."""
    if "imbalance" not in numbers:
        return {}
    if numbers["imbalance"] < SLOW_RANK:
        return {"slow_rank": NONE_SEEN}
    start, end = record.spec.measure.window
    own = [(rank, [s.seconds for s in rank.steps if start <= s.step < end]) for rank in record.ranks]
    slowest, _ = max(((rank, times) for rank, times in own if times), key=lambda timed: median(timed[1]))
    who = f"rank {slowest.rank} (stage {slowest.coordinates.pp}, {slowest.hostname})"
    return {"slow_rank": f"{who}: {numbers['imbalance'] * 100:.1f} % longer than the median rank"}
