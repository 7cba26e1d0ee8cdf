"""For which settings a golden was measured, and where a spec departs from them."""

import json
from collections.abc import Mapping

from pydantic import ValidationError

from harness.records.golden import GoldenRecord
from harness.spec.experiment import FORMER_VALUES, ExperimentSpec
from harness.spec.gpu import GPUS
from harness.spec.recompute import canonical_text, parse_recompute

_NO_SETTINGS = {"family", "gpus_per_node", "point_gpu", "recipes_dir"}  # sources have them, the identity does not
LABELS = ("recipe", "task", "gpu", "compute_dtype", "num_gpus", "recompute")


def leaves(value: object, path: str = "") -> dict[str, str]:
    """A nested mapping as dotted path to text; lists are leaves.

    >>> leaves({"parallelism": {"context_parallel_size": 2}})
    {'parallelism.context_parallel_size': '2'}
    """
    if not isinstance(value, Mapping):
        return {path: str(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}" if path else str(key))
    return found


def setting_differences(
    golden: GoldenRecord, spec: ExperimentSpec, fingerprint: str
) -> dict[str, tuple[str | None, str | None]]:
    """Dotted paths of the spec with the golden's and our value where they differ; empty when the golden is for us.

    Without a fingerprint (external goldens) only what the golden says is compared: its labels and its partial spec.
    With one, a field that either side leaves out has its former value there.
    """
    if golden.fingerprint == fingerprint:
        return {}
    ours, theirs = leaves(spec.identity()), leaves(golden.spec)
    if golden.fingerprint is None:
        theirs |= {label: str(getattr(golden, label)) for label in LABELS}
        theirs["recompute"] = canonical_text(parse_recompute(golden.recompute))
        ours = {path: ours[path] for path in ours if path in theirs}
    else:
        former = {path: str(FORMER_VALUES[path]) for path in FORMER_VALUES.keys() & (ours.keys() | theirs.keys())}
        ours, theirs = former | ours, former | theirs
    paths = sorted(ours.keys() | theirs.keys())
    found = {path: (theirs.get(path), ours.get(path)) for path in paths if theirs.get(path) != ours.get(path)}
    if not found and golden.fingerprint is not None:
        return {"fingerprint": (golden.fingerprint, fingerprint)}
    return found


def unstated_options(golden: GoldenRecord, spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    """Settings of ``spec`` that an option set and that a golden without a fingerprint does not state, by dotted path."""
    if golden.fingerprint is not None:
        return []
    stated, ours = {*LABELS, *_NO_SETTINGS, *leaves(golden.spec)}, leaves(spec.identity())
    given = [path for path, source in sources.items() if source.startswith("-") and path not in stated]
    return sorted(path for path in given if path in ours or not path.startswith("measure."))


def difference_text(name: str, golden: str | None, current: str | None) -> str:
    """Say one difference in words: ``train.manual_gc: golden False, here True``."""
    return f"{name}: golden {golden or 'none'}, here {current or 'none'}"


def differences_text(different: Mapping[str, tuple[str | None, str | None]]) -> str:
    """Say all differences of :func:`setting_differences` in one line."""
    return "; ".join(difference_text(name, *values) for name, values in different.items())


def spec_like(golden: GoldenRecord, like: ExperimentSpec | None = None) -> ExperimentSpec | None:
    """The experiment that the golden was measured with; what it does not state is taken from ``like``.

    None where that is no experiment: a published golden of another recipe or without ``like``, or settings that this
    version does not know.
    """
    if golden.fingerprint is None and (like is None or like.recipe != golden.recipe):
        return None
    base = like.model_dump(mode="json") if like else {}
    if golden.fingerprint is not None:  # states everything but where the ranks lay and how long was measured
        row = GPUS.get(golden.gpu)
        base = {"family": golden.recipe, "gpus_per_node": row.gpus_per_node if row else 8, "measure": {}} | {
            name: base[name] for name in ("family", "gpus_per_node", "measure") if name in base
        }
    fields = _over(base, golden.spec) | {label: getattr(golden, label) for label in LABELS if label != "recompute"}
    fields["recompute"] = parse_recompute(golden.recompute).model_dump(mode="json")
    try:
        return ExperimentSpec.model_validate_json(json.dumps(fields))
    except ValidationError:
        return None


def _over(base: Mapping[str, object], stated: Mapping[str, object]) -> dict[str, object]:
    """``stated`` over ``base``, nested values one by one."""
    merged = dict(base)
    for name, value in stated.items():
        there = merged.get(name)
        merged[name] = _over(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return merged
