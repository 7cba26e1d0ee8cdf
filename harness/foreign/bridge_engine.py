"""Reads a `ConfigContainer` file for Megatron-Bridge's own loop, with what options replace."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import BridgeEngine, EngineSetting, ExperimentSpec
from harness.experiment.recompute import base_of_plan, megatron_fields
from harness.foreign.bridge import Container, flat, read, read_container
from harness.foreign.settings import rows_of, settings_in
from harness.records.reading import PlainValue
from harness.resolve.recipe import IDENTITY, SECTION_MODELS, ForeignSource, Layer, Request, Setting, at_path, nested
from harness.units import walked

GPT_STEP = "megatron.bridge.training.gpt_step:forward_step"
_STEPS = (  # by a part of the name of the model's module, as in Bridge's own launcher
    ("qwen3_vl", "megatron.bridge.models.qwen_vl.qwen3_vl_step:forward_step"),
    ("_vl", "megatron.bridge.training.vlm_step:forward_step"),
    ("llava", "megatron.bridge.training.llava_step:forward_step"),
)
_NO_RESULT = ("logger.", "checkpoint.", "profiling.", "model.recompute_", "train.train_iters", "_target_")
_MISSING = "missing"  # pydantic's type of the error


def read_for_bridge(source: ForeignSource, request: Request) -> Layer:
    """Return the settings that a spec can hold, and the engine, with the others. BadRequestError: no container."""
    container = read_container(Path(source.path), source.label)
    if container.peek("train.train_samples"):
        raise BadRequestError(
            f"{container.place('train.train_samples')}: the training is counted in samples, but mbr-perf counts steps",
            remedy="set train.train_iters instead",
        )
    problems, layer = Problems(), dict[str, Setting]()
    with problems.collecting():
        layer |= read(source, request)
    fitting, unfit = _fitting(layer or settings_in(container, rows_of("bridge")), source.label)
    engine = BridgeEngine(
        version="",
        forward_step=request.forward_step or _forward_step(container),
        rest=_digest(container, fitting),
        config=str(Path(source.path).absolute()),
        config_sha256=hashlib.sha256(Path(source.path).read_bytes()).hexdigest(),
        unsaid=tuple(dict.fromkeys((*(problem.message for problem in problems.found), *unfit))),
    )
    return {**fitting, "engine": Setting(engine, "--engine")}


def _fitting(layer: Layer, label: str) -> tuple[Layer, list[str]]:
    """Leave out values that a spec cannot hold, and set absent sizes of the model to 1. Return what changed, too."""
    known: dict[str, PlainValue] = {"recipe": "any", "family": "any", "gpu": "h100", "num_gpus": 1, "gpus_per_node": 1}
    kept, unfit = dict(layer), list[str]()
    while True:
        usual = {name: Setting(value, "default") for name, value in {**known, "compute_dtype": "bf16"}.items()}
        try:
            ExperimentSpec.model_validate(nested({**usual, **kept}))
        except ValidationError as error:
            before = dict(kept)
            for fault in error.errors():
                path = ".".join(map(str, fault["loc"]))
                _repair(kept, path, is_missing=fault["type"] == _MISSING, unfit=unfit, message=fault["msg"])
            if kept == before:
                raise BadRequestError(f"{label}: {error.errors()[0]['msg']}", remedy="complete the file") from error
        else:
            return kept, unfit


def _repair(kept: dict[str, Setting], path: str, *, is_missing: bool, unfit: list[str], message: str) -> None:
    leaf = next((name for name in kept if path == name or path.startswith(f"{name}.")), None)
    section = path.rpartition(".")[0]
    if leaf is not None:
        unfit.append(f"{kept[leaf].source}: {message}")
        del kept[leaf]
    elif is_missing and section == "model":
        unfit.append(f"{path} is not in the file")
        kept[path] = Setting(1, "default")
    elif (prefix := path if path in SECTION_MODELS else section) not in ("", "model", "batch"):
        unfit.append(f"{path}: {message}")
        for name in [name for name in kept if name.startswith(f"{prefix}.")]:
            del kept[name]


def _forward_step(container: Container) -> str:
    module = container.target("model").rpartition(".")[0]
    if "diffusion" in module:
        remedy = "name it, e.g. --forward_step megatron.bridge.diffusion.models.wan.wan_step:WanForwardStep"
        raise BadRequestError(
            f"{container.place('model')}: the forward step of a diffusion model depends on it", remedy=remedy
        )
    return next((step for part, step in _STEPS if part in module), GPT_STEP)


def _digest(container: Container, layer: Layer) -> str:
    read_from = {setting.source.rpartition(": ")[2] for setting in layer.values()}
    every = ((flat(path), value) for path, value in walked(container.plain))
    rest = {path: value for path, value in every if path not in read_from and not path.startswith(_NO_RESULT)}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


_ALSO = {"batch.seq_length": ("model.seq_length", "dataset.seq_length")}
_OF_LAUNCH = (*IDENTITY, "bridge_config", "bridge_recipe", "forward_step")


def replaced_settings(spec: ExperimentSpec, sources: Mapping[str, str]) -> dict[str, EngineSetting]:
    """Return, by path in the container, what options replace. BadRequestError with every option that cannot."""
    rows = {
        row.path: row.names
        for row in rows_of("bridge")
        if row.conversion == "as_written" or row.path == "cuda_graph.impl"
    }
    found: dict[str, EngineSetting] = {}
    problems = Problems()
    for path in (path for path, source in sources.items() if source.startswith("-")):
        if path == "recompute":
            found |= {
                f"model.{name}": value for name, value in dict(megatron_fields(base_of_plan(spec.recompute))).items()
            }
        elif path in rows:
            value = at_path(spec, path)
            assert value is None or isinstance(value, bool | int | float | str | tuple)
            found |= dict.fromkeys(_ALSO.get(path, rows[path][:1]), value)
        elif path == "compute_dtype":
            problems.add(f"{sources[path]}: Megatron-Bridge takes its precision from the file", "set it in the file")
        elif path not in _OF_LAUNCH and not path.startswith(("measure.", "env.")):
            remedy = "set it in the file, or leave it out"
            problems.add(f"{sources[path]}: mbr-perf cannot set {path} for Megatron-Bridge's own loop", remedy)
    problems.raise_if_any()
    return found
