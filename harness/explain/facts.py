"""Makes a side of a comparison from all that a run or a golden recorded."""

import math
from collections.abc import Callable, Mapping, Sequence

from harness.experiment import flops
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import FORMULA_VERSION
from harness.experiment.recompute import canonical_text, parse_recompute
from harness.explain.values import ABSENT, IMAGE, NONE_SEEN, Key, Side
from harness.judge.derive import derive
from harness.judge.likeness import SOFTWARE, measured_on, own_devices
from harness.judge.plausible import doubts_of, impossible_golden
from harness.judge.readings import bare_uuid, rank_clocks
from harness.records.golden import GoldenRecord, Group, MeasuredOn, leaves, settings_of, spec_like
from harness.records.metrics import METRICS, Metrics
from harness.records.run import IMPORTED, DeviceSample, RunRecord

Facts = Mapping[str, str | None]
# Facts of a run from a log that describe the import, not the machine or the software that the log is about.
_OF_THE_IMPORT = frozenset({*SOFTWARE, IMAGE, "device_name", "hosts"})
_CLOCK = "sm_clock_min_mhz"


def run_side(record: RunRecord, name: str = "") -> Side:
    """Return the run with everything that its ranks and sampler recorded; metrics only if it ended well."""
    metrics = derive(record)
    read = {metric.name: metric.read(metrics) for metric in METRICS} if record.status == "ok" else {}
    facts = _flat(_of_run(record))
    closed: set[Group] = {"settings", "recompute"}
    if record.provenance.environment:
        closed.add("environment")
    if record.imported is None:
        closed.add("software")
    else:
        facts = {key: value for key, value in facts.items() if key[1] not in _OF_THE_IMPORT}
    return Side(
        name=name or record.run_id,
        kind="run",
        metrics={key: value for key, value in read.items() if value is not None and 0 < value < math.inf},
        facts=facts,
        closed=frozenset(closed),
        sources=record.sources,
        spec=record.spec,
        caveats=_caveats(record, metrics),
    )


