"""Entry point for NVML: ``python -m harness.engine.nvml list`` lists GPUs; the other commands are those of `nvml_sampler`.

Most commands of mbr-perf list the GPUs first, so this imports nothing for it but NVML's binding.
"""

import json
import sys
from collections.abc import Sequence

import pynvml

from harness.engine.nvml_device import Gpu, optional, reason_of


def main(argv: Sequence[str]) -> int:
    """Return 0 after a list, also without GPU or driver: the output then says so. Else the sampler's exit code."""
    if argv == ["list"]:
        print(json.dumps(listing()))  # noqa: T201 (the answer)
        return 0
    from harness.engine import nvml_sampler

    return nvml_sampler.main(argv)


def listing() -> dict:
    """Return ``{"driver": ..., "cuda": ..., "gpus": [{index, name, uuid, total_bytes}]}``, or ``{"error": ...}``."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    try:
        gpus = [_listed(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": _cuda_of_driver(), "gpus": gpus}
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    finally:
        pynvml.nvmlShutdown()


def _cuda_of_driver() -> str | None:
    """Return the newest CUDA that the driver supports, which NVML codes as 1000 x major + 10 x minor."""
    code = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def _listed(index: int) -> dict:
    try:
        gpu = Gpu(index)
        _, total, _ = gpu.memory()
    except pynvml.NVMLError as error:
        return {"index": index, "error": reason_of(error)}
    return {"index": index, "name": gpu.name, "uuid": gpu.uuid, "total_bytes": total}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
