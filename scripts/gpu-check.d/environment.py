"""The options of gpu-check, and the Python environment that it uses. It imports the standard library only.

Nothing is installed beside an environment that has torch with CUDA; an environment in which packages are missing gets
one remedy instead of a traceback.
"""

import argparse
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

MINUTES = 9.5
SHAPES = ("dense", "moe", "mla")
DTYPES = ("bf16", "fp8_cs")
ATTENTIONS = ("fused", "unfused")
# after the probe none and whole layers of every shape, then the other stages, then the other settings
STAGES = {
    "probe": "rates of products, attention and memory, seconds of the host per call: mbr-perf probe",
    "planner": "predicted and measured bytes, phase by phase, under every legal recompute setting",
    "train": "a run under every module and with whole layers: memory readings in order, same losses",
    "oom": "a run that needs too much memory and the run after it; every kind of out-of-memory error, classified",
    "snapshot": "memory snapshots of a step and of a failure, against their run's record",
    "parallel": "two or more GPUs: user buffers, overlap, CUDA graphs and interleaving change no loss and end cleanly",
}
EXIT_CODES = """\
exit codes:
  0  every requested check ran and passed
  2  wrong request, or no usable GPU or environment; nothing was started
  3  a check failed
  6  some checks could not run: no time left, no transformer-engine, one GPU only, or a rehearsal"""


class UnfitError(Exception):
    """No environment can be used. ``str()`` gives the reason and the remedy; ``exit_code`` is that of the program."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def parser() -> argparse.ArgumentParser:
    """Return the options of scripts/gpu-check."""
    stages = "\n".join(f"  {name:9} {what}" for name, what in STAGES.items())
    program = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Checks on this machine's NVIDIA GPU what mbr-perf predicts, measures and reports, with two layers at the\n"
        "widths of Llama 3 8B (dense), Mixtral 8x7B (moe) and DeepSeek-V3 (mla).\n\n"
        "It uses the Python environment that you start it from if that has torch with CUDA. Otherwise it sets up .venv.\n"
        "MBR_PERF_NO_SETUP=1 PYTHON=python3 uses that Python in any case.\n\n"
        f"stages, in this order; planner and train first do no recompute and whole layers of every shape, and the rest last:\n"
        f"{stages}",
        epilog=EXIT_CODES,
    )  # fmt: skip
    program.add_argument("--only", metavar="STAGES", help="these stages, e.g. oom,snapshot; default: all")
    program.add_argument("--shapes", metavar="LIST", help=f"from {','.join(SHAPES)}; default: every shape that the software "
                         "can train. Stages that need one shape use the first")  # fmt: skip
    program.add_argument(
        "--dtypes", metavar="LIST", help=f"for the planner stage, from {','.join(DTYPES)}; default: both"
    )
    program.add_argument("--attention", metavar="LIST", help=f"for the planner stage, from {','.join(ATTENTIONS)} (fused: "
                         "without stored scores, also flash); default: both")  # fmt: skip
    program.add_argument("--recompute", action="append", metavar="TEXT",
                         help="only this setting besides none, e.g. full:uniform:1; repeatable")  # fmt: skip
    program.add_argument("--minutes", type=float, default=MINUTES, metavar="N",
                         help=f"start no run that would last longer (default {MINUTES:g}); the answer names what did not fit")  # fmt: skip
    program.add_argument("--resume", action="store_true",
                         help="skip the checks that passed before on this device with this software and code")  # fmt: skip
    program.add_argument("--rehearse", action="store_true",
                         help="run the same stages with tiny shapes on the CPU; checks that need a GPU are skipped")  # fmt: skip
    program.add_argument("--out", type=Path, metavar="DIR",
                         help="folder of the results (default results/gpu/<gpu>; in a rehearsal beside its runs)")  # fmt: skip
    program.add_argument("--archive", type=Path, metavar="FILE", help="at the end, or when it is stopped, pack results and "
                         "runs into this new .tar.gz, redacted and without memory snapshots")  # fmt: skip
    return program


def choose(shell: Mapping[str, str], root: Path, *, rehearse: bool, filesystem: Path = Path("/")) -> str:
    """Return the Python to use: this one, or that of ``.venv``. The choice and its versions go to stderr.

    UnfitError where packages are missing, or where a container's torch has no CUDA: no second torch is installed there.
    """
    torch, cuda = torch_build()
    fits = torch is not None and (cuda is not None or rehearse)
    if shell.get("MBR_PERF_NO_SETUP") or fits:
        if missing := missing_packages(root):
            raise UnfitError(f"{sys.executable} lacks {', '.join(missing)}\n  {remedy(root, missing)}")
        _print(f"environment: {sys.executable}, {versions()}")
        return sys.executable
    if torch is not None:
        if is_container(shell, filesystem):
            raise UnfitError(f"torch {torch} of {sys.executable} is built without CUDA\n  use an image whose torch has CUDA, "
                             "or add --rehearse to run the same stages on the CPU")  # fmt: skip
        _print(f"torch {torch} of {sys.executable} is built without CUDA: not used")
    _print("environment: .venv, with the versions of scripts/constraints.txt")
    made = subprocess.run((str(root / "scripts" / "setup"), "train"), stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        raise UnfitError("scripts/setup failed, see above", made.returncode)
    return made.stdout.strip()


def torch_build() -> tuple[str | None, str | None]:
    """Return version and CUDA version of the torch of this environment, from its files; None for what is not there."""
    found = find_spec("torch")
    places = list(found.submodule_search_locations or ()) if found else []
    for place in places:
        if (path := Path(place) / "version.py").is_file():
            build = runpy.run_path(str(path))
            return str(build["__version__"]), build.get("cuda")
    return None, None


def missing_packages(root: Path) -> list[str]:
    """Return the packages that pyproject.toml requires for training and that this environment lacks, by name only."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in required]
    return [name for name in names if version_of(name) is None]


def remedy(root: Path, missing: list[str]) -> str:
    """Return the one command that installs ``missing``; an installed torch stays."""
    extra = ".[train]" if {"torch", "megatron-core", "numpy"} & set(missing) else "."
    return f"cd {root} && {sys.executable} -m pip install -e '{extra}'"


def is_container(shell: Mapping[str, str], filesystem: Path) -> bool:
    """Return whether this is a container, as docker, podman, Apptainer and NVIDIA's images mark it."""
    marks = ("run/.containerenv", ".dockerenv")
    names = ("container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "NVIDIA_PYTORCH_VERSION")
    return any((filesystem / mark).exists() for mark in marks) or any(shell.get(name) for name in names)


def versions() -> str:
    """Return the versions that matter, as text."""
    torch, cuda = torch_build()
    shown = {"Python": ".".join(map(str, sys.version_info[:3])), "torch": torch, "CUDA": cuda,
             "megatron-core": version_of("megatron-core"), "transformer-engine": version_of("transformer-engine")}  # fmt: skip
    return ", ".join(f"{name} {version or 'none'}" for name, version in shown.items())


def version_of(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
