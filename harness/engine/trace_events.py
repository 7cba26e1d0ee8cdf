"""Entry point of the recorder of requests: ``python -m harness.engine.trace_events --request FILE --out FILE``.

It stands beside `trace.py`, whose code decides what a trace is.
"""

import argparse
import sys
from pathlib import Path

from harness.engine.process import die_with_parent
from harness.engine.trace import prepare
from harness.records.store import write_atomically
from harness.records.trace import TraceRequest, progress_file


def main() -> int:
    """Answer the request."""
    parser = argparse.ArgumentParser(prog="harness.engine.trace_events")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    request = TraceRequest.model_validate_json(arguments.request.read_text())
    prepare(transformer_engine=request.implementation == "transformer_engine")

    from harness.engine.tracing.recording import record_all

    with progress_file(arguments.out).open("ab", buffering=0) as progress:
        answer = record_all(request, lambda: progress.write(b"."))
    write_atomically(arguments.out, answer.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
