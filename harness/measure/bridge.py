"""Resolves a request that Megatron-Bridge's own loop trains: version, configuration, and what options replace."""

import hashlib
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.errors import BadRequestError, os_errors_reported
from harness.experiment.experiment import NOT_DESCRIBED, BridgeEngine
from harness.foreign.bridge_engine import replaced_settings
from harness.launch.environment import LATE, LATE_REMEDY, Host, output_of
from harness.launch.required import bridge_version
from harness.predict.tracer import cache_folder
from harness.records.launch import BRIDGE_CONFIG, PARENT_PID_VARIABLE
from harness.records.store import write_atomically
from harness.resolve.points import choose_point
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import Resolved, recipe_of, resolve
from harness.resolve.sweep_file import laid_over

_TIMEOUT_S = 600.0  # its imports take up to a minute; a recipe may fetch a config.json from Hugging Face
_FUNCTION = re.compile(r"[\w.:]+_config\b")
_GPUS_IN_NAME = re.compile(r"_(\d+)gpus?_")


def resolve_for_bridge(asked: Request, host: Host) -> Resolved:
    """Resolve the request. BadRequestError if Bridge is not installed, or if the request is wrong."""
    version = bridge_version(host)
    resolved = resolve(_with_config_file(asked, version, host))
    engine = resolved.spec.engine
    assert engine is not None  # the file was read for Bridge's own loop
    update = {"version": version, "overrides": replaced_settings(resolved.spec, resolved.sources)}
    spec = resolved.spec.model_copy(update={"engine": engine.model_copy(update=update)})
    if spec.is_described:
        return replace(resolved, spec=spec)
    note = f"{NOT_DESCRIBED}, so nothing is predicted, and TFLOP/s and MFU are not derived: {'; '.join(engine.unsaid)}"
    return replace(resolved, spec=spec, notes=(*resolved.notes, note))


def _with_config_file(asked: Request, version: str, host: Host) -> Request:
    """Return the request with the file that Bridge writes for its recipe function, if it has one."""
    asked = asked if asked.source else _for_function_of_point(asked)
    source = asked.source
    if source is None or source.kind != "bridge_recipe":
        return asked
    in_name = _GPUS_IN_NAME.search(source.path)
    num_gpus = asked.num_gpus or (int(in_name[1]) if in_name else None)
    if num_gpus is None:
        message = f"--bridge_recipe {source.path}: the name does not say how many GPUs the job has"
        raise BadRequestError(message, remedy="add -ng")
    folder = cache_folder(host.shell) / "bridge" / f"{version}-{num_gpus}gpu"
    path = folder / f"{source.path.rpartition(':')[2].rpartition('.')[2]}.yaml"
    _write_config(source.path, num_gpus, path, host.python, tuple(sorted(host.shell.items())))
    return replace(asked, source=ForeignSource("bridge_config", str(path)))


def _for_function_of_point(asked: Request) -> Request:
    """Return the request for the recipe function that its point is from. BadRequestError if it is from none."""
    choice = choose_point(recipe_of(asked), asked)
    found = _FUNCTION.search(choice.point.key.source)
    if found is None:
        message = f"--engine bridge: {choice.point.place} is from no recipe function of Megatron-Bridge"
        raise BadRequestError(message, remedy="name one with --bridge_recipe, or choose another point")
    env = [(name, setting.value) for name, setting in choice.point.layer.items() if name.startswith("env.")]
    of_point = tuple(f"{name.removeprefix('env.')}={value}" for name, value in env if value is not None)
    function = ForeignSource("bridge_recipe", found[0])
    given = replace(asked, model_recipe_name="", model_family_name=None, recipes_dir=None, variant=None, point_gpu=None)
    num_gpus = asked.num_gpus or choice.point.key.num_gpus
    given = replace(given, source=function, num_gpus=num_gpus, task=None, compute_dtype=None)
    return laid_over(Request(model_recipe_name="", gpu=asked.gpu, env=of_point), given)


@cache  # the cells of a sweep ask for the same configuration
def _write_config(function: str, num_gpus: int, path: Path, python: str, shell: tuple[tuple[str, str], ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = (python, "-m", "harness.engine.bridge_recipe", function, str(num_gpus), str(path))
    env = {**dict(shell), PARENT_PID_VARIABLE: str(os.getpid())}
    if why := output_of(command, _TIMEOUT_S, env)[1]:
        network = "a recipe that fetches from Hugging Face needs the network, or HF_HUB_OFFLINE=1 with a cache"
        name = "correct the name, or give the file of `run_script.py --dryrun` with --bridge_config"
        raise BadRequestError(
            f"--bridge_recipe {function}: Megatron-Bridge did not build the configuration: {why}",
            remedy=f"{LATE_REMEDY if why.startswith(LATE) else name}; {network}",
        )


def keep_config(engine: BridgeEngine, run_dir: Path) -> None:
    """Copy the configuration into the run folder. BadRequestError if it changed since the run was planned."""
    with os_errors_reported(f"{engine.config}: cannot be read", "put the file back, or plan again"):
        text = Path(engine.config).read_bytes()
    if hashlib.sha256(text).hexdigest() != engine.config_sha256:
        remedy = "start again with the new file, or put the old one back"
        raise BadRequestError(f"{engine.config}: has changed since the run was planned", remedy=remedy)
    write_atomically(run_dir / BRIDGE_CONFIG, text.decode())
