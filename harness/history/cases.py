"""The history of one case: its measurements, its changes and the band of its golden."""

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, InstanceOf, PlainSerializer, field_serializer

from harness.errors import BadRequestError, nearest
from harness.experiment.gpu import GPUS
from harness.history.changes import ChangePoint, ChangeRow, Trend, changes, notable, setup_of, trend
from harness.history.record import LIMIT, HistoryRecord
from harness.history.series import Night, Series, series_of
from harness.judge.gate import Thresholds
from harness.records.batches import Purpose
from harness.records.folders import golden_dir
from harness.records.golden import Difference, GoldenRecord
from harness.records.goldens import read_golden
from harness.records.metrics import Better, Metric
from harness.records.redact import redact
from harness.records.run import Status
from harness.show.json import Document, Shown, Text, at
from harness.units import grouped

_MOST_NAMED = 5


class CaseSummary(Shown):
    """A case with the settings of its newest run. ``last_value``: of the last night with the figure."""

    series: InstanceOf[Series] = Field(exclude=True)
    case: str = at("series", "case")
    fingerprint: str = at("series", "fingerprint")
    num_nights: int
    num_runs: int
    num_others: int = Field(serialization_alias="num_runs_of_other_settings")
    last_started_at: str
    last_outcome: str
    last_value: float | None
    trend: Trend | None
    notes: tuple[str, ...] = at("series", "notes")


def case_summaries(records: Sequence[HistoryRecord], metric: Metric) -> tuple[CaseSummary, ...]:
    """Return every case of ``records`` (in order of time) by name."""
    by_case = grouped((record.case, record) for record in records)
    return tuple(_summary(series_of(by_case[case]), len(by_case[case]), metric) for case in sorted(by_case))


def named_case(name: str, records: Iterable[HistoryRecord]) -> str:
    """Return the case of that name, or of a suite's case, or with that part. BadRequestError for none or several."""
    called: dict[str, set[str]] = {}
    for record in records:
        called.setdefault(record.case, set()).update({record.suite_case} - {""})
    for fits in (str.__eq__, str.__contains__):
        found = sorted(case for case, names in called.items() if any(fits(each, name) for each in (case, *names)))
        if len(found) == 1:
            return found[0]
        if found:
            message = f"case {name!r} is ambiguous: {len(found)} cases"
            raise BadRequestError(message, remedy=f"name one of: {', '.join(found[:_MOST_NAMED])}")
    known = sorted({candidate for case, names in called.items() for candidate in (case, *names)})
    listed = f"{nearest(name, known)}; `mbr-perf history` lists them"
    none = "history is empty: `mbr-perf nightly` and `mbr-perf history add RUN` write it"
    raise BadRequestError(f"no case {name!r} in history", remedy=listed if known else none)


def _summary(series: Series, num_all: int, metric: Metric) -> CaseSummary:
    measured = series.measured(metric)
    last = series.nights[-1]
    num_runs = sum(len(night.records) for night in series.nights)
    return CaseSummary.of(
        series=series,
        num_nights=len(series.nights),
        num_runs=num_runs,
        num_others=num_all - num_runs,
        last_started_at=last.started_at,
        last_outcome=last.outcome,
        last_value=measured[-1][1] if measured else None,
        trend=trend([value for _, value in measured], metric.better) if measured else None,
    )


@dataclass(frozen=True)
class GoldenBand:
    """``low`` to ``high``: within ``threshold`` of ``value``. ``allowed_by``: the last judged night or the default."""

    path: Path
    value: float
    threshold: float
    low: float
    high: float
    allowed_by: str = "default"


def golden_band(series: Series, metric: Metric, folder: Path | None = None) -> tuple[GoldenBand | None, str]:
    """Return the band of the threshold that decided last, or None with the reason why there is none to show."""
    place = golden_dir(folder) / series.case.partition(LIMIT)[0]
    if metric.gate is None:
        return None, f"{metric.name} is not judged"
    path = place.with_name(f"{place.name}.json")
    formula, problems = series.nights[-1].records[0].formula_version, list[str]()
    for each in (path, *sorted(place.parent.glob(f"{glob.escape(place.name)}.mbs*.json"))):  # of other batches
        try:
            golden = read_golden(each) if each.is_file() else None
        except BadRequestError as error:
            problems.append(redact(error.message))
            continue
        if golden is None or golden.gpu not in GPUS or golden.fingerprint not in (None, series.fingerprint):
            continue
        if metric.name in golden.metrics and (metric.gate != "time" or golden.formula_version in (None, formula)):
            return _band(each, golden, series, metric), ""
    name = f"{path.parent.name}/{path.name}"  # without its folder, which may tell what a page must not
    return None, "; ".join(problems) or f"none of these settings with {metric.title} in {name}"


