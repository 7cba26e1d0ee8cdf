"""torchrun with a result for programs: ``python -m harness.engine.agent --result FILE <torchrun arguments>``.

torchrun exits with 1 for every failure. The agent writes the outcome of each rank to FILE unless SIGKILL ends it.
"""

import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from harness.engine.process import (
    UnforkableError,
    be_parent_of_children,
    die_with_parent,
    garbage_collection_paused,
    run_and_end,
)
from harness.records.collect import AgentRecord, RankExit
from harness.records.launch import signal_name
from harness.records.redact import redact
from harness.records.store import write_atomically

MAX_MESSAGE = 2000
NO_RANKS_PREPARED = nullcontext()  # torchrun starts an interpreter per rank


def main(argv: Sequence[str], ranks: AbstractContextManager[object] = NO_RANKS_PREPARED) -> int:
    """Return 0 if every rank succeeded, 1 if a rank failed, 128 + N after signal N. torchrun runs inside ``ranks``."""
    die_with_parent(signal.SIGTERM)
    be_parent_of_children()
    try:
        with ranks:
            record = supervise_ranks(list(argv[2:]))
    except UnforkableError as error:
        _print_error(error)
        record = AgentRecord(status="unforkable", error=redact(str(error))[:MAX_MESSAGE])
    write_atomically(Path(argv[1]), record)
    return 128 + record.signal if record.signal else int(record.status != "ok")


def supervise_ranks(torchrun_argv: list[str]) -> AgentRecord:
    """Run torchrun in this process until it ends. For wrong arguments its parser exits with 2, as usual."""
    with garbage_collection_paused():
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.run import parse_args, run

    # torchrun names this host in events that nobody reads, and each name may wait for a name server.
    socket.getfqdn = lambda name="": name or socket.gethostname()
    began = time.monotonic()
    arguments = parse_args(torchrun_argv)
    ended: dict[str, Any] = {"status": "ok"}
    try:
        run(arguments)
    except ChildFailedError as error:
        ended = _failed(error)
        _print_error(error)
    except SignalException as error:
        ended = {"status": "signalled", "signal": int(error.sigval)}
    except (RendezvousError, RuntimeError, OSError, ValueError) as error:
        ended = {"status": "error", "error": redact(f"{type(error).__name__}: {error}")[:MAX_MESSAGE]}
        _print_error(error)
    return AgentRecord(node_rank=arguments.node_rank, seconds=round(time.monotonic() - began, 3), **ended)


def _failed(error: Any) -> dict[str, Any]:
    first, _ = error.get_first_failure()
    exits = [
        RankExit(
            rank=rank,
            local_rank=failure.local_rank,
            pid=failure.pid,
            exit_code=failure.exitcode,
            signal=signal_name(-failure.exitcode) if failure.exitcode < 0 else None,
            message=redact(_text(failure.message))[:MAX_MESSAGE],
        )
        for rank, failure in sorted(error.failures.items())
    ]
    return {"status": "failed", "first_rank": first, "failures": tuple(exits)}


def _text(message: Any) -> str:
    return str(message.get("message", message)) if isinstance(message, dict) else str(message)


def _print_error(error: BaseException) -> None:
    print(redact(str(error)), file=sys.stderr, flush=True)  # noqa: T201 (the launcher's log)


if __name__ == "__main__":
    run_and_end(lambda: main(sys.argv[1:]))
