"""A request in words: what will run, what recompute will do, what the rules say, where each setting comes from."""

from collections.abc import Iterable, Mapping

from harness.report.request_table import described_buffers, effect_rows, request_rows
from harness.spec.effective import EffectiveRecompute
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import Finding


def request_lines(spec: ExperimentSpec) -> list[str]:
    """Model, point, parallelism, batch and recompute, a line each."""
    return [f"{name:<13}{value}" for name, value in request_rows(spec)]


def user_buffers_document(spec: ExperimentSpec) -> dict[str, object] | None:
    """The user buffers that a run makes, for programs. ``names`` are the known configurations with equal buffers.

    ``ub_cfgs`` is empty where all are transformer-engine's defaults.
    """
    if not spec.makes_user_buffers:
        return None
    buffers = spec.kernels.tp_comm_overlap_cfg
    return {
        "shape": list(spec.user_buffer_shape),
        "names": list(buffers.names) if buffers else [],
        "ub_cfgs": buffers.ub_cfgs if buffers else {},
    }


def effect_lines(effective: EffectiveRecompute) -> list[str]:
    """Modules in effect with their layers, and the inert ones with the reason."""
    return [f"{name:<13}{value}" for name, value in effect_rows(effective)]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Warnings, notes and forced errors, with what to do."""
    words = {"error": "Forced", "warning": "Warning", "note": "Note"}
    return [f"{words[f.severity]}: {f.id}: {f.message}; {f.fix}" for f in findings]


def explanation(spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    """Every setting with its value and its source; defaults last."""
    buffers = spec.kernels.tp_comm_overlap_cfg
    values = dict(_leaves(spec.model_dump(mode="json"))) | {
        "recompute": spec.recompute.text,
        "kernels.tp_comm_overlap_cfg": described_buffers(buffers) if buffers else None,
    }
    named = sorted(sources.items(), key=lambda item: (item[1] == "default", item[0]))
    width = max(map(len, sources), default=0)
    shown = {path: str(_value(values, path, source)) for path, source in named}
    value_width = min(40, max(map(len, shown.values()), default=0))
    return [f"{path:<{width}}  {shown[path]:<{value_width}}  {source}" for path, source in named]


def _value(values: Mapping[str, object], path: str, source: str) -> object:
    if path in values:
        return values[path]
    if source.startswith(f"--{path} "):  # it selected the point, and is no setting
        return source.partition(" ")[2]
    inner = {name.removeprefix(f"{path}."): value for name, value in values.items() if name.startswith(f"{path}.")}
    return ", ".join(f"{name} {value}" for name, value in inner.items()) or "none"


def _leaves(value: object, path: str = "") -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield path, ",".join(map(str, value)) or "none"
    else:
        yield path, value
