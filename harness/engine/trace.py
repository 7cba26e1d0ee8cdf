"""Entry point of the no-GPU tracer: ``python -m harness.engine.trace [--exact|--events] --request FILE --out FILE``.

It needs its own process: its changes to torch and megatron-core cannot be undone.
"""

import argparse
import logging
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

from harness.engine.process import die_with_parent
from harness.records.store import write_atomically
from harness.records.trace import ExactRequest, TraceFile, TraceRequest, progress_file

STAND_IN = Path(__file__).parent / "stand_in"


def main() -> int:
    """Answer the request: chunks, their requests for memory (``--events``) or whole schedules. Files appear whole."""
    parser = argparse.ArgumentParser(prog="harness.engine.trace")
    parser.add_argument("--exact", dest="answer", action="store_const", const=_whole_steps, default=_chunks)
    parser.add_argument("--events", dest="answer", action="store_const", const=_events)
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    arguments.answer(arguments.request.read_text(), arguments.out)
    return 0


def _chunks(asked: str, out: Path) -> None:
    began, request = time.perf_counter(), TraceRequest.model_validate_json(asked)
    write_chunks(request, out, prepare(transformer_engine=request.implementation == "transformer_engine"), began)


def write_chunks(request: TraceRequest, out: Path, stand_in: str | None, began: float) -> None:
    """Trace the cases of a request in this process, which is prepared with the version of the stand-in."""
    from harness.engine.tracing.run import trace_all

    with progress_file(out).open("ab", buffering=0) as progress:
        chunks, refused = trace_all(request, lambda: progress.write(b"."))
    answer = TraceFile(
        megatron_core=metadata.version("megatron-core"),
        torch=metadata.version("torch"),
        stand_in=stand_in,
        chunks=chunks,
        refused=refused,
        seconds=time.perf_counter() - began,
    )
    write_atomically(out, answer.model_dump_json())


def _events(asked: str, out: Path) -> None:
    request = TraceRequest.model_validate_json(asked)
    prepare(transformer_engine=request.implementation == "transformer_engine")

    from harness.engine.tracing.recording import record_all

    with progress_file(out).open("ab", buffering=0) as progress:
        answer = record_all(request, lambda: progress.write(b"."))
    write_atomically(out, answer.model_dump_json())


def _whole_steps(asked: str, out: Path) -> None:
    request = ExactRequest.model_validate_json(asked)
    prepare(transformer_engine=request.implementation == "transformer_engine")

    from harness.engine.tracing.whole_step import trace_ranks

    trace_ranks(request, lambda answer: write_atomically(out, answer.model_dump_json()))


def prepare(*, transformer_engine: bool) -> str | None:
    """Prepare this process for tracing and return the stand-in's version. Call it before importing megatron.core."""
    from harness.engine import cpu_backend
    from harness.engine.tracing import adaptations

    warnings.filterwarnings("ignore", module="megatron")
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|transformer_engine|deprecated).*")
    logging.getLogger().setLevel(logging.ERROR)
    adaptations.install_before_import()
    version = None
    sys.path.insert(0, str(STAND_IN))
    if transformer_engine:
        import transformer_engine as stand_in

        version = stand_in.__version__
    else:
        cpu_backend.block_transformer_engine()
    adaptations.install(transformer_engine=transformer_engine)
    return version


if __name__ == "__main__":
    sys.exit(main())
