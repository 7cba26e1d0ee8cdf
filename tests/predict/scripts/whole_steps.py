"""Traces one step of every rank of each request: ``whole_steps.py FOLDER``, NAME.json to NAME.answer there.

A process each, as the tracer has it, forked from one that has imported torch and megatron-core.
"""

import os
import sys
from pathlib import Path

from harness.engine.trace import prepare
from harness.records.trace import ExactRequest

prepare(transformer_engine=True)

from harness.engine.tracing.whole_step import trace_ranks  # noqa: E402 (imports megatron-core)

for asked in sorted(Path(sys.argv[1]).glob("*.json")):
    if (child := os.fork()) == 0:
        request, answer = ExactRequest.model_validate_json(asked.read_text()), asked.with_suffix(".answer")
        trace_ranks(request, lambda found, out=answer: out.write_text(found.model_dump_json()))
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{asked.name}: the trace failed")
