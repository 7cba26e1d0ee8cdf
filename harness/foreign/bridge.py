"""Reads a job from a Megatron-Bridge `ConfigContainer` file: each field is a setting, harmless, or refused."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.gpu import PRECISIONS
from harness.foreign.settings import rows_of, settings_in
from harness.foreign.words import Given, Words, judge, text_of, unread
from harness.records.reading import Document, PlainValue
from harness.records.refusing import Keys
from harness.records.strict_yaml import read_yaml, table_in
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, build_spec, merge

_ROOT = "megatron.bridge.training.config.ConfigContainer"
_SETTINGS = ("_target_", "_builder_")  # name the classes that Bridge instantiates; they are not settings
_NESTED = "model.transformer"
_GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_MEMBERS = {  # in the order of their numbers from 1 on: version 0.3 writes only the number
    "AttnBackend": ("flash", "fused", "unfused", "local", "auto"),
    "CudaGraphScope": ("full_iteration", *_GRAPHED),
    "CudaGraphModule": _GRAPHED,
    "LayerType": ("embedding", "loss", "encoder", "decoder", "mtp"),
}


@dataclass
class Container(Words):
    """A `ConfigContainer` file. Settings of `model.transformer`, of newer model classes, count as those of `model`."""

    file: Document = field(kw_only=True)

    def __post_init__(self) -> None:
        root = self.file.at(())
        for section in root if isinstance(root, dict) else ():
            if section not in _SETTINGS:
                self._take(section, (section,))

    def _take(self, path: str, keys: Keys) -> None:
        value, line = self._plain(keys), self.file.line(keys)
        known = self.given if len(keys) == (3 if keys[:2] == ("model", "transformer") else 2) else self.around
        if path == _NESTED and isinstance(value, dict):
            path, known = "model", {}
        elif len(keys) > 1 and path in known and known[path].value != value:
            other = known[path].source.removeprefix(f"{self.label}:").partition(":")[0]
            message = f"{path} is {text_of(value)}, but line {other} sets {text_of(known[path].value)}"
            self.problems.add(f"{self.label}:{line}: {message}", "keep one of them")
        if path not in known or known[path].value is None:
            known[path] = Given(value, f"{self.label}:{line}: {path}")
        table = self.file.at(keys)
        for key in table if isinstance(value, dict) and isinstance(table, dict) else ():
            if not key.startswith("_"):
                self._take(f"{path}.{key}", (*keys, key))

    @property
    def plain(self) -> PlainValue:
        return self._plain(())

    def target(self, section: str) -> str:
        """Return the class that Bridge instantiates for a section; empty if the file names none."""
        found = self.file.at((section, "_target_"))
        return found if isinstance(found, str) else ""

    def _plain(self, keys: Keys) -> PlainValue:
        value = self.file.at(keys)
        if isinstance(value, tuple):
            return tuple(self._plain((*keys, place)) for place in range(len(value)))
        if not isinstance(value, dict):
            return value
        if "_call_" in value or "_partial_" in value:
            return self._named(value)
        return {key: self._plain((*keys, key)) for key in value if key not in _SETTINGS}

    def _named(self, value: dict[str, PlainValue]) -> str:
        is_enum = value.get("_call_") is True and "_name_" in value
        named = str(value.get("_name_" if is_enum else "_target_"))
        return named if is_enum else _member(named, value.get("_args_"))


def flat(path: str) -> str:
    """Return a path without the nesting of newer model classes: `model.X` of `model.transformer.X`."""
    return path.replace(f"{_NESTED}.", "model.", 1)


def read_container(path: Path, label: str) -> Container:
    """Read the container in a file. BadRequestError with ``file:line`` for other content."""
    file = read_yaml(path, label, by_pyyaml=True)
    if file.at(("_target_",)) != _ROOT:
        raise BadRequestError(
            f"{file.label}: not a ConfigContainer of Megatron-Bridge: _target_ is not {_ROOT}",
            remedy="give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run",
        )
    return Container(file.label, file=file)


def _member(target: str, numbers: PlainValue) -> str:
    known = dict(enumerate(_MEMBERS.get(target.rpartition(".")[2], ()), 1))
    number = numbers[0] if isinstance(numbers, tuple) and numbers else None
    return known.get(number, target) if isinstance(number, int) else target


_TABLE = table_in(Path(__file__).with_name("container_known.yaml"))
SECTIONS: Mapping[str, str] = _TABLE["sections"]
"""Sections that may have any further field, and why."""

KNOWN = {
    name: rows for section, groups in _TABLE["fields"].items() for name, rows in unread(groups, f"{section}.").items()
}
"""By path, what becomes of the fields that no row of settings.yaml reads."""

_UNKNOWN = "mbr-perf knows no such field of Megatron-Bridge 0.3 to 0.7"
_PARTS = ("model", "train", "optimizer", "ddp")
_BRIDGE = "megatron.bridge.models."
_ADAPTERS = "megatron.bridge.peft.lora.LoRA"


_NAMES = {name: Setting("job", "") for name in ("recipe", "family")} | {
    "gpu": Setting("h100", ""), "gpus_per_node": Setting(8, ""), "num_gpus": Setting(1, ""),
}  # fmt: skip


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the file, with one note. BadRequestError with every field without a counterpart."""
    container = read_container(Path(source.path), source.label)
    container.settled = request.settled
    problems = container.problems
    _require_model(container)
    if _refuse_unfinished(container):  # its other values are not yet those of the job
        problems.raise_if_any()
    is_whole = _refuse_missing(container)
    layer = settings_in(container, rows_of("bridge"))
    remarks = judge(container, KNOWN, _UNKNOWN, sections=SECTIONS, also=_precision_remarks(container, layer))
    if problems.found and layer and is_whole:
        with problems.collecting():  # values of a wrong type, together with the other problems
            build_spec(merge(_NAMES, layer), container.label)
    problems.raise_if_any()
    tunes = re.search("SFT|Finetuning|HFDataset", container.target("dataset"))
    task = "peft" if container.value("peft") else "sft" if tunes else "pretrain"
    note = f"{container.label}: {remarks}" if remarks else ""
    return layer | {
        "task": Setting(task, f"{container.label}: dataset"),
        "family": Setting("bridge", source.label, note=note),
    }