def _caveats(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    ended = f"the run ended as {record.status}: {record.failure or 'no failure recorded'}"
    short = metrics.problems.get("step_time_s")
    return (
        *([] if record.status == "ok" else [ended]),
        *(f"suspect: {why}" for why in doubts_of(record, metrics)),
        *([short] if short else []),
        *record.unmeasured,
        *(note for note in record.notes if note.startswith(IMPORTED)),
    )


_BORROWED = "calculations use the run's settings where the source states none"
_LABELS = ("recipe", "task", "compute_dtype", "num_gpus")


def golden_side(name: str, golden: GoldenRecord, like: ExperimentSpec | None = None) -> Side:
    """Return the golden as a side; ``like`` has settings that it does not state. Step times may be calculated."""
    spec, where = spec_like(golden, like), golden.measured_on
    derived = _step_time(golden, spec)
    closed: set[Group] = {"settings"} if golden.fingerprint else set()
    if where.environment is not None:
        closed.add("environment")
    return Side(
        name=name,
        kind="golden" if golden.kind == "measured" else "published",
        metrics={name: metric.value for name, metric in golden.metrics.items()} | derived,
        facts=_flat(_of_golden(golden)),
        closed=frozenset(closed),
        num_runs=golden.num_runs,
        spreads={n: m.relative_spread for n, m in golden.metrics.items() if m.relative_spread is not None},
        spec=spec,
        derived=tuple(derived),
        caveats=(
            *golden.caveats,
            *(f"suspect: {why}" for why in impossible_golden(golden)),
            *(f"promoted in spite of {why}" for why in golden.overridden),
            *([] if golden.fingerprint is not None or spec is None else [_BORROWED]),
        ),
    )


def _of_golden(golden: GoldenRecord) -> Mapping[Group, Facts]:
    asked = settings_of(golden) | {name: str(getattr(golden, name)) for name in _LABELS}
    asked["recompute"] = canonical_text(parse_recompute(golden.recompute))
    facts = _common(golden.measured_on, asked, golden.max_steps, golden.window, golden.formula_version)
    if golden.measured_on.environment is None:
        facts["software"].pop(IMAGE)
    clock = golden.measured_on.sm_clock_mhz
    if golden.kind == "measured" and clock is not None:  # promotion refuses throttled and shared GPUs
        facts["clocks"] = {"throttling": NONE_SEEN, _CLOCK: f"{clock:.0f} MHz"}
        facts["processes"] = {"foreign_processes": NONE_SEEN}
    return facts


def _step_time(golden: GoldenRecord, spec: ExperimentSpec | None) -> dict[str, float]:
    throughput = golden.metrics.get("tflops_per_gpu")
    formula_is_ours = golden.formula_version in (None, FORMULA_VERSION)
    if spec is None or throughput is None or "step_time_s" in golden.metrics or not formula_is_ours:
        return {}
    return {"step_time_s": flops.model_flops_per_step(spec) / (throughput.value * spec.num_gpus * 1e12)}


def _flat(found: Mapping[Group, Facts]) -> dict[Key, str]:
    return {
        (group, name): value for group, facts in found.items() for name, value in facts.items() if value is not None
    }


def _common(
    where: MeasuredOn, asked: Facts, max_steps: int | None, window: tuple[int, int] | None, formula: str | None
) -> dict[Group, dict[str, str | None]]:
    return {
        "device": {"gpu": where.gpu, "device_name": where.device_name},
        "settings": {name: value for name, value in asked.items() if name != "gpu"},
        "environment": {**(where.environment or {})},
        "software": {
            **{name: version or ABSENT for name, version in where.versions.items()},
            IMAGE: where.container or ABSENT,
        },
        "driver": {"driver_version": where.driver_version},
        "place": {"hosts": ", ".join(where.hostnames) or None},
        "window": {
            "max_steps": None if max_steps is None else str(max_steps),
            "window": None if window is None else f"[{window[0]}, {window[1]})",
        },
        "formula": {"formula_version": formula},
    }


def _of_run(record: RunRecord) -> Mapping[Group, Facts]:
    spec, origin, where = record.spec, record.provenance, measured_on([record])
    where = where.model_copy(update={"versions": origin.versions, "device_name": where.device_name or ABSENT})
    asked = leaves(spec.identity())
    found = _common(where, asked, spec.measure.max_steps, spec.measure.window, FORMULA_VERSION)
    found["place"] |= {
        "gpus_per_node": str(spec.gpus_per_node),
        "cpus": str(origin.num_cpus) if origin.num_cpus else None,
    }
    known = [rank.memory.num_alloc_retries for rank in record.ranks if rank.memory]
    retries = [count for count in known if count is not None]
    return {
        **found,
        **_of_devices(record),
        "recompute": _recompute(record),
        "memory": {"alloc_retries": str(sum(retries) or NONE_SEEN) if retries else None},
    }


def _recompute(record: RunRecord) -> Facts:
    effect = record.effective
    return {
        "implementation": effect.implementation,
        **{f"acts.{name}": f"{count} of {effect.num_layers} layers" for name, count in effect.modules.items()},
        **{f"inert.{name}": reason for name, reason in effect.inert_modules.items()},
        "full_layers": f"{effect.full_layers} of {effect.num_layers}" if effect.full_layers else None,
    }


def _of_devices(record: RunRecord) -> Mapping[Group, Facts]:
    devices = own_devices(record)
    if not devices:
        return {}
    clocks = rank_clocks(record.ranks, record.nodes, record.spec.measure.window)
    own = {bare_uuid(rank.device.uuid): rank.rank for rank in record.ranks if rank.device and rank.device.uuid}

    def seen(read: Callable[[DeviceSample], Sequence[str]]) -> str:
        found = ((f"GPU {device.index} of {host}", read(device)) for host, device in devices)
        return "; ".join(f"{gpu}: {', '.join(values)}" for gpu, values in found if values) or NONE_SEEN

    def slowdowns(device: DeviceSample) -> Sequence[str]:
        rank = clocks.get(own[bare_uuid(device.uuid)])
        return rank.slowdowns if rank else ()

    slowest = min((each.sm_clock_mhz for each in clocks.values() if each.sm_clock_mhz), default=None)
    return {
        "clocks": {"throttling": seen(slowdowns), _CLOCK: None if slowest is None else f"{slowest:.0f} MHz"},
        "processes": {"foreign_processes": seen(lambda device: device.foreign_processes)},
    }
