"""Reads a job from a Megatron-Bridge `ConfigContainer` file: each field is a setting, harmless, or refused."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.errors import BadRequestError, Problems
from harness.experiment.gpu import PRECISIONS
from harness.experiment.layout_text import LayoutSyntaxError, parse_layout
from harness.foreign.container_fields import FIELDS, container_layer
from harness.foreign.container_file import Container, Found, flat, read_container
from harness.foreign.container_known import KNOWN, OFF, SECTIONS, Known
from harness.foreign.container_values import layout
from harness.foreign.megatron_refusals import DETERMINISTIC_NETS
from harness.records.reading import PlainValue
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, Value, build_spec, merge
from harness.units import shortened

_PARTS = ("model", "train", "optimizer", "ddp")
_NEEDED = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "tensor_model_parallel_size",
           "pipeline_model_parallel_size", "context_parallel_size")  # fmt: skip
_MAPPED = frozenset(name for row in FIELDS for name in row.names)
_BRIDGE = "megatron.bridge.models."
_MODELS = ("gpt_provider", "mla_provider", "gpt.model_config", "deepseek.deepseek_provider", "glm.glm45_provider",
           "gpt_oss.gpt_oss_provider", "kimi.kimi_provider", "llama.llama_provider", "mistral.mistral_provider",
           "qwen.qwen_provider")  # fmt: skip
_OTHER_MODELS = (
    (r"mamba|hybrid|nemotronh\.|falcon_h1", "has Mamba layers"),
    (r"diffusion|\.wan\.|flux|llada|dit", "is a diffusion model"),
    (r"vl_|_vl|vision|audio|omni|asr|ministral3|llama4|mimo\.", "reads images, sound or video, or has special layers"),
    (r"heterogeneous|llama_nemotron", "has layers of different sizes"),
    (r"t5|distill", "is not a single decoder"),
)
_LAYERS = ("default_layer_spec", "transformer_engine_layer_spec", "get_gpt_decoder_block_spec",
           "get_gpt_layer_with_transformer_engine_spec", "transformer_engine_full_layer_spec",
           "get_transformer_block_with_experimental_attention_variant_spec")  # fmt: skip


_NAMES = {name: Setting("job", "") for name in ("recipe", "family")} | {
    "gpu": Setting("h100", ""), "gpus_per_node": Setting(8, ""), "num_gpus": Setting(1, ""),
}  # fmt: skip


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the file, with one note about fields that no prediction includes.

    BadRequestError with every field that has no counterpart here, or for a file that Megatron-Bridge has not completed.
    """
    del request
    container = read_container(Path(source.path), source.label)
    _require_model(container)
    problems, layer = Problems(), dict[str, Setting]()
    unfinished = list(_unfinished(container))
    problems.found += [*unfinished, *_refused_by_bridge(container)]
    if unfinished:  # its other values are not yet those of the job
        problems.raise_if_any()
    missing = list(_missing(container))
    problems.found += [*missing, *_at_odds(container)]
    remarks = list(_unmatched(container, problems))
    with problems.collecting():
        layer |= container_layer(container)
    remarks += _remarks(container, layer.get("compute_dtype"))
    if problems.found and layer and not missing:
        with problems.collecting():  # values of a wrong type, together with the other problems
            build_spec(merge(_NAMES, layer), container.label)
    problems.raise_if_any()
    task = "sft" if re.search("SFT|Finetuning|HFDataset", container.target("dataset")) else "pretrain"
    note = f"{container.label}: not all is predicted: {'; '.join(remarks)}" if remarks else ""
    return layer | {
        "task": Setting(task, f"{container.label}: dataset"),
        "family": Setting("bridge", source.label, note=note),
    }


def _require_model(container: Container) -> None:
    place, name = container.place("model"), container.target("model")
    module = name.rpartition(".")[0].removeprefix(_BRIDGE)
    if name and (module not in _MODELS or "Llama4" in name):
        found = (why for pattern, why in _OTHER_MODELS if re.search(pattern, name, re.IGNORECASE))
        message = f"{place}: mbr-perf cannot train {name}: the model {next(found, 'is unknown')}"
        raise BadRequestError(message, remedy="give a GPT model, dense or with experts")
    if container.value("peft") is not None:
        kind = container.target("peft").rpartition(".")[2] or "an adapter"
        raise BadRequestError(
            f"{container.place('peft')}: mbr-perf cannot train adapters ({kind})",
            remedy="give a job that trains all weights",
        )


