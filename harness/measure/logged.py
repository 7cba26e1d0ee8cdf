"""Completes a request with the arguments that a job of Megatron-LM printed in its log, and reports contradictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import dropwhile, islice

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute, canonical_text
from harness.foreign.logs.lines import LogLine, log_lines
from harness.foreign.logs.sieve import Wanted
from harness.foreign.logs.sources import is_stream
from harness.foreign.megatron_arguments import BLOCK_ENDS, Arguments, begins_block, from_block, tokens_in
from harness.foreign.settings import rows_of, settings_in
from harness.launch.environment import Host
from harness.measure.understanding import RunRequest, settle
from harness.records.golden import Difference
from harness.records.redact import MASK, is_secret_name, redact
from harness.resolve.options import LEAF_OF_OPTION
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, Value, at_path
from harness.resolve.sweep_file import RECOMPUTE_OPTIONS
from harness.resolve.writing import scalar

_MOST_ARGUMENTS = 5000  # lines; Megatron prints about 700
_ARGUMENTS = Wanted((), (" arguments ---",), more=_MOST_ARGUMENTS)
_HEAD_LINES = 50_000  # trainers print their arguments before the first iteration
_OF_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "mtp_num_layers",
    "moe.num_moe_experts", "moe.moe_router_topk", "moe.moe_ffn_hidden_size", "mla.kv_lora_rank",
)  # fmt: skip
_OF_STEP = (
    "parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size",
    "parallelism.virtual_pipeline_model_parallel_size", "parallelism.context_parallel_size",
    "parallelism.expert_model_parallel_size", "parallelism.expert_tensor_parallel_size",
    "parallelism.sequence_parallel", "parallelism.pipeline_model_parallel_layout", "batch.micro_batch_size",
    "batch.global_batch_size", "batch.seq_length", "recompute", "optimizer.use_distributed_optimizer",
    "optimizer.use_precision_aware_optimizer", "ddp.overlap_grad_reduce", "ddp.overlap_param_gather",
    "ddp.grad_reduce_in_fp32", "cuda_graph.impl", "cuda_graph.scope", "num_gpus", "compute_dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Logged:
    """The settings that a log prints, and their place. ``path``: of the log. ``others``: arguments as text, masked."""

    path: str
    settings: Layer
    others: Mapping[str, str]

    def texts(self) -> dict[str, str | None]:
        """Return every setting that has a value as it is written."""
        return {path: _text(each.value) for path, each in self.settings.items() if each.value is not None}


def logged_arguments(logs: Sequence[str]) -> Logged | None:
    """Return the arguments at the head of a job's logs; None without any, and for what can be read only once."""
    if any(map(is_stream, logs)):
        return None
    found: Arguments | None = None
    with suppress(BadRequestError):  # the reader of the whole log reports what is wrong with it
        lines = log_lines(list(logs), wanted=_ARGUMENTS)
        found = from_block(_first_block(islice(lines, _HEAD_LINES)), "the log")
    if found is None:
        return None
    place = next(iter(found.given.values())).source
    settings = settings_in(found, rows_of("megatron"))
    if found.num_gpus:
        settings["num_gpus"] = Setting(found.num_gpus.value, found.num_gpus.source)
    others = {
        name: MASK if is_secret_name(name) else redact(str(each.value))
        for name, each in found.given.items()
        if name not in found.read
    }
    return Logged(place.rpartition(": ")[0].rpartition(":")[0], settings, others)


def _first_block(lines: Iterable[LogLine]) -> Iterator[tuple[str, str]]:
    block, has_ended = dropwhile(lambda line: not begins_block(line.text), lines), False
    for line in islice(block, _MOST_ARGUMENTS):
        if has_ended and begins_block(line.text):
            return
        yield line.text, line.where
        has_ended = has_ended or BLOCK_ENDS.search(line.text) is not None
        if tokens_in(line.text):
            return


def with_logged(request: Request, logs: Sequence[str], host: Host) -> tuple[Request, tuple[str, ...]]:
    """Return the request with the settings that its options leave open taken from the log, and a note that lists them.

    The batch and the layout of a recipe count as open. Without recipe and file, the log describes the whole job.
    BadRequestError with every setting of the log that contradicts the model of the recipe, an option or a file.
    """
    logged = logged_arguments(logs)
    if logged is None or not request.gpu:
        return request, ()
    origin = f"the arguments that {logged.path} prints"
    if not request.job_name:
        request = replace(request, source=ForeignSource("megatron_args", logged.path, _name(logged.settings)))
        _left_open(request, logged.settings, host)
        return request, (f"settings: from {origin}",)
    added = dict[str, Setting]()
    if request.num_gpus is None and request.source is not None and request.source.kind == "hf":
        added = {path: each for path, each in logged.settings.items() if path == "num_gpus"}  # config.json has none
    added |= _left_open(_filled(request, added), logged.settings, host)
    if not added:
        return request, ()
    listed = ", ".join(f"{path.rpartition('.')[2]} {_text(each.value)}" for path, each in added.items())
    if _TENSOR in added and _SEQUENCE in logged.settings:  # which -tp would set too
        added[_SEQUENCE] = logged.settings[_SEQUENCE]
    return _filled(request, added), (f"from {origin}: {listed}",)


