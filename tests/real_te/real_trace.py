"""Traces cases as the planner does, under real transformer-engine Python: ``real_trace.py TE_FOLDER REQUEST OUT``.

The answer maps keys to bytes, or to a traceback if the case failed.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import loading

from harness.engine import trace as engine_trace
from harness.records.trace import TraceRequest


def main():
    """Trace every case of the request; a failure does not stop the others."""
    folder, asked, out = map(Path, sys.argv[1:])
    request = TraceRequest.model_validate_json(asked.read_text())
    loading.prepare(folder)
    engine_trace.prepare(transformer_engine=True)
    out.write_text(json.dumps({case.key: traced(case) for case in request.cases}))


def traced(case):
    """Fields of `Measured`, or {"failed": traceback}."""
    before = dict(os.environ)
    os.environ |= case.spec.env
    loading.stand_for(case.spec.gpu_type.capability)
    try:
        return measured(case)
    except Exception:  # noqa: BLE001 (the test says which case failed, and how)
        return {"failed": traceback.format_exc()}
    finally:
        os.environ.clear()
        os.environ |= before


def measured(case):
    """Measure as the tracer does, with user buffers as a rank makes them."""
    from harness.engine import gpu_setup
    from harness.engine.tracing.chunk import Groups, build, stage_config
    from harness.engine.tracing.run import prepared

    spec = prepared(case, "transformer_engine", GROUPS.setdefault("groups", Groups()))
    gpu_setup.make_user_buffers(spec)
    try:
        found = build(case, spec, stage_config(spec)).measure()
    finally:
        gpu_setup.destroy_user_buffers(spec)
    found.pop("ops")
    return found


GROUPS: dict = {}

if __name__ == "__main__":
    main()