_COMPLETED = (
    "scheduler.lr_decay_steps",
    "comm_overlap.data_parallel_size",
)  # Megatron-Bridge computes them before it trains


def _unfinished(container: Container) -> Iterator[BadRequestError]:
    places = [path for path in _COMPLETED if (found := container.find(path)) is not None and found.value is None]
    places += ["mixed_precision"] if isinstance(container.value("mixed_precision"), str) else []
    if places:
        yield BadRequestError(
            f"{container.place(places[0])}: Megatron-Bridge has not completed this file: precision, overlaps and "
            f"sizes may not be those of the job",
            remedy="give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run",
        )


def _missing(container: Container) -> Iterator[BadRequestError]:
    absent = [part for part in _PARTS if container.find(part) is None]
    names = [
        *absent,
        *(f"model.{name}" for name in _NEEDED if "model" not in absent and container.value(f"model.{name}") is None),
    ]
    for name in names:
        yield BadRequestError(
            f"{container.place(name)}: missing", remedy="give the whole file that Megatron-Bridge wrote"
        )


def _unmatched(container: Container, problems: Problems) -> Iterator[str]:
    """Refuse fields with a value that mbr-perf cannot train; yield remarks on fields that no prediction includes."""
    first: dict[str, Found] = {}
    for found in container.settings():
        path = flat(found.path)
        other = first.setdefault(path, found)
        if other.value != found.value:
            message = f"{path} is {_text(found.value)}, but line {other.line} sets {_text(other.value)}"
            problems.add(f"{container.label}:{found.line}: {message}", "keep one of them")
        section, row = path.partition(".")[0], KNOWN.get(path)
        if path in _MAPPED or (row is None and (section in SECTIONS or found.value in OFF)):
            continue
        if row is None:
            problems.add(
                f"{container.label}:{found.line}: {path}: mbr-perf knows no such field of Megatron-Bridge 0.3 to 0.7; "
                f"its value is {_text(found.value)}",
                "delete the line if it changes neither memory nor time",
            )
        elif row.values is not None and not _is_one_of(found.value, row.values) and _applies(row, container):
            text = f"{path} is {_text(found.value)}: {row.why}"
            if row.is_noted:
                yield text.replace(": ", " (", 1) + ")"
            else:
                needed = " or ".join(map(_text, row.values)) if row.values is not OFF else "off"
                problems.add(f"{container.label}:{found.line}: {text}", f"must be {needed}")


def _is_one_of(value: PlainValue, values: tuple[PlainValue, ...]) -> bool:
    """Return whether the value is one of ``values``; 1 is not true."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _applies(row: Known, container: Container) -> bool:
    path, above, _ = row.only.partition(">")
    value = container.value(path) if path else True
    return isinstance(value, int) and value > 1 if above else value not in OFF


def _text(value: PlainValue) -> str:
    """Return the value as YAML writes it, in at most 60 characters."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return shortened(text)


def _refused_by_bridge(container: Container) -> Iterator[BadRequestError]:
    """Yield contradictions that Megatron-Bridge refuses, too."""
    value, problem = container.value, container.problem
    knobs = {name: value(f"model.{name}") for name in ("moe_deepep_num_sms", "moe_hybridep_num_sms")}
    if (
        container.find("model.moe_flex_dispatcher_num_sms") is not None
        and value("model.moe_flex_dispatcher_num_sms") is None
        and None not in knobs.values()
        and len(set(knobs.values())) > 1
    ):
        named = " and ".join(f"{name}={number}" for name, number in knobs.items())
        message = f"the deprecated SM-count knobs {named} contradict each other, and Megatron-Bridge refuses that"
        yield problem("model.moe_deepep_num_sms", message, "set moe_flex_dispatcher_num_sms alone")
    chunks, stages = (value(f"model.{name}pipeline_model_parallel_size") for name in ("virtual_", ""))
    with suppress(BadRequestError, LayoutSyntaxError):  # a layout that cannot be read is reported where it is read
        text = layout(container, "model.pipeline_model_parallel_layout")
        if isinstance(chunks, int) and isinstance(stages, int) and isinstance(text, str) and stages > 0:
            of_layout = len(parse_layout(text))
            if of_layout != chunks * stages:
                message = f"{chunks}, but the pipeline layout has {of_layout} chunks on {stages} stages"
                yield problem(
                    "model.virtual_pipeline_model_parallel_size", message, f"{of_layout // stages} matches the layout"
                )


