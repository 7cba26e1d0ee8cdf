"""Starts commands on scripted GPUs. A machine is a folder: its devices, its NVML, and the memory of its processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if str(CHECKOUT) not in sys.path:  # for scripts, which have another folder first
    sys.path.insert(0, str(CHECKOUT))

from tests.scripted_cuda import environment  # noqa: E402

DEVICE_NAME = "Scripted NVIDIA H100 80GB HBM3"
GIB = 2**30
MCORE = os.environ.get("SCRIPTED_CUDA_MCORE", "0.16")
# Ranks inherit these only through --pass_env, which keeps them out of records and fingerprints.
_PASSED = (
    "LD_PRELOAD",
    "FAKE_NVML_STATE",
    "SCRIPTED_CUDA_TABLE",
    "SCRIPTED_CUDA_BYTES",
    "SCRIPTED_CUDA_DEVICES",
    "SCRIPTED_CUDA_BUSY",
)


@dataclass(frozen=True)
class Machine:
    """A machine with ``num_devices`` of ``device_bytes``. ``busy``: side streams are always late. ``mcore``: a release."""

    folder: Path
    num_devices: int = 8
    device_bytes: int = 80 * GIB
    busy: bool = False
    mcore: str = MCORE

    def variables(self) -> dict[str, str]:
        """Return the environment of commands on this machine. It keeps a few variables of this process."""
        double = environment.double()
        inherited = {
            k: v
            for k, v in os.environ.items()
            if k in ("HOME", "PATH", "LANG", "TMPDIR", "USER", "XDG_CACHE_HOME", "TERM")
        }
        caches = environment.ROOT / "caches"  # another torch compiles into other folders
        return inherited | {
            "LD_PRELOAD": str(double / "libscripted_cuda.so"),
            "LD_LIBRARY_PATH": str(double),
            "TRITON_LIBCUDA_PATH": str(double),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(caches / f"extensions-{self.mcore}"),
            "NVTE_DISABLE_NVRTC": "1",  # transformer-engine: else it compiles kernels at run time, and NVRTC crashes here
            "FAKE_NVML_STATE": str(self.nvml_state()),
            "SCRIPTED_CUDA_TABLE": str(self.folder / "table"),
            "SCRIPTED_CUDA_BYTES": str(self.device_bytes),
            "SCRIPTED_CUDA_DEVICES": str(self.num_devices),
            "PYTHONPATH": f"{CHECKOUT}:{environment.mcore_folder(self.mcore)}",
        } | ({"SCRIPTED_CUDA_BUSY": "1"} if self.busy else {})  # fmt: skip

    def nvml_state(self) -> Path:
        """Return the file from which NVML names the devices. Their memory comes from the scripted driver."""
        state = self.folder / "nvml.state"
        if not state.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            name = DEVICE_NAME.replace(" ", "_")
            uuids = [_uuid(each) for each in range(self.num_devices)]
            lines = [f"gpu {i} uuid={uuid} name={name} total={self.device_bytes}" for i, uuid in enumerate(uuids)]
            state.write_text("\n".join(lines) + "\n")
        return state

    def started(
        self, *command: str | Path, more: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        """Start a command of the environment's Python."""
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = self.variables() | (dict(more) if more else {})
        return subprocess.Popen(
            [environment.PYTHON, *map(str, command)], env=variables, cwd=self.folder, **piped | options
        )

    def run(
        self, *command: str | Path, timeout_s: float = 540, more: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of the environment's Python. After ``timeout_s`` it gets Ctrl-C."""
        process = self.started(*command, more=more, start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
            err += f"\nnot done after {timeout_s:g} s\n"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def mbr_perf_command(self, *arguments: str | Path) -> list[str | Path]:
        """Return the command line, with the variables that ranks must inherit."""
        passed = [
            word for name in _PASSED if name != "SCRIPTED_CUDA_BUSY" or self.busy for word in ("--pass_env", name)
        ]
        if not arguments or arguments[0] not in ("run", "sweep"):
            passed = []
        return ["-m", "harness.app", *arguments, *passed]

    def mbr_perf(self, *arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run `mbr-perf`."""
        return self.run(*self.mbr_perf_command(*arguments), **options)

    def one_rank(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Return the answer of one_rank.py. RuntimeError, with its last words, if it prints none."""
        done = self.run(CHECKOUT / "tests" / "scripted_cuda" / "one_rank.py", *arguments, **options)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"exit {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
        return dict(json.loads(lines[-1]))


def _uuid(device: int) -> str:
    """Return the UUID that torch reads from the double."""
    text = f"scripted-gpu-{device:02d}".encode().hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}".ljust(40, "0")
