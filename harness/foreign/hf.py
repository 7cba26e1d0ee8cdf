"""Reads a `config.json` with the choices of Megatron-Bridge @067f987; defaults of transformers 5.23.0."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import BadRequestError
from harness.experiment.gpu import GPUS
from harness.foreign import hf_fields
from harness.foreign.hf_fields import HfConfig, read_config
from harness.foreign.settings import rows_of_keys, settings_in
from harness.foreign.words import Given, judge, unread
from harness.records.strict_yaml import table_in
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, Value
from harness.units import shortened

_TABLE = table_in(Path(__file__).with_name("hf_architectures.yaml"))
_KNOWN = unread(_TABLE["known"])
_UNKNOWN = "mbr-perf does not know the effect of this key"

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    name: {"config_class": f"{name.removesuffix('ForCausalLM')}Config", "readers": "core heads rope"} | row
    for name, row in _TABLE["architectures"].items()
}
"""The model classes that mbr-perf can train, as `architectures` of a file names them; the table describes its keys."""

_MISSING: Mapping[str, str] = _TABLE["missing"]
_MODALITIES = ("vision_config", "audio_config", "thinker_config")


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the model and of a usual step, which notes name. BadRequestError with all problems."""
    config = read_config(Path(source.path), source.label)
    row = _architecture(config)
    config.class_name, config.keys = row["config_class"], row["defaults"]
    config.absent = f"{{label}}: {{name}} (absent: default of {config.class_name})"
    for own, common in row.get("renamed", {}).items():
        if own in config.given:
            config.given[common] = _of_every_layer(config.given.pop(own))
    config.defaults = {key: each for key, each in config.keys.items() if not config.has(key)}
    config.read.update(row.get("unread", "").split())
    model: dict[str, Setting] = {}
    for reader in row["readers"].split():
        model |= settings_in(config, rows_of_keys(reader), hf_fields)
        model |= getattr(hf_fields, reader, lambda _: {})(config)
    how = f"{config.label}: architectures"
    model |= {path: Setting(value, how) for path, value in row.get("chosen", {}).items()}
    if notes := "; ".join(f"{config.label}: {text}" for text in (config.part, row.get("note")) if text):
        model["model.layernorm_epsilon"] = replace(model["model.layernorm_epsilon"], note=notes)
    _refuse_other_storage(config)
    step = _usual_step(config, model, request)
    judge(config, {key: rows for key, rows in _KNOWN.items() if rows[0].values is None or key in config.read}, _UNKNOWN)
    config.problems.raise_if_any()
    return {**model, **step}


def _of_every_layer(given: Given) -> Given:
    values = given.value if isinstance(given.value, tuple) else ()
    return Given(values[0], given.source) if values and values.count(values[0]) == len(values) else given


def _architecture(config: HfConfig) -> Mapping[str, Any]:
    inner = next((key for key in _MODALITIES if config.peek(key)), None)
    names, kind = hf_fields.items(config, "architectures") or (), hf_fields.text(config, "model_type")
    if not set(names) & ARCHITECTURES.keys() or kind == "kimi_k2":  # whose files name DeepSeek-V3's class
        names = tuple(name for name, row in ARCHITECTURES.items() if row["defaults"]["model_type"] == kind)[:1] or names
    known = [ARCHITECTURES[name] for name in map(str, names) if name in ARCHITECTURES]
    if len(known) == 1 and not inner:
        return known[0]
    config.problems.raise_if_any()
    if inner:
        raise BadRequestError(
            f"{config.label}: {inner}: mbr-perf does not train models of several modalities",
            remedy="to plan its language model alone, save that part as a separate config.json",
        )
    raise _untrained(config.label, [*map(str, names or (kind,))])


def _untrained(label: str, names: Sequence[str]) -> BadRequestError:
    name = names[0].replace("_", "").lower()  # a class, or a model_type such as gemma3_text
    lacks = next((part for part, starts in _MISSING.items() if name.startswith(tuple(starts.lower().split()))), "")
    needs = f", which needs {lacks}" * bool(lacks)
    return BadRequestError(
        f"{label}: architectures: mbr-perf cannot train {shortened(', '.join(names))}{needs}",
        remedy=f"known: {', '.join(ARCHITECTURES)}; or describe the model in a recipe",
    )


def _refuse_other_storage(config: HfConfig) -> None:
    stored = hf_fields.table(config, "quantization_config")
    method = hf_fields.text(config, "quantization_config.quant_method")
    if stored and method != config.keys.get("stored_as"):
        config.refuse(
            "quantization_config",
            f"{method or 'no quant_method'}: mbr-perf does not train quantised weights",
            "delete the key from a copy of the file, and choose the precision with -c",
        )


_USUAL_LENGTH = 4096
_FEWEST_SAMPLES = 128


def _usual_step(config: HfConfig, model: Layer, request: Request) -> Layer:
    def usual(value: Value, what: str, option: str) -> Setting:
        return Setting(value, "usual for --hf", note=what, option=option)

    copies, row = request.num_gpus or 1, GPUS[request.gpu]
    samples = -(-_FEWEST_SAMPLES // copies) * copies * (request.micro_batch_size or 1)
    length = min(_USUAL_LENGTH, max(hf_fields.whole(config, "max_position_embeddings") or _USUAL_LENGTH, 2))
    precision, on_gpu = row.default_compute_dtype, not row.is_cpu
    chosen: dict[str, Value] = {"ddp.overlap_grad_reduce": on_gpu, "ddp.overlap_param_gather": on_gpu}
    chosen |= {} if on_gpu else {"kernels.gradient_accumulation_fusion": False}
    if "model.moe.num_moe_experts" in model:
        chosen |= {"model.moe.moe_grouped_gemm": on_gpu, "kernels.moe_permute_fusion": on_gpu}
        chosen |= {"parallelism.expert_tensor_parallel_size": 1}
    return {
        "compute_dtype": usual(precision, precision, "-c"),
        "batch.micro_batch_size": usual(1, "micro 1", "-mb"),
        "batch.global_batch_size": usual(samples, f"global {samples}", "-gb"),
        "batch.seq_length": usual(length, f"{length} tokens", "-sl"),
    } | {path: Setting(value, "usual for --hf") for path, value in chosen.items()}
