"""Builds command lines to paste: the same job with one change."""

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, get_args

from harness.diagnose.values import Case
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.resolve.recipe import FileKind
from harness.units import GIB

ALLOCATOR_TRIAL = "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_SPELLED = {
    "cuda_graph.impl": "--cuda_graph_impl",
    "cuda_graph.scope": "--cuda_graph_scope",
    "offload.cpu_offloading_num_layers": "--activation_offload_layers",
}
_FLAGS = frozenset({"measure.memory_snapshot", "measure.snapshot_on_oom"})
_MEASURED = frozenset(
    f"measure.{name}" for name in ("max_steps", "skip_first_percent_time", "eval_time_start_step", "eval_time_end_step")
)
_GRAPHS = frozenset({"cuda_graph.impl", "cuda_graph.scope"})
_STDIN = "-"
_MOST_PATHS = 4  # a command with more paths is too long to paste
_SELECTING = ("point_gpu", "variant", "recipes_dir")
_FOREIGN = get_args(FileKind)
_HANDLED = frozenset(
    {"recipe", "family", "task", "gpu", "num_gpus", "compute_dtype", "recompute", *_SELECTING, *_FOREIGN}
)


def command(
    case: Case,
    verb: str,
    *more: str,
    recompute: str | None = None,
    graphs: str | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return ``mbr-perf <verb>`` with the settings of the job; ``recompute``, ``graphs``, ``sizes`` replace its own.

    Empty without a spec.
    """
    spec, sources = case.spec, dict(case.sources)
    if spec is None:
        return ""
    words = ["mbr-perf", verb, *_job(spec, sources)]
    own = {f"--{path.rpartition('.')[2]}": [str(size)] for path, size in sizes.items()}
    own |= {} if graphs is None else {"--cuda_graph_impl": [graphs]}
    given = _given(spec, _kept(sources, verb, has_graphs=graphs is None)) | own
    for name, values in given.items():
        words += [word for value in values or [""] for word in (name, value) if word]
    words += ["--recompute", recompute or spec.recompute.text.removesuffix(":distributed")]
    if verb == "run":
        words += [word for rule in case.forced for word in ("--force", rule)]
    return shlex.join([*words, *more])


def _kept(sources: Mapping[str, str], verb: str, *, has_graphs: bool) -> dict[str, str]:
    """Return the settings to repeat: a plan measures nothing, and has no window options."""
    left_out = (_MEASURED if verb == "plan" else frozenset()) | (frozenset() if has_graphs else _GRAPHS)
    return {path: source for path, source in sources.items() if path not in left_out}


def can_be_named(case: Case) -> bool:
    """Return whether a command can name the job's logs again."""
    return 0 < len(case.paths) <= _MOST_PATHS and _STDIN not in case.paths


def ask_again(case: Case) -> str:
    """Return the same command with capitals in place of the missing settings."""
    more = ("-c", "DTYPE", "-ng", "GPUS", "--recompute", "SETTING")
    asked = ("-g", case.asked_gpu or "GPU") if case.prints_settings else ("-mr", "RECIPE", "-g", "GPU", *more)
    tokens = ("--vocab_size", "N") if case.lacks_vocabulary else ()
    return shlex.join(["mbr-perf", "diagnose", *case.paths, *asked, *tokens])


def trial_command(case: Case) -> str:
    """Return the A/B that shows whether fragmentation was the cause."""
    if case.spec is None:
        return ""
    register = ("-E", "NCCL_GRAPH_REGISTER=0") if _must_unregister(case.spec) else ()
    return command(case, "run", *register, "--ab", ALLOCATOR_TRIAL)


def trial_specs(spec: ExperimentSpec) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Return the settings of A and B of that trial."""
    env = spec.env | ({"NCCL_GRAPH_REGISTER": "0"} if _must_unregister(spec) else {})
    values = ("", "expandable_segments:True")
    a, b = (spec.model_copy(update={"env": env | {"PYTORCH_CUDA_ALLOC_CONF": value}}) for value in values)
    return a, b


def changed(
    spec: ExperimentSpec,
    *,
    recompute: str | None = None,
    graphs: str | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> ExperimentSpec:
    """Return the settings that `command` requests with the same arguments."""
    update: dict[str, Any] = {}
    if recompute is not None:
        update["recompute"] = parse_recompute(recompute)
    if graphs is not None:
        update["cuda_graph"] = CudaGraphSpec.model_validate({"impl": graphs})
    for path, size in sizes.items():
        section, _, name = path.partition(".")
        update[section] = update.get(section, getattr(spec, section)).model_copy(update={name: size})
    return spec.model_copy(update=update)


def _must_unregister(spec: ExperimentSpec) -> bool:
    return spec.cuda_graph.impl != "none" and "NCCL_GRAPH_REGISTER" not in spec.env


def _job(spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    words = [*_recipe(spec, sources), "--task", spec.task, "-g", spec.gpu, "-c", spec.compute_dtype]
    selecting = [word for name in _SELECTING if name in sources for word in sources[name].split(" ", 1)]
    return [*words, "-ng", str(spec.num_gpus), *selecting]


def _recipe(spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    """Return the option that names the job's recipe or file; the recipe's path if it is outside the recipes folder."""
    own = next((sources[kind] for kind in _FOREIGN if kind in sources), None)
    if own is not None:
        return own.split(" ", 1)
    file = sources.get("recipe", "").rpartition(":")[0]
    folder = PurePath(sources.get("recipes_dir", "recipes")).name
    is_named = file == f"{folder}/{spec.family}/{spec.recipe}.yaml"
    return ["-mr", file if file.endswith((".yaml", ".yml")) and not is_named else spec.recipe]


def _given(spec: ExperimentSpec, sources: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        if path in _HANDLED or not source.startswith("--"):
            continue
        if path.startswith("env."):
            name = path.removeprefix("env.")
            found.setdefault("-E", []).append(f"{name}={spec.env.get(name, '')}")
        elif path == "measure.memory_limit_bytes" and spec.measure.memory_limit_bytes is not None:
            found["--memory_limit"] = [f"{spec.measure.memory_limit_bytes / GIB:.6g}"]
        elif (value := _text(_at(spec, path))) is not None:
            option = source.split()[0]
            if option == "--set":
                found.setdefault("--set", []).append(f"{path}={value}")
            elif path in _FLAGS:
                found |= {option: []} if value == "true" else {}
            elif option == _SPELLED.get(path, f"--{path.rpartition('.')[2]}"):
                found[option] = [value]
    return found


def _at(spec: ExperimentSpec, path: str) -> object:
    value: object = spec
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _text(value: object) -> str | None:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(each) for each in value) or None
    return str(value) if isinstance(value, (int, float, str)) else None
