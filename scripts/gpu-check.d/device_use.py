"""Writes NVML's count of used bytes on every GPU to ``FOLDER/use.json``: ``device_use.py FOLDER``. Imports no torch."""

import json
import sys
from pathlib import Path

import pynvml

from harness.engine.nvml_device import Gpu, reason_of
from harness.records.store import write_atomically


def main() -> int:
    """Return 0 if the file is written; 3 if NVML does not answer, with its reason on stderr."""
    try:
        pynvml.nvmlInit()
        gpus = [Gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        use = {gpu.uuid: {"used_bytes": gpu.memory()[0], "pids": sorted(gpu.processes() or ())} for gpu in gpus}
    except pynvml.NVMLError as error:
        sys.stderr.write(reason_of(error) + "\n")
        return 3
    write_atomically(Path(sys.argv[1]) / "use.json", json.dumps(use, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
