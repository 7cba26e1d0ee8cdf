"""Stands in for the programs of scripts/gpu-check.d on a GPU: leaves what they would leave there.

``SCRIPTED_FAULT`` names one thing that goes wrong.
"""

import json
import os
import sys
import time
from pathlib import Path

from harness.units import GIB

FAULT = os.environ.get("SCRIPTED_FAULT", "")
SECRET = "HF_TOKEN=CANARYvalue Authorization: Bearer CANARYbearer0123 "
_HEAD = (
    "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 139.80 GiB of which {free} is free. "
)
_TAIL = (
    "this process has {mine} GiB memory in use. {allowed}Of the allocated memory {live} GiB is allocated by PyTorch{pool}, "
    "and {spare} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


USUAL = {"tried": "1.00 GiB", "free": "800.00 MiB", "mine": "139.00", "live": "138.00", "pool": "", "spare": "8.00 MiB",
         "allowed": ""}  # fmt: skip


def text(**figures):
    return (_HEAD + "Including non-PyTorch memory, " + _TAIL).format(**{**USUAL, **figures})


TEXTS = {
    "capacity": text(),
    "larger_than_device": text(tried="209.70 GiB", free="139.00 GiB", mine="0.60", live="0.00"),
    "outside_allocator": text(live="54.00"),
    "library": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuda_graph_pools": text(pool=", with 69.00 GiB allocated in private pools (e.g., CUDA Graphs)"),
    "self_imposed_limit": text(free="111.00 GiB", mine="28.50", live="27.00", allowed="27.96 GiB allowed; "),
    "host_memory": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12",
}


def main(script, folder, *arguments):
    if FAULT == "program_dies":
        sys.stderr.write("CUDA driver error: initialization error\n")
        return 1
    if FAULT == "endless":
        time.sleep(60)
    programs = {"oom_class.py": oom, "rates.py": rates}
    return programs[Path(script).name](folder, *arguments)


def oom(folder, way):
    if FAULT == "secret" and way == "library":
        sys.exit(SECRET)
    message = (SECRET if FAULT == "secret" else "") + TEXTS[
        "capacity" if FAULT == "other_class" and way == "outside_allocator" else way
    ]
    document = {"way": way, "error": "OutOfMemoryError", "text": message, "torch": "2.11.0"}
    (folder / "oom.json").write_text(json.dumps(document))
    return 0


def rates(_folder, gpu):
    bf16, flops = (0.01 if FAULT == "too_fast" else 1.0), 989.4e12 * 0.7
    rows = [("gemm_bf16", "a product", flops, 0.0, bf16, 0.0), ("launch_s", "add", 0.0, 0.0, 5e-6, 5e-6),
            ("call_s", "a linear layer", 0.0, 0.0, 18e-5, 18e-5)]  # fmt: skip
    for said in ({"part": "products", "done": 1, "of": 1, "rows": rows}, {"device": gpu, "outside_bytes": GIB}):
        sys.stdout.write(json.dumps(said) + "\n")
    return 0


sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
