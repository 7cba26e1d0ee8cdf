"""Shows the request as text and as a table, and what the rules find in it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import shown_setting
from harness.experiment.rules.rule import Finding
from harness.launch.environment_rows import EXPORTS, STOPS
from harness.records.run import RunRecord
from harness.resolve.recipe import ASSUMED, LAID_OUT, NO_EFFECT, UNPREDICTED
from harness.show.page import GAP, Column, Facts, Gap, Line, Listing, Table, table
from harness.units import counted, sentence, walked

if TYPE_CHECKING:
    from harness.foreign.exporting import ToPaste

VALUES = 13


def paste_lines(setting: "ToPaste", indent: int = 0) -> tuple[Line, ...]:
    """Return the lines of a recommended setting, to copy into jobs of other programs."""
    return tuple(Line(f"{'':{indent}}{line}", whole=True) for line in setting.lines)


def export_lines(notes: Iterable[str]) -> list[Line]:
    """Return those of ``notes`` that hold variables to export, to copy."""
    return [Line(note, whole=True) for note in notes if note.startswith(EXPORTS)]


def stop_words(notes: Iterable[str]) -> list[str]:
    """Return of such notes what an answer has room for: that the job ends at its start, and the rule."""
    return [f"; {': '.join(note.split(': ')[:2])}" for note in notes if note.startswith(STOPS)]


def stop_lines(notes: Iterable[str]) -> list[Line]:
    """Return those of ``notes`` that say why the job ends at its start."""
    return [Line(note, "failed", hang=2) for note in notes if note.startswith(STOPS)]


def request_facts(
    spec: ExperimentSpec, effective: EffectiveRecompute | None = None, *, without: Collection[str] = ()
) -> Facts:
    """Return the request and, if known, what its recompute does. ``without``: names of rows to leave out."""
    rows = [row for row in request_rows(spec) if row[0] not in without]
    return Facts((*rows, *(effect_rows(effective) if effective else ())), VALUES)


def record_facts(record: RunRecord) -> Facts:
    """Name and value of everything that decides the result."""
    found = ((finding.severity.capitalize(), f"{finding.id}: {finding.message}") for finding in record.findings)
    return Facts((("Run", record.run_id), *request_rows(record.spec), *effect_rows(record.effective), *found), VALUES)


def request_rows(spec: ExperimentSpec) -> list[tuple[str, str]]:
    """Return the request: recipe, layout, batch, recompute."""
    engine, batch = spec.engine, spec.batch
    micro_batches = counted(spec.num_microbatches, "micro-batch", "es")
    sizes = f"micro {batch.micro_batch_size}, global {batch.global_batch_size} ({micro_batches})"
    return [
        ("Recipe", f"{spec.recipe}, {spec.task}, {spec.compute_dtype}, {_gpus(spec)}"),
        *([("Engine", f"Megatron-Bridge {engine.version}, {engine.forward_step}")] if engine else []),
        ("Parallelism", _parallelism(spec)),
        ("Batch", f"{sizes}, sequence {batch.seq_length}, {counted(spec.measure.max_steps, 'step')}"),
        ("Recompute", spec.recompute.text),
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
        "CP": f"{p.context_parallel_size}{' (a2a)' * (p.context_parallel_size > 1 and p.cp_comm_type == 'a2a')}",
        "EP": p.expert_model_parallel_size if spec.model.moe else None,
        "DP": spec.data_parallel_size,
    }
    shown = [f"{name} {size}" for name, size in sizes.items() if size]
    return ", ".join([*shown, *(["sequence parallel"] if p.sequence_parallel else [])])


def effect_rows(effective: EffectiveRecompute) -> list[tuple[str, str]]:
    """Return the layers that each module is recomputed in, and the modules without effect with the reason."""
    active = [
        f"{module}: {layers} of {counted(effective.num_layers, 'layer')}"
        for module, layers in effective.modules.items()
    ]
    if effective.full_layers:
        active.append(f"{effective.full_layers} of {counted(effective.num_layers, 'layer')}, whole")
    if effective.does_nothing:
        active.append("nothing: the run equals one without recompute")
    if not effective.is_counted and effective.recompute != "none":
        active.append("the built model will show what")
    inert = [f"{module}: {reason}" for module, reason in effective.inert_modules.items()]
    return [*(("Recomputed", line) for line in active), *(("No effect", line) for line in inert)]


def finding_lines(findings: Iterable[Finding]) -> Listing:
    """Return warnings and forced errors, with what to do; no notes."""
    words = {"error": "Forced", "warning": "Warning"}
    shown = (finding for finding in findings if finding.severity in words)
    return Listing(tuple(f"{words[f.severity]}: {f.id}: {f.message}; {f.fix}" for f in shown))


def explanation(spec: ExperimentSpec, sources: Mapping[str, str]) -> tuple[Table, Gap, Table]:
    """Return the settings that a source gives, with it and their values, and those that are defaults."""
    every = walked(spec.model_dump(mode="json"))
    values = {path: ",".join(map(str, each)) or "none" if isinstance(each, list) else each for path, each in every}
    values["recompute"] = spec.recompute.text
    rows = [(path, source, str(_value(values, path, source))) for path, source in sorted(sources.items())]
    return (
        table(("Setting", "Source", Column("Value", long=True)), (row for row in rows if row[1] != "default")),
        GAP,
        table(("Default", Column("Value", long=True)), (row[::2] for row in rows if row[1] == "default")),
    )


def _value(values: Mapping[str, object], path: str, source: str) -> object:
    if path in values:
        return values[path]
    if source.startswith(f"--{path} "):  # it selected the point, and is no setting
        return source.partition(" ")[2]
    inner = {name.removeprefix(f"{path}."): value for name, value in values.items() if name.startswith(f"{path}.")}
    return ", ".join(f"{name} {value}" for name, value in inner.items()) or "none"


def assumed_lines(notes: Sequence[str]) -> list[Line]:
    """Return those of ``notes`` that name assumed values, or what was asked for and is not honoured."""
    return [Line(sentence(note), "dim", hang=2) for note in notes if _is_told(note)]


def other_notes(notes: Sequence[str]) -> Iterator[str]:
    """Yield the other notes."""
    return (f"Note: {note}" for note in notes if not _is_told(note) and not note.startswith((EXPORTS, STOPS)))


def _is_told(note: str) -> bool:
    return note.startswith((ASSUMED, NO_EFFECT, LAID_OUT)) or UNPREDICTED in note


def request_words(spec: ExperimentSpec) -> str:
    """Return the recipe, GPUs, layout and recompute in one line."""
    layers, modules = spec.offload.cpu_offloading_num_layers, ", ".join(spec.offload.offload_modules)
    words = [spec.compute_dtype, _gpus(spec), _parallelism(spec)]
    words += ["Megatron-FSDP"] * spec.ddp.use_megatron_fsdp + [f"{counted(layers, 'layer')} offloaded"] * bool(layers)
    words += [f"{modules} offloaded"] * bool(modules) + [f"recompute {shown_setting(spec.recompute.text)}"]
    return f"{spec.recipe} {spec.task}, {', '.join(words)}"
