"""Names the GPU type of a job by what its log says of a GPU."""

import re
from collections.abc import Iterable

from harness.errors import SeveralMatchError
from harness.experiment.gpu import GPUS, gpu_named
from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sieve import Wanted
from harness.foreign.logs.sources import is_stream
from harness.units import GIB, TERA

_SAYS_GPU = Wanted(("NVIDIA ", "total capacity", "TFLOP/s/GPU"))
_PRODUCT = re.compile(r"NVIDIA [A-Z]{1,3}\d{2,3}S?\b[-\w ]{0,24}")
_CAPACITY = re.compile(r"total capacity of ([\d.]{1,9}) GiB|([\d.]{1,9}) GiB total capacity")
_SPEED = re.compile(r"\(TFLOP/s/GPU\): ([\d.]{1,9})|([\d.]{1,9})(?:MODEL_)?TFLOP/s/GPU")


def gpu_of_log(paths: Iterable[str]) -> tuple[str, str]:
    """Return the GPU type by the log's product name, else memory, and the line; SeveralMatchError if several fit."""
    logs, size, why, speed = list(paths), "", "", 0.0
    if any(map(is_stream, logs)):
        return "", ""
    for line in log_lines(logs, wanted=_SAYS_GPU):
        product = _PRODUCT.search(line.text)
        if product and (row := gpu_named(product[0])):
            return row.name, f"{line.where} names {product[0].strip()}"
        if not size and (found := _CAPACITY.search(line.text)):
            size = found[1] or found[2]
            why = f"{line.where} has a GPU of {size} GiB"
        if found := _SPEED.search(line.text):
            speed = max(speed, float(found[1] or found[2]))
    return _only_type(float(size) * GIB, speed * TERA, why) if size else ("", "")


def _only_type(capacity: float, speed: float, why: str) -> tuple[str, str]:
    every = [row for row in GPUS.values() if row.has_capacity(capacity) and max(row.peak_flops.values()) >= speed]
    # H800 and A800 are H100 and A100 with slower links: a log that does not name them is taken for one of these.
    fitting = [row for n, row in enumerate(every) if all(row.peak_flops != other.peak_flops for other in every[:n])]
    if len(fitting) > 1:
        names = " and ".join(row.title for row in fitting)
        raise SeveralMatchError(f"{why}, as {names} have", choices=tuple(("-g", row.name) for row in fitting))
    return (fitting[0].name, why) if fitting else ("", "")
