"""What was asked for, as text and as a table."""

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.experiment.user_buffers import UserBuffers
from harness.records.run import RunRecord
from harness.showing.printing import OneLineTable
from harness.units import counted


def request_table(record: RunRecord) -> Table:
    """Name and value of everything that decides the result."""
    table = OneLineTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(record):
        table.add_row(name, Text(value))
    return table


def _rows(record: RunRecord) -> list[tuple[str, str]]:
    return [
        ("Run", record.run_id),
        *request_rows(record.spec),
        *effect_rows(record.effective),
        *((finding.severity.capitalize(), f"{finding.id}: {finding.message}") for finding in record.findings),
    ]


def request_rows(spec: ExperimentSpec) -> list[tuple[str, str]]:
    """What is asked: recipe, layout, batch, recompute."""
    return [
        ("Recipe", f"{spec.recipe}, {spec.task}, {spec.compute_dtype}, {_gpus(spec)}"),
        ("Parallelism", _parallelism(spec)),
        ("Batch", _batch(spec)),
        ("Recompute", spec.recompute.text),
        *([("TP overlap", _overlap(spec))] if spec.makes_user_buffers else []),
        ("Fingerprint", spec.fingerprint),
    ]


def _gpus(spec: ExperimentSpec) -> str:
    if spec.gpu_type.is_cpu:
        return f"{spec.num_gpus} CPU rank{'s' * (spec.num_gpus > 1)}"
    return f"{spec.num_gpus} x {spec.gpu_type.title}"


def _parallelism(spec: ExperimentSpec) -> str:
    p = spec.parallelism
    sizes = {
        "TP": p.tensor_model_parallel_size,
        "PP": p.pipeline_model_parallel_size,
        "VP": p.virtual_pipeline_model_parallel_size,
        "CP": p.context_parallel_size,
        "EP": p.expert_model_parallel_size if spec.model.moe else None,
        "DP": spec.data_parallel_size,
    }
    shown = [f"{name} {size}" for name, size in sizes.items() if size]
    return ", ".join([*shown, *(["sequence parallel"] if p.sequence_parallel else [])])


def _overlap(spec: ExperimentSpec) -> str:
    """The user buffers of tp_comm_overlap."""
    tokens, width = spec.user_buffer_shape
    buffers = spec.kernels.tp_comm_overlap_cfg
    told = described_buffers(buffers) if buffers else "transformer-engine's defaults"
    return f"user buffers of {tokens} x {width}: {told}"


def described_buffers(buffers: UserBuffers) -> str:
    """The names of known configurations with these buffers, then the GEMMs."""
    return ": ".join([*filter(None, [" = ".join(buffers.names)]), f"GEMMs {buffers}"])


def _batch(spec: ExperimentSpec) -> str:
    batch = spec.batch
    return (
        f"micro {batch.micro_batch_size}, global {batch.global_batch_size} ({counted(spec.num_microbatches, 'micro-batch', 'es')}), "
        f"sequence {batch.seq_length}, {counted(spec.measure.max_steps, 'step')}"
    )


def effect_rows(effective: EffectiveRecompute) -> list[tuple[str, str]]:
    """Modules in effect, whole layers, and the inert ones with the reason."""
    active = [
        f"{module}: {layers} of {counted(effective.num_layers, 'layer')}"
        for module, layers in effective.modules.items()
    ]
    if effective.full_layers:
        active.append(f"{effective.full_layers} of {counted(effective.num_layers, 'layer')} recomputed whole")
    if effective.does_nothing:
        active.append("nothing: the run equals one without recompute")
    inert = [f"{module}: {reason}" for module, reason in effective.inert_modules.items()]
    return [
        *(("In effect", line) for line in active),
        *(("Inert", line) for line in inert),
        *(("Note", note) for note in effective.notes),
    ]


def request_lines(spec: ExperimentSpec) -> list[str]:
    """Model, point, parallelism, batch and recompute, a line each."""
    return [f"{name:<13}{value}" for name, value in request_rows(spec)]


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
