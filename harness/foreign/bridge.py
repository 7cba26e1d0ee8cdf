"""Reads a job from a Megatron-Bridge `ConfigContainer` file: each field is a setting, harmless, or refused."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.gpu import PRECISIONS
from harness.foreign.container_file import Container, read_container
from harness.foreign.settings import rows_of, settings_in
from harness.foreign.words import judge, text_of, unread
from harness.records.strict_yaml import table_in
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, build_spec, merge

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
    """Return every setting of the file, with one note about fields that no prediction includes.

    BadRequestError with every field that has no counterpart here, or for a file that Megatron-Bridge has not completed.
    """
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
        raise BadRequestError(message, remedy="give a GPT model, dense or with experts")
    if container.value("peft") is not None and container.target("peft") != _ADAPTERS:
        kind = container.target("peft").rpartition(".")[2] or "an adapter"
        raise BadRequestError(
            f"{container.place('peft')}: mbr-perf cannot train adapters of this kind ({kind})",
            remedy="give a job with LoRA, or one that trains all weights",
        )


_COMPLETED = ("scheduler.lr_decay_steps", "comm_overlap.data_parallel_size")
"""Fields that Megatron-Bridge computes before it trains."""


def _refuse_unfinished(container: Container) -> bool:
    """Refuse a file that Megatron-Bridge has not completed; return whether it is one."""
    places = [path for path in _COMPLETED if container.has(path) and container.peek(path) is None]
    places += ["mixed_precision"] if isinstance(container.peek("mixed_precision"), str) else []
    if places:
        message = "Megatron-Bridge has not completed this file: settings may not be those of the job"
        remedy = "give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run"
        container.refuse(places[0], message, remedy)
    return bool(places)


def _refuse_missing(container: Container) -> bool:
    """Refuse every section and size that is missing; return whether none is."""
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
