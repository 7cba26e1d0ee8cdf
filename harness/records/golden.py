"""A golden value file: its settings, and its text on disk."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS
from harness.experiment.model import MOST, Gpus, Repeats
from harness.experiment.recompute import canonical_text, parse_recompute, shown_setting
from harness.records.metrics import BY_NAME, GateKind
from harness.records.rank import Recorded
from harness.records.refusing import RefusedError, one_of
from harness.units import utc_time, walked

LEAST_VALUE, MOST_VALUE = 1e-12, 1e30
"""The values that a golden may hold: from the MFU of a toy to the FLOPs of a step of the largest job."""
MOST_SPREAD = 0.5
"""The largest relative spread of a golden's runs: beyond it no change would ever be more than noise."""
_WRONG_CLOCKS = timedelta(days=1)


class GoldenMetric(Frozen):
    """One value, with the relative standard deviation over its runs; None for a single run."""

    value: int | float = Field(ge=LEAST_VALUE, le=MOST_VALUE)
    relative_spread: float | None = Field(default=None, ge=0, le=MOST_SPREAD)
    note: str | None = None


class MeasuredOn(Frozen):
    """Hardware and software; None: unknown. ``sm_clock_mhz``, ``power_cap_share``: of the worst GPU, medians."""

    gpu: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] | None = None
    container: str | None = None
    hostnames: tuple[str, ...] = ()
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None


class GoldenRecord(Recorded):
    """``results/golden/<gpu>/<slug>.json``. ``kind`` external: published elsewhere. ``overridden``: doubts."""

    kind: Literal["measured", "external"]
    recipe: str
    task: str
    gpu: str
    compute_dtype: str
    num_gpus: Gpus
    recompute: str
    fingerprint: str | None = None
    spec: dict[str, object] = Field(default_factory=dict)
    metrics: dict[Annotated[str, one_of(BY_NAME, "no such metric")], GoldenMetric]
    digest: str | None = None
    measured_on: MeasuredOn
    formula_version: str | None = None
    run_ids: tuple[str, ...] = ()
    num_runs: Repeats
    promoted_at: str
    promoted_by: str
    reason: str
    source: str | None = None
    caveats: tuple[str, ...] = ()
    max_steps: int | None = Field(default=None, ge=1, le=MOST["steps"])
    window: tuple[int, int] | None = None
    night_id: str | None = None
    overridden: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_sound(self, info: ValidationInfo) -> Self:
        wrong: dict[str, str] = {}
        try:
            parse_recompute(self.recompute)
        except ValueError as error:
            wrong["recompute"] = str(error)
        if self.digest is None and _has_digest(self) and info.mode == "json":
            wrong["digest"] = "missing, so the file may have been edited by hand: promote the runs again"
        if self.digest not in (None, golden_digest(self)):
            wrong["digest"] = "the file was edited by hand: promote the runs again"
        try:
            if utc_time(self.promoted_at) > datetime.now(UTC) + _WRONG_CLOCKS:
                wrong["promoted_at"] = f"{self.promoted_at} is in the future"
        except ValueError:
            wrong["promoted_at"] = f"{self.promoted_at!r} is no ISO-8601 time"
        if wrong:
            raise RefusedError([((key,), BadRequestError(message)) for key, message in wrong.items()])
        return self


def _has_digest(golden: GoldenRecord) -> bool:
    return golden.kind == "measured" or bool(golden.run_ids)


_ABOUT = {"schema_version", "digest", "promoted_by", "reason", "source", "caveats", "overridden", "night_id"}


def golden_digest(golden: GoldenRecord) -> str:
    """Return 16 hexadecimal digits of all that a verdict depends on: figures, settings, machine, runs and date."""
    judged = golden.model_dump(mode="json", exclude=_ABOUT, exclude_defaults=True)
    return hashlib.sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()[:16]


_NO_SETTINGS = {"family", "gpus_per_node", "point_gpu", "recipes_dir"}  # sources have them, the identity does not
LABELS = ("recipe", "task", "gpu", "compute_dtype", "num_gpus", "recompute")
NOT_SET = "not set"


def leaves(value: object) -> dict[str, str]:
    """Flatten a nested mapping to text by dotted path; lists are leaves, and None is ``not set``."""
    return {name: NOT_SET if each is None else str(each) for name, each in walked(value)}


def settings_of(golden: GoldenRecord) -> dict[str, str]:
    """Return what the golden states, by dotted path; of a golden with a fingerprint, all settings of this version."""
    spec = spec_like(golden) if golden.fingerprint is not None else None
    return leaves(spec.identity() if spec else golden.spec)