def _require_model(container: Container) -> None:
    place, name = container.place("model"), container.target("model")
    module = name.rpartition(".")[0].removeprefix(_BRIDGE)
    if name and (module not in _TABLE["models"].split() or "Llama4" in name):
        found = (why for pattern, why in _TABLE["other_models"].items() if re.search(pattern, name, re.IGNORECASE))
        message = f"{place}: mbr-perf cannot train {name}: the model {next(found, 'is unknown')}"
        raise BadRequestError(message, remedy="give a GPT model of language only, dense or with experts")
    if container.value("peft") is not None and container.target("peft") != _ADAPTERS:
        kind = container.target("peft").rpartition(".")[2] or "an adapter"
        raise BadRequestError(
            f"{container.place('peft')}: mbr-perf cannot train adapters of this kind ({kind})",
            remedy="give a job with LoRA, or one that trains all weights",
        )


_COMPLETED = ("scheduler.lr_decay_steps", "comm_overlap.data_parallel_size")
"""Fields that Megatron-Bridge computes before it trains."""


def _refuse_unfinished(container: Container) -> bool:
    places = [path for path in _COMPLETED if container.has(path) and container.peek(path) is None]
    places += ["mixed_precision"] if isinstance(container.peek("mixed_precision"), str) else []
    if places:
        message = "Megatron-Bridge has not completed this file: settings may not be those of the job"
        remedy = "give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run"
        container.refuse(places[0], message, remedy)
    return bool(places)


def _refuse_missing(container: Container) -> bool:
    names = [part for part in _PARTS if not container.has(part)]
    if "model" not in names:
        names += [f"model.{name}" for name in _TABLE["needed"].split() if container.peek(f"model.{name}") is None]
    for name in names:
        container.refuse(name, "missing", "give the whole file that Megatron-Bridge wrote")
    return not names


def _precision_remarks(container: Container, layer: Layer) -> Iterator[str]:
    name = layer["compute_dtype"].value if "compute_dtype" in layer else None
    if not isinstance(name, str) or name not in PRECISIONS:
        return
    row = PRECISIONS[name].transformer_config
    fields = {f"model.{field}": meant for field, meant in ({"fp8_param": False, "fp4_param": False} | row).items()}
    for path, meant in (fields | {"ddp.reuse_grad_buf_for_mxfp8_param_ag": name == "fp8_mx"}).items():
        found = container.peek(path)
        if found is not None and found != meant and not ("fp8_amax" in path and name != "fp8_ds"):
            yield f"{path} is {text_of(found)} ({name} here has {text_of(meant)})"
