"""A tracer that answers many requests: ``tracer.py IMPLEMENTATION``; each line of stdin names the request and the answer.

Each answer is made in a process of its own, forked from one that has imported torch and megatron-core. Prints the exit
code of each; what it said is beside the answer.
"""

import os
import sys
import traceback
from importlib import metadata
from pathlib import Path

from harness.engine.trace import prepare
from harness.records.trace import TraceFile, TraceRequest

STAND_IN = prepare(transformer_engine=sys.argv[1] == "transformer_engine")

from harness.engine.tracing.run import trace_all  # noqa: E402 (imports megatron-core)


def answer(asked, out):
    chunks, refused = trace_all(TraceRequest.model_validate_json(asked.read_text()), lambda: None)
    versions = {"megatron_core": metadata.version("megatron-core"), "torch": metadata.version("torch")}
    found = TraceFile(**versions, stand_in=STAND_IN, chunks=chunks, refused=refused, seconds=0.0)
    out.write_text(found.model_dump_json())


def child(asked, out):
    log = os.open(out.with_suffix(".err"), os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        answer(asked, out)
    except BaseException:  # noqa: BLE001 (the test shows it)
        traceback.print_exc()
        return 1
    return 0


for line in sys.stdin:
    if (pid := os.fork()) == 0:
        os._exit(child(*map(Path, line.split())))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201
