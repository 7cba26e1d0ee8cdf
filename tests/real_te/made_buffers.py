"""Makes the user buffers of specs over real transformer-engine Python: ``made_buffers.py TE_FOLDER SPECS OUT``.

The answer holds, by name of the spec and by GEMM, what transformer-engine asked of its extension. The buffers are destroyed.
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import loading


def main():
    """Make the buffers of one spec after another, over fake process groups."""
    folder, asked, out = map(Path, sys.argv[1:])
    loading.prepare(folder)
    from harness.engine.tracing.chunk import Groups
    from harness.experiment.experiment import ExperimentSpec

    groups = Groups()
    specs = {name: ExperimentSpec.model_validate_json(spec) for name, spec in json.loads(asked.read_text()).items()}
    out.write_text(json.dumps({name: made(spec, groups) for name, spec in specs.items()}))


def made(spec, groups):
    """Buffers ``made`` by GEMM, ``modes`` of quantization, and whether any buffer is ``left`` at the end."""
    from transformer_engine.pytorch.module import base

    from harness.engine import gpu_setup

    groups.join(spec.parallelism)
    gpu_setup.make_user_buffers(spec)
    found = dict(base._ub_communicators or {})
    gpu_setup.destroy_user_buffers(spec)
    return {
        "made": {name: described(buffer) for (name, _mode), buffer in found.items()},
        "modes": sorted({mode.value for _name, mode in found}),
        "left": base._ub_communicators is not None,
        "bytes": sum(size(buffer) for buffer in found.values()),
    }


def size(buffer):
    """Bytes of a buffer; a ring exchange that reduces holds the parts of the other ranks too (comm_gemm_overlap.cpp)."""
    from transformer_engine_torch import CommOverlapType

    of_parts = buffer.is_p2p_overlap() and buffer.comm_type == CommOverlapType.RS
    whole = math.prod(buffer.buffer_shape) * buffer.buffer_dtype.itemsize
    return whole * (2 * buffer.tp_size - 1) // buffer.tp_size if of_parts else whole


def described(buffer):
    """Class, shape, element type and settings of a buffer."""
    settings = {name: value for name, value in buffer.settings.items() if isinstance(value, int)}
    return [type(buffer).__name__, list(buffer.buffer_shape), str(buffer.buffer_dtype), settings]


if __name__ == "__main__":
    main()
