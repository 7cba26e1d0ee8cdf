"""Opens a file of another program as a recipe with one operating point."""

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.gpu import GPUS
from harness.experiment.model import MOST
from harness.experiment.rules.rule import Launcher
from harness.foreign import bridge, hf, megatron_args
from harness.foreign.bridge_engine import read_for_bridge
from harness.records.strict_yaml import table_in
from harness.resolve.points import check_names
from harness.resolve.recipe import (
    FileKind,
    ForeignSource,
    Layer,
    OperatingPoint,
    PointKey,
    Recipe,
    RecipeHeader,
    Request,
    Setting,
    merge,
)

Reader = Callable[[ForeignSource, Request], Layer]

READERS: Mapping[FileKind, Reader] = {"bridge_config": bridge.read, "hf": hf.read, "megatron_args": megatron_args.read}
"""By option, the reader of its file. It returns every setting that the file makes, and raises with all problems."""

_FAMILIES: Mapping[FileKind, str] = {"bridge_config": "bridge", "hf": "hf", "megatron_args": "megatron"}


def open_foreign(source: ForeignSource, request: Request) -> Recipe:
    """Read a file as a recipe with one point, which the request completes. BadRequestError with all problems."""
    check_names(request)
    kind: FileKind = "bridge_config" if source.kind == "bridge_recipe" else source.kind
    layer = (read_for_bridge if request.trains_by_bridge else READERS[kind])(source, request)
    num_gpus = layer["num_gpus"].value if "num_gpus" in layer else request.num_gpus
    if num_gpus is None:
        raise BadRequestError(f"{source.label}: does not say how many GPUs the job has", remedy="add -ng")
    if not isinstance(num_gpus, int) or not 1 <= num_gpus <= MOST["gpus"]:
        where = layer["num_gpus"].source if "num_gpus" in layer else "--num_gpus"
        raise BadRequestError(f"{where}: the sizes give {num_gpus} GPUs", remedy=f"use 1 to {MOST['gpus']} GPUs")
    layer, left_out = _on_cpu(layer) if request.gpu == "cpu" and not request.trains_by_bridge else (layer, None)
    header = RecipeHeader(name=source.name, family=_FAMILIES[kind], title=source.label, sources=(source.label,))
    usual = Setting(GPUS[request.gpu].default_compute_dtype, "default")
    own = {
        "task": layer.get("task", Setting("pretrain", "default")),
        "compute_dtype": layer.get("compute_dtype", usual),
        "num_gpus": layer.get("num_gpus", Setting(num_gpus, "--num_gpus")),
        "gpus_per_node": Setting(GPUS[request.gpu].gpus_per_node, "default"),
        "gpu": Setting(request.gpu, "--gpu"),
        "recipe": Setting(header.name, source.label),
        "family": layer.get("family", Setting(header.family, "default")),
    }
    key = PointKey.model_validate(
        {
            "task": request.task or own["task"].value,
            "gpu": request.gpu,
            "compute_dtype": request.compute_dtype or own["compute_dtype"].value,
            "num_gpus": num_gpus,
            "source": source.label,
            "note": left_out,
        }
    )
    return Recipe(header, Path(source.path), source.label, (OperatingPoint(key, merge(layer, own), source.label),))


def launcher_of(source: ForeignSource) -> Launcher | None:
    """Return what starts a job whose file holds its environment; None for other files."""
    if source.kind == "megatron_args":
        return "megatron-lm" if megatron_args.read_arguments(source).is_started else None
    return None if source.kind == "hf" else "bridge"


_OFF = (False, 0, (), "none", "auto")
_LEFT_OUT = tuple(table_in(Path(__file__).with_name("settings.yaml"))["of_a_gpu"].split())


def _on_cpu(layer: Layer) -> tuple[Layer, str | None]:
    kept = {path: setting for path, setting in layer.items() if not path.startswith(_LEFT_OUT)}
    gone = [p for p, s in layer.items() if p not in kept and s.value not in _OFF and p != "cuda_graph.warmup_steps"]
    return kept, f"without what needs a GPU: {', '.join(gone)}" if gone else None