Group = Literal[
    "device", "settings", "recompute", "clocks", "processes", "memory", "environment", "software", "driver",
    "window", "place", "formula",
]  # fmt: skip
ALL_KINDS: tuple[GateKind, ...] = ("time", "memory", "exact")
TIME_ONLY: tuple[GateKind, ...] = ("time",)


@dataclass(frozen=True)
class Difference:
    """A fact ``before`` of ``reference``, ``after`` of what is judged; ``blocks`` False: leaves out gates."""

    name: str
    before: Annotated[str | None, Field(serialization_alias="golden")]
    after: Annotated[str | None, Field(serialization_alias="current")]
    kinds: tuple[GateKind, ...] = ALL_KINDS
    blocks: bool = True
    accepted: bool = False
    group: Annotated[Group, Field(exclude=True)] = "settings"
    source: Annotated[str, Field(exclude=True)] = ""
    reference: Annotated[str, Field(exclude=True)] = "golden"

    @property
    def text(self) -> str:
        """``train.manual_gc: golden False, here True``."""
        before, after = (shown_setting(value or "none") for value in (self.before, self.after))
        return f"{self.name}: {self.reference} {before}, here {after}"


def differences(
    before: Mapping[str, str | None], after: Mapping[str, str | None], *, blocks: bool = True
) -> tuple[Difference, ...]:
    """Compare two sides fact by fact, in the order of names; a fact that one side lacks is None there."""
    each = ((name, before.get(name), after.get(name)) for name in sorted(before.keys() | after.keys()))
    found = ((name, old, new) for name, old, new in each if old != new and {old, new} != {None, NOT_SET})
    return tuple(Difference(name, old, new, blocks=blocks) for name, old, new in found)


def setting_differences(golden: GoldenRecord, spec: ExperimentSpec, fingerprint: str) -> tuple[Difference, ...]:
    """Return the settings in which golden and run differ; without a fingerprint of those that it states."""
    if golden.fingerprint == fingerprint:
        return ()
    ours, theirs = leaves(spec.identity()), settings_of(golden)
    if golden.fingerprint is None:
        theirs |= {label: str(getattr(golden, label)) for label in LABELS}
        theirs["recompute"] = canonical_text(parse_recompute(golden.recompute))
        ours = {path: ours[path] for path in ours if path in theirs}
    found = differences(theirs, ours)
    if golden.fingerprint is not None and [each.name for each in found] == ["recipe"]:
        return ()  # a label: both sides have all settings
    return found


def unstated_options(golden: GoldenRecord, spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    """Return settings, by dotted path, that an option set and a golden without a fingerprint does not state."""
    if golden.fingerprint is not None:
        return []
    stated, ours = {*LABELS, *_NO_SETTINGS, *leaves(golden.spec)}, leaves(spec.identity())
    given = [path for path, source in sources.items() if source.startswith("-") and path not in stated]
    return sorted(path for path in given if path in ours or not path.startswith("measure."))


def spec_like(golden: GoldenRecord, like: ExperimentSpec | None = None) -> ExperimentSpec | None:
    """Rebuild the golden's experiment, with what it does not state from ``like``; None if impossible."""
    if golden.fingerprint is None and (like is None or like.recipe != golden.recipe):
        return None
    base = like.model_dump(mode="json") if like else {}
    if golden.fingerprint is not None:  # such a golden states everything except rank placement and number of steps
        row = GPUS.get(golden.gpu)
        base = {"family": golden.recipe, "gpus_per_node": row.gpus_per_node if row else 8, "measure": {}} | {
            name: base[name] for name in ("family", "gpus_per_node", "measure") if name in base
        }
    fields = _over(base, golden.spec) | {label: getattr(golden, label) for label in LABELS if label != "recompute"}
    try:
        fields["recompute"] = parse_recompute(golden.recompute).model_dump(mode="json")
        return ExperimentSpec.model_validate_json(json.dumps(fields))
    except ValueError:
        return None


def _over(base: Mapping[str, object], stated: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for name, value in stated.items():
        there = merged.get(name)
        merged[name] = _over(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return merged


def golden_text(golden: GoldenRecord) -> str:
    """Return the golden as text: fields in schema order; spec, versions and environment sorted by name."""
    whole = golden.model_copy(update={"digest": golden_digest(golden)}) if _has_digest(golden) else golden
    fields = {"schema_version": golden.schema_version} | whole.model_dump(mode="json", exclude_defaults=True)
    where = fields["measured_on"]
    for held, name in ((fields, "spec"), (where, "versions"), (where, "environment")):
        if name in held:
            held[name] = json.loads(json.dumps(held[name], sort_keys=True))
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