def _band(path: Path, golden: GoldenRecord, series: Series, metric: Metric) -> GoldenBand:
    assert metric.gate is not None
    gpu, value = GPUS[golden.gpu], golden.metrics[metric.name].value
    runs = (run for night in reversed(series.nights) for run in night.records)
    allowed = next((run.allowed[metric.name] for run in runs if metric.name in run.allowed), None)
    threshold = Thresholds(gpu.timing_threshold, gpu.memory_threshold).of(metric.gate) if allowed is None else allowed
    allowed_by = "default" if allowed is None else "the last night"
    return GoldenBand(path, value, threshold, value * (1 - threshold), value * (1 + threshold), allowed_by)


Measured = tuple[tuple[Night, float], ...]


class LevelChange(Shown):
    """A new level and its first ``night``. ``changed``: what else changed there, or one night beside it."""

    started_at: str = at("night", "started_at")
    night: str = at("night", "id")
    before: float = at("point", "before")
    after: float = at("point", "after")
    change: float = at("point", "fraction")
    p_value: float = at("point", "p_value")
    changed: tuple[ChangeRow, ...]
    changed_where: Text


class RunRow(Shown):
    """One run of a night."""

    run_id: str
    status: Status
    purpose: Purpose
    suspect: tuple[str, ...]
    failure: str | None
    sm_clock_mhz: float | None
    power_cap_share: float | None
    value: float | None


class NightRow(Shown):
    """Runs of a case for one figure. ``changed``: since the night before."""

    id: str
    started_at: str
    is_start_known: bool
    value: float | None
    spread: float | None
    outcome: str
    runs: tuple[RunRow, ...]
    setup: dict[str, str | None]
    changed: tuple[ChangeRow, ...]


def _night_row(night: Night, metric: str, before: Night | None) -> NightRow:
    figures = {run.run_id: run.metrics[metric].value for run in night.records if metric in run.metrics}
    return NightRow.of(
        night,
        value=night.value(metric),
        spread=night.spread(metric),
        runs=[RunRow.of(run, value=figures.get(run.run_id)) for run in night.records],
        setup=setup_of(night),
        changed=changes(before, night) if before else (),
    )


class CaseHistory(Document):
    """``mbr-perf history CASE --json``, nights oldest first. ``no_...``: why there are none."""

    series: InstanceOf[Series] = Field(exclude=True)
    case: str = at("series", "case")
    fingerprint: str = at("series", "fingerprint")
    metric: Annotated[InstanceOf[Metric], PlainSerializer(lambda metric: metric.name, return_type=str)]
    unit: str = at("metric", "unit")
    better: Better = at("metric", "better")
    nights: tuple[InstanceOf[Night], ...] = at("series", "nights")
    change_points: tuple[LevelChange, ...]
    no_change_points: str
    trend: Trend | None
    golden: GoldenBand | None
    no_golden: str
    notes: tuple[str, ...] = at("series", "notes")

    @field_serializer("nights")
    def _rows(self, nights: tuple[Night, ...]) -> tuple[NightRow, ...]:
        each = zip(nights, (None, *nights), strict=False)
        return tuple(_night_row(night, self.metric.name, before) for night, before in each)

    @property
    def measured(self) -> Measured:
        return self.series.measured(self.metric)


def explained(measured: Measured, point: ChangePoint) -> LevelChange:
    """Return the point with what changed at it."""
    nights = [night for night, _ in measured]
    changed, where = _changes_at(nights, point.index), ""
    for offset, place in ((0, ""), (-1, "one night before"), (1, "one night after")):
        found = _changes_at(nights, point.index + offset)
        if notable(found):
            changed, where = found, place
            break
    return LevelChange.of(night=nights[point.index], point=point, changed=changed, changed_where=where)


def _changes_at(nights: Sequence[Night], index: int) -> tuple[Difference, ...]:
    return changes(nights[index - 1], nights[index]) if 0 < index < len(nights) else ()