_FORMER = (
    ("model.enable_cuda_graph", "model.cuda_graph_impl", "local"),
    ("model.external_cuda_graph", "model.cuda_graph_impl", "transformer_engine"),
    ("model.moe_enable_deepep", "model.moe_flex_dispatcher_backend", "deepep"),
)
"""Former names, and the settings that mean the same."""


def _at_odds(container: Container) -> Iterator[BadRequestError]:
    """Yield what fields say together that mbr-perf cannot train."""
    value = container.value
    is_bf16, weights, spec = value("model.bf16"), value("model.params_dtype"), value("model.transformer_layer_spec")
    own, data = value("model.seq_length"), value("dataset.seq_length")
    chunks, variant = (
        value(f"model.{name}") for name in ("virtual_pipeline_model_parallel_size", "experimental_attention_variant")
    )
    of_weights = "torch.bfloat16" if is_bf16 else "torch.float32"
    knows_variant = variant in (None, "gdn", "gated_delta_net")
    rows = (
        ("model.params_dtype", weights not in (None, of_weights),
         f"{_text(weights)}, but model.bf16 is {_text(is_bf16)}", f"must be {of_weights}"),
        ("model.bf16", (value("model.fp8") or value("model.fp4")) and not is_bf16,
         "off, but FP8 and FP4 train bf16 weights here", "set it to true"),
        ("ddp.use_custom_fsdp", value("ddp.use_custom_fsdp") and not value("ddp.use_megatron_fsdp"),
         "the former name of ddp.use_megatron_fsdp, which is off", "give both the same value"),
        ("model.transformer_layer_spec", isinstance(spec, str) and spec.rpartition(".")[2] not in _LAYERS,
         f"mbr-perf does not know the layers of {spec}", "use the layers of the GPT model"),
        ("model.experimental_attention_variant", not knows_variant,
         f"mbr-perf does not know the attention {_text(variant)}", "use gated_delta_net"),
        ("model.deterministic_mode", knows_variant and variant and value("model.deterministic_mode"),
         DETERMINISTIC_NETS, "set it to false"),
        ("dataset.seq_length", None not in (own, data) and own != data,
         f"{_text(data)}, but model.seq_length is {_text(own)}", "make them equal"),
        ("model.overlap_p2p_comm",
         isinstance(chunks, int) and chunks > 1 and value("model.overlap_p2p_comm") is False,
         "off, but an interleaved pipeline overlaps its messages here", "set it to true"),
    )  # fmt: skip
    yield from _former_names(container)
    yield from (container.problem(path, message, remedy) for path, is_odd, message, remedy in rows if is_odd)


def _former_names(container: Container) -> Iterator[BadRequestError]:
    for old, new, meant in _FORMER:
        found = container.value(new)
        if container.value(old) and str(found).lower() != meant:
            message = f"the former name of {new}={meant}, but {new} is {_text(found)}"
            yield container.problem(old, message, f"set {new}, and this to false")


def _remarks(container: Container, dtype: Setting | None) -> Iterator[str]:
    """Yield what no prediction includes: an unfused rotary embedding, another precision, larger evaluations."""
    value = container.value
    rotates = value("model.position_embedding_type") in ("rope", "yarn") and not value("model.multi_latent_attention")
    if rotates and value("model.apply_rope_fusion") is False:
        yield "model.apply_rope_fusion is false (an unfused rotary embedding)"
    yield from _precision_remarks(container, dtype)
    evaluated, trained = value("validation.eval_micro_batch_size"), value("train.micro_batch_size")
    if isinstance(evaluated, int) and isinstance(trained, int) and evaluated > trained:
        sizes = f"validation.eval_micro_batch_size is {evaluated}, train.micro_batch_size {trained}"
        yield f"{sizes}: an evaluation may raise the peak"


def _precision_remarks(container: Container, dtype: Setting | None) -> Iterator[str]:
    name: Value = dtype.value if dtype else None
    if not isinstance(name, str) or name not in PRECISIONS:
        return
    row = PRECISIONS[name]
    expected = {"fp8_param": False, "fp4_param": False} | row.transformer_config
    for field, meant in expected.items():
        found = container.value(f"model.{field}")
        if found is not None and found != meant and not (field.startswith("fp8_amax") and name != "fp8_ds"):
            yield f"model.{field} is {_text(found)} ({name} here has {_text(meant)})"
    reuse = container.value("ddp.reuse_grad_buf_for_mxfp8_param_ag")
    if reuse is not None and reuse != (name == "fp8_mx"):
        yield f"ddp.reuse_grad_buf_for_mxfp8_param_ag is {_text(reuse)} ({name} here has {_text(name == 'fp8_mx')})"
