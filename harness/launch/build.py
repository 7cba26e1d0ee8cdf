"""Another Python environment for the ranks, in place of the one that runs mbr-perf."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import harness
from harness.errors import BadRequestError, NoOldBuildError
from harness.experiment.software import Software
from harness.launch.environment import LATE, LATE_REMEDY, Host, output_of
from harness.launch.machine import TRAINING
from harness.records.batches import Build
from harness.records.folders import checkout_dir

_PROBE = (
    "import json, sys, harness; from harness.launch.machine import installed_software as found; "
    "print(json.dumps([sys.prefix, harness.__version__, found().model_dump()]))"
)
_PATIENCE_S = 120.0  # a cold environment on a shared file system


def host_with(host: Host, build: Build | None) -> Host:
    """Return the machine with the interpreter and the import path of ``build``; ``host`` itself without one."""
    if build is None:
        return host
    paths = [path for path in (build.path, host.shell.get("PYTHONPATH", "")) if path]
    shell = MappingProxyType({**host.shell, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})})
    return replace(host, python=build.python, shell=shell)


def find_build(option: str, text: str, host: Host) -> Build:
    """Return the environment of an interpreter or folder. BadRequestError; NoOldBuildError for mbr-perf's own."""
    named = Path(text).expanduser().absolute()
    python = named / "bin" / "python" if named.is_dir() else named
    if not python.is_file() or not os.access(python, os.X_OK):
        problem = f"no Python environment: {python} is no program" if named.exists() else "no such file or folder"
        raise BadRequestError(
            f"{option} {text}: {problem}", remedy="name an interpreter such as ENV/bin/python, or the folder ENV"
        )
    checkout = checkout_dir()
    build = Build(python=str(python), path=str(checkout) if checkout else "")
    prefix, version, software = _asked(option, text, build, host)
    if Path(prefix) == Path(sys.prefix):
        raise NoOldBuildError(
            f"{option} {text}: this environment runs mbr-perf, so both sides would be the same",
            remedy="name an environment of the old build",
        )
    lacks = [name for name in TRAINING if getattr(software, name.replace("-", "_")) is None]
    lacks += [f"mbr-perf {harness.__version__} (it has {version})"] if version != harness.__version__ else []
    if lacks:
        raise BadRequestError(f"{option} {text}: it lacks {' and '.join(lacks)}", remedy=_remedy(build))
    return build.model_copy(update={"software": software})


def require_same_build(option: str, then: Build, host: Host, what: str, resume: str) -> None:
    """Raise BadRequestError if the environment of a resumed batch is gone, is this one, or has other software."""
    try:
        now = find_build(option, then.python, host).software
    except NoOldBuildError as error:
        raise BadRequestError(f"--resume: this environment, {sys.prefix}, is {what}", remedy=resume) from error
    if now != then.software:
        raise BadRequestError(
            f"--resume: {then.python} has other software than at the start; new runs would not be comparable",
            remedy="install the software it began with, or start again",
        )


def _asked(option: str, text: str, build: Build, host: Host) -> tuple[str, str, Software]:
    """Return the prefix of the environment, its mbr-perf and its software, as the environment itself reports them."""
    out, why = output_of((build.python, "-c", _PROBE), _PATIENCE_S, host_with(host, build).shell)
    if why.startswith(LATE):
        raise BadRequestError(f"{option} {text}: {build.python}: {why}", remedy=LATE_REMEDY)
    try:
        prefix, version, software = json.loads(out)
        return prefix, version, Software.model_validate(software)
    except ValueError as error:
        message = f"{option} {text}: mbr-perf cannot be imported in {build.python}: {why or 'it is no Python'}"
        raise BadRequestError(message, remedy=_remedy(build)) from error


def _remedy(build: Build) -> str:
    return f"{build.python} -m pip install 'mbr-perf[train]=={harness.__version__}' beside torch and megatron-core"
