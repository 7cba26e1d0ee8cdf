"""Builds command lines to paste: the same job with one change."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType
from typing import get_args

from harness.diagnose.allocator import own_settings
from harness.diagnose.values import Case
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import ALLOCATOR_NAMES
from harness.launch.environment_rows import ALLOCATOR, EXPANDABLE_SEGMENTS
from harness.resolve.recipe import FileKind, at_path
from harness.units import GIB

Settings = Mapping[str, object]
"""Values by path of the spec; ``recompute`` is a text."""
NO_GRAPHS: Settings = {"cuda_graph.impl": "none", "cuda_graph.scope": ()}
_SPELLED = {
    "cuda_graph.impl": "--cuda_graph_impl",
    "cuda_graph.scope": "--cuda_graph_scope",
    "offload.cpu_offloading_num_layers": "--activation_offload_layers",
}
_FLAGS = frozenset({"measure.memory_snapshot", "measure.snapshot_on_oom"})
_MEASURED = frozenset(
    f"measure.{name}" for name in ("max_steps", "skip_first_percent_time", "eval_time_start_step", "eval_time_end_step")
)
_JOB = ("--launcher", "slurm", "--time_limit", "MINUTES")  # the same command on all nodes has no such short form
_STDIN = "-"
_MOST_PATHS = 4  # a command with more paths is too long to paste
_SELECTING = ("point_gpu", "variant", "recipes_dir")
_FOREIGN = get_args(FileKind)
_HANDLED = frozenset(
    {"recipe", "family", "task", "gpu", "num_gpus", "compute_dtype", "recompute", *_SELECTING, *_FOREIGN}
)


def command(case: Case, verb: str, *more: str, change: Settings = MappingProxyType({})) -> str:
    """Return ``mbr-perf <verb>`` with the job's settings and ``change``; a job on several nodes; empty: no spec."""
    if case.spec is None:
        return ""
    spec = changed(case.spec, change)
    sources = dict(case.sources) | {path: _option(path) for path in change}
    if verb == "plan":
        sources = {path: source for path, source in sources.items() if path not in _MEASURED}
    words = ["mbr-perf", verb, *_job(spec, sources)]
    for name, values in _given(spec, sources).items():
        words += [word for value in values or [""] for word in (name, value) if word]
    words += ["--recompute", spec.recompute.text.removesuffix(":distributed")]
    if verb != "plan":
        words += [word for rule in case.forced for word in ("--force", rule)]
        words += _JOB if spec.num_nodes > 1 else ()
    return shlex.join([*words, *more])


def changed(spec: ExperimentSpec, change: Settings) -> ExperimentSpec:
    """Return the settings that `command` requests with the same change."""
    for path, value in change.items():
        section, _, name = path.partition(".")
        new = parse_recompute(str(value)) if not name else getattr(spec, section).model_copy(update={name: value})
        spec = spec.model_copy(update={section: new})
    return spec


def ask_again(case: Case) -> str:
    """Return the same command with capitals in place of the missing settings; empty for many logs or standard input."""
    can_be_named = 0 < len(case.paths) <= _MOST_PATHS and _STDIN not in case.paths
    return shlex.join(["mbr-perf", "diagnose", *case.paths, *case.asks]) if can_be_named and case.asks else ""


def allocator_line(case: Case, settings: str) -> str:
    """Return the command of a run of mbr-perf, whose recipe wins over the shell; for other jobs, an export."""
    spec = case.spec
    env = _allocator_env(case, spec, settings) if spec else {ALLOCATOR: settings}
    if spec is None or case.origin != "run" or case.has_given_settings:
        return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    sources = tuple((path, source) for path, source in case.sources if path.removeprefix("env.") not in env)
    options = (word for each in env.items() for word in ("-E", "=".join(each)))
    return command(replace(case, sources=sources), "run", *options)


def _allocator_env(case: Case, spec: ExperimentSpec, settings: str) -> dict[str, str]:
    own = own_settings(case)
    name = next((each for each in ALLOCATOR_NAMES if own and spec.env.get(each) == own), ALLOCATOR)
    needs = spec.cuda_graph.impl != "none" and EXPANDABLE_SEGMENTS in settings and "NCCL_GRAPH_REGISTER" not in spec.env
    return {name: settings} | ({"NCCL_GRAPH_REGISTER": "0"} if needs else {})


def _job(spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    words = [*_recipe(spec, sources), "--task", spec.task, "-g", spec.gpu, "-c", spec.compute_dtype]
    selecting = [word for name in _SELECTING if name in sources for word in sources[name].split(" ", 1)]
    return [*words, "-ng", str(spec.num_gpus), *selecting]


def _recipe(spec: ExperimentSpec, sources: Mapping[str, str]) -> list[str]:
    own = next((sources[kind] for kind in _FOREIGN if kind in sources), None)
    if own is not None:
        return own.split(" ", 1)
    file = sources.get("recipe", "").rpartition(":")[0]
    folder = PurePath(sources.get("recipes_dir", "recipes")).name
    is_named = file == f"{folder}/{spec.family}/{spec.recipe}.yaml"
    return ["-mr", file if file.endswith((".yaml", ".yml")) and not is_named else spec.recipe]


def _option(path: str) -> str:
    return _SPELLED.get(path, f"--{path.rpartition('.')[2]}")


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
        elif (value := _text(at_path(spec, path))) is not None:
            option = source.split()[0]
            if option == "--set":
                found.setdefault("--set", []).append(f"{path}={value}")
            elif path in _FLAGS:
                found |= {option: []} if value == "true" else {}
            elif option == _option(path):
                found[option] = [value]
    return found


def _text(value: object) -> str | None:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(each) for each in value) or None
    return str(value) if isinstance(value, (int, float, str)) else None
