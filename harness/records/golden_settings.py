"""For which settings a golden was measured, and where a spec departs from them."""

from collections.abc import Mapping

from harness.records.golden import GoldenRecord
from harness.spec.experiment import ExperimentSpec
from harness.spec.recompute import canonical_text, parse_recompute

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
    """
    if golden.fingerprint == fingerprint:
        return {}
    ours, theirs = leaves(spec.identity()), leaves(golden.spec)
    if golden.fingerprint is None:
        theirs |= {label: str(getattr(golden, label)) for label in LABELS}
        theirs["recompute"] = canonical_text(parse_recompute(golden.recompute))
        ours = {path: ours[path] for path in ours if path in theirs}
    paths = sorted(ours.keys() | theirs.keys())
    found = {path: (theirs.get(path), ours.get(path)) for path in paths if theirs.get(path) != ours.get(path)}
    if not found and golden.fingerprint is not None:
        return {"fingerprint": (golden.fingerprint, fingerprint)}
    return found
