"""Command lines to paste: the job again, with one thing changed."""

import shlex
from collections.abc import Mapping

from harness.analysis.diagnosis.values import Case
from harness.spec.experiment import ExperimentSpec
from harness.spec.recompute import FullRecompute
from harness.units import GIB

ALLOCATOR_TRIAL = "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_SPELLED = {
    "cuda_graph.impl": "--cuda_graph_impl",
    "cuda_graph.scope": "--cuda_graph_scope",
    "offload.cpu_offloading_num_layers": "--activation_offload_layers",
}
_HANDLED = frozenset({"recipe", "family", "task", "gpu", "num_gpus", "compute_dtype", "recompute"})


def command(case: Case, verb: str, *more: str, recompute: str | None = None, graphs: str | None = None) -> str:
    """``mbr-perf <verb>`` with the settings of the job; ``recompute`` and ``graphs`` replace its own. "" without a spec."""
    spec, sources = case.spec, dict(case.sources)
    if spec is None:
        return ""
    words = [
        "mbr-perf",
        verb,
        "-mr",
        _recipe(spec, sources),
        "--task",
        spec.task,
        "-g",
        spec.gpu,
        "-c",
        spec.compute_dtype,
    ]
    words += ["-ng", str(spec.num_gpus)]
    given = _given(spec, sources)
    if graphs is not None:
        given = {name: value for name, value in given.items() if not name.startswith("--cuda_graph")}
        given["--cuda_graph_impl"] = [graphs]
    for name, values in given.items():
        words += [word for value in values for word in (name, value)]
    words += ["--recompute", recompute if recompute is not None else _recompute(spec)]
    return shlex.join([*words, *more])


def trial_command(case: Case) -> str:
    """The A/B that shows whether fragmentation was the cause."""
    spec = case.spec
    if spec is None:
        return ""
    register = (
        ("-E", "NCCL_GRAPH_REGISTER=0")
        if spec.cuda_graph.impl != "none" and "NCCL_GRAPH_REGISTER" not in spec.env
        else ()
    )
    return command(case, "run", *register, "--ab", ALLOCATOR_TRIAL)


def _recompute(spec: ExperimentSpec) -> str:
    text = spec.recompute.text
    return text.removesuffix(":distributed") if isinstance(spec.recompute, FullRecompute) else text


def _recipe(spec: ExperimentSpec, sources: Mapping[str, str]) -> str:
    """The name of a shipped recipe, the path of another."""
    file = sources.get("recipe", "").rpartition(":")[0]
    return file if file.endswith((".yaml", ".yml")) and not file.startswith("recipes/") else spec.recipe


def _given(spec: ExperimentSpec, sources: Mapping[str, str]) -> dict[str, list[str]]:
    """What came from the command line, or was varied, as options with their values."""
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
