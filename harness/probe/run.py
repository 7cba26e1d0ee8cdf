"""Measures single operations on this machine's GPU, in a process of its own."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

from harness.errors import BadRequestError, ExitCode, HarnessError, RunFailedError
from harness.experiment.gpu import GPUS, GpuType
from harness.launch.environment import SAFE_PATH, Host
from harness.launch.machine import settled_gpu
from harness.predict.probing import constants_of
from harness.records.calibration import Probe, ProbedRow
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.quoting import quoted_error
from harness.show.progress import Counting
from harness.units import utc_now

_ROW = ("of", "what", "flops", "moved_bytes", "seconds", "host_s")


class UndecidedError(HarnessError):
    """The GPU does not work for the probe alone, so that its seconds say nothing."""

    exit_code = ExitCode.INCONCLUSIVE


def probe(host: Host, progress: Counting, *, rehearse: bool) -> Probe:
    """Measure. BadRequestError without a GPU of a known type, UndecidedError where it is shared or slowed down."""
    name, why, remedy = "cpu", "", "run it where your jobs run, for example with srun --gpus=1"
    if not rehearse:
        try:
            name, why = settled_gpu(host)
        except BadRequestError as error:
            raise BadRequestError(f"probe measures a GPU of a known type: {error.message}", remedy=remedy) from error
        if name == "cpu":
            raise BadRequestError(f"probe measures a GPU: {why}", remedy=remedy)
    gpu = GPUS[name]
    rows, found = list[ProbedRow](), dict[str, Any]()
    for part in _parts(host, gpu):
        rows += [ProbedRow(**dict(zip(_ROW, row, strict=True))) for row in part.pop("rows", ())]
        if "done" in part:
            progress(part.pop("done"), part.pop("of"), part.pop("part"))
        found |= part
    outside = found.pop("outside_bytes", None)
    constants = {} if rehearse else constants_of(rows, gpu) | {"outside_allocator_bytes": outside}
    whole = {"gpu": gpu.name, "constants": constants, "rows": rows, "made_at": utc_now(), **found}
    return Probe.model_validate(whole, strict=False)  # JSON has lists for tuples


def _parts(host: Host, gpu: GpuType) -> Iterator[dict[str, Any]]:
    """Yield what the process prints, part by part. RunFailedError if it ends in another way."""
    command = (host.python, "-m", "harness.engine.rates", gpu.name)
    shell = {**host.shell, **SAFE_PATH, PARENT_PID_VARIABLE: str(os.getpid())}
    with subprocess.Popen(
        command, env=shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ran:
        try:
            assert ran.stdout is not None and ran.stderr is not None
            for line in ran.stdout:
                part = json.loads(line)
                if problem := part.get("problem"):
                    if ran.wait() == ExitCode.INCONCLUSIVE:
                        raise UndecidedError(f"probe: {problem}; nothing was written", remedy="probe an idle GPU")
                    raise BadRequestError(f"probe: {problem}", remedy="install torch for CUDA, or see mbr-perf doctor")
                yield part
            said = ran.stderr.read()
        finally:
            ran.kill()
    if ran.returncode:
        raise RunFailedError(f"probe: measuring ended with exit code {ran.returncode}: {quoted_error(said)}")