def _name(settings: Layer) -> str:
    """Return a name that equal jobs share, whatever their logs are called: ``log_80x8192``, by layers and width."""
    sizes = [settings.get(f"model.{name}") for name in ("num_layers", "hidden_size")]
    return "_".join(("log", *filter(None, ["x".join(str(each.value) for each in sizes if each)])))


def _left_open(request: Request, logged: Layer, host: Host) -> dict[str, Setting]:
    """Return the settings of the log that differ from the request's and that nothing in the request asks for."""
    problems, left_open = Problems(), dict[str, Setting]()
    settled = settle(RunRequest(asked=request), host)
    for each in contradictions(logged, settled.spec):
        path, source = each.name, settled.sources.get(each.name, "")
        here = f"{each.source} is {each.after}"
        if path.startswith("model.") and not source.startswith("-"):
            remedy = "give the file of this job" if request.source else "name the recipe of this job with -mr"
            problems.add(f"{here}, but {' '.join(request.job_words)} has {each.before}", remedy)
        elif _is_asked(request, path, source):
            remedy = "leave the option out, or name" if source.startswith("-") else "give the file of this job, or name"
            problems.add(f"{here}, but {source} sets {each.before}", f"{remedy} the log of this job")
        else:
            left_open[path] = logged.get(path, _NOT_PRINTED)
    problems.raise_if_any()
    return left_open


_TENSOR, _SEQUENCE = "parallelism.tensor_model_parallel_size", "parallelism.sequence_parallel"


def _is_asked(request: Request, path: str, source: str) -> bool:
    """Return whether an option, or a file of the whole job, sets the value itself."""
    if request.source is not None:
        return not source.startswith(("usual", "default")) and source != ""
    own = _OPTION_OF_LEAF.get(path)
    if source.startswith("--set") or own is None:
        return source.startswith("-") and source != f"--{_OPTION_OF_LEAF[_TENSOR]}"
    return source == f"--{own}"


_NOT_PRINTED = Setting(None, "")


def contradictions(settings: Layer, spec: ExperimentSpec) -> list[Difference]:
    """Return the settings of the spec whose effect differs from that of the log's; ``source``: the log's line."""
    found: list[Difference] = []
    for path in (*(f"model.{name}" for name in _OF_MODEL), *_OF_STEP):
        setting, ours = settings.get(path, _NOT_PRINTED), at_path(spec, path)
        is_unknown = setting.value is None and path in ("num_gpus", "compute_dtype")
        if not is_unknown and _effect(path, setting.value, spec) != _effect(path, ours, spec):
            where = setting.source if ":" in setting.source else f"the log's {path.rpartition('.')[2]}"
            found.append(Difference(path, _text(ours), _text(setting.value), source=where))
    return found


def contradictions_text(logged: Logged, spec: ExperimentSpec, whose: str) -> str:
    """Name the settings of the log that contradict the spec, and its values. ``whose``: ``the golden``."""
    found = contradictions(logged.settings, spec)
    texts = (f"{each.name} {each.after} ({whose}: {each.before})" for each in found)
    return f"the arguments that {logged.path} prints contradict {whose}: {', '.join(texts)}" if found else ""


def _effect(path: str, value: object, spec: ExperimentSpec) -> object:
    """Return what a value does in this job: equal for all spellings, and for an absent value and its default."""
    if path == "recompute":
        return _text(value)
    if path == "model.num_query_groups":
        return None if spec.model.mla else value or spec.model.num_attention_heads
    if path == "parallelism.expert_tensor_parallel_size":
        return (value or spec.parallelism.tensor_model_parallel_size) if spec.model.moe else None
    return None if value in (1, (), "none") and path.startswith(("parallelism.virtual", "cuda_graph.")) else value


def _text(value: object) -> str:
    policy = NoRecompute | SelectiveRecompute | FullRecompute
    return canonical_text(value) if isinstance(value, policy) else scalar(value)


_OPTION_OF_LEAF = {path: option for option, path in LEAF_OF_OPTION.items()}


def _filled(request: Request, settings: Mapping[str, Setting]) -> Request:
    changes: dict[str, object] = {}
    more: list[str] = []
    for path, setting in settings.items():
        value: Value = setting.value
        if path == "recompute":
            changes |= dict.fromkeys(RECOMPUTE_OPTIONS) | {"recompute": _text(value)}
        elif path in ("num_gpus", "compute_dtype"):
            changes[path] = value
        elif path == "parallelism.virtual_pipeline_model_parallel_size":
            changes[_OPTION_OF_LEAF[path]] = value or "none"
        elif path in _OPTION_OF_LEAF and value is not None:
            changes[_OPTION_OF_LEAF[path]] = value
        else:
            more.append(f"{path}={scalar(value)}")
    return replace(request, set_values=(*request.set_values, *more), **changes)  # type: ignore[arg-type]
