"""What was asked and what of it is in effect, as a two-column table."""

from rich.table import Table
from rich.text import Text

from harness.records.run import RunRecord
from harness.report.printing import OneLineTable
from harness.spec.effective import EffectiveRecompute
from harness.spec.experiment import ExperimentSpec
from harness.spec.user_buffers import UserBuffers
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
