"""Traces cases as the planner does, under real transformer-engine Python: ``real_trace.py TE_FOLDER REQUEST OUT``.

The answer maps keys to bytes, or to the traceback of what went wrong.
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


def main() -> None:
    """Every case of the request; one that fails stops no other."""
    folder, asked, out = map(Path, sys.argv[1:])
    request = TraceRequest.model_validate_json(asked.read_text())
    loading.prepare(folder)
    engine_trace.prepare(transformer_engine=True)
    out.write_text(json.dumps({case.key: traced(case) for case in request.cases}))


def traced(case):
    """Bytes by field of `ChunkTrace`, or {"failed": traceback}."""
    from harness.engine import user_buffers
    from harness.engine.tracing.building import Groups
    from harness.engine.tracing.run import prepared, trace

    os.environ |= case.spec.env
    groups = GROUPS.setdefault("groups", Groups())
    spec = prepared(case, "transformer_engine", groups)
    try:
        user_buffers.make(spec)
        chunk = trace(case, "transformer_engine", groups)
    except Exception:  # noqa: BLE001 (the test says which case failed, and how)
        return {"failed": traceback.format_exc()}
    finally:
        user_buffers.destroy(spec)
    return chunk.model_dump(exclude={"ops"})


GROUPS: dict = {}

if __name__ == "__main__":
    main()
