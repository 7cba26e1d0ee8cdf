"""Reads a snapshot in a separate process, without running code from the file."""

import gc
import io
import pickle
import resource
import sys
from collections.abc import Sequence
from typing import IO, Any, NoReturn

from harness.snapshot.blocks import Blocks, blocks_by_device, last_failure
from harness.snapshot.fields import SnapshotFormatError, text, torchs_layout
from harness.snapshot.stacks import Owner, Stacks
from harness.snapshot.values import DeviceMemory, Holder, Question, SnapshotSummary


class RefusedPickleError(ValueError):
    """The file is not a pickle of plain values. None of its code was looked up or called."""


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every way in which a pickle can name code: globals, extension codes, persistent ids and buffers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every global, also those of the extension registry."""
        raise RefusedPickleError(f"it asks for {text(module)}.{text(name)}, but a snapshot holds only plain values")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse objects outside the file."""
        del pid
        raise RefusedPickleError("it refers to objects outside the file")


_CHUNK_BYTES = 1 << 24


class _Compacting(io.BufferedReader):
    """Shares equal stacks while a file is read, half of all memory: each list of frames becomes a list of one list."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, _CHUNK_BYTES)  # type: ignore[arg-type]
        self._stacks: dict[tuple[int, ...], list[list[Any]]] = {}
        self._num_left = 0
        gc.freeze()

    def peek(self, size: int = 0, /) -> bytes:
        """Return what the unpickler reads ahead; it asks once for each piece of the file."""
        ahead = super().peek(size)
        self._num_left -= len(ahead)
        if self._num_left <= 0:
            self._num_left = _CHUNK_BYTES
            for found in gc.get_objects(generation=0):
                if type(found) is list and len(found) > 1 and type(found[0]) is dict and "filename" in found[0]:
                    self._share(found)
            gc.freeze()
        return ahead

    def _share(self, frames: list[Any]) -> None:
        alike = self._stacks.setdefault((len(frames), *map(id, frames[::8])), [])
        for stack in alike:
            if stack == frames:
                break
        else:
            stack = frames[:]
            alike.append(stack)
        frames[:] = [stack]


# The documentation of C's unpickler does not list what it raises for damaged files.
_WRONG_VALUE = (ValueError, TypeError, AttributeError, LookupError, OverflowError)
_DAMAGED = (pickle.UnpicklingError, EOFError, RecursionError, ImportError, *_WRONG_VALUE)


def load_plain(stream: IO[bytes]) -> object:
    """Load the value in ``stream``. RefusedPickleError: not plain values, or a damaged file. MemoryError."""
    try:
        return _PlainUnpickler(_Compacting(stream), buffers=None).load()
    except RefusedPickleError:
        raise
    except _DAMAGED as error:
        raise RefusedPickleError(
            f"it is damaged, cut short or not a pickle ({type(error).__name__}: {text(str(error))})"
        ) from error


MOST_HOLDERS = 1000  # rows of a device; the rest becomes one row
REST = Owner("others", "")


def content_of(snapshot: object) -> dict[Any, Any]:
    """Return the snapshot as a dict. SnapshotFormatError for anything else."""
    if not isinstance(snapshot, dict) or "segments" not in snapshot:
        raise SnapshotFormatError("it has no 'segments'; every memory snapshot of torch has them")
    return snapshot


@torchs_layout()
def summarise(snapshot: object, *, file: str, file_bytes: int) -> SnapshotSummary:
    """Summarise all devices with memory or a history. SnapshotFormatError for another layout."""
    content = content_of(snapshot)
    blocks = blocks_by_device(content, Stacks())
    histories = {device: entries for device, entries in enumerate(content.get("device_traces") or ()) if entries}
    devices = [
        _device(device, blocks.get(device, Blocks()), histories.get(device, ()))
        for device in sorted({*blocks, *histories})
    ]
    predicted = text(content.get("predicted"))
    return SnapshotSummary(file=file, file_bytes=file_bytes, devices=tuple(devices), predicted=predicted)


def _device(number: int, blocks: Blocks, history: Sequence[Any]) -> DeviceMemory:
    failure, problem = last_failure(history, blocks)
    return DeviceMemory(
        device=number,
        **{name: getattr(blocks, name) for name in DeviceMemory.model_fields if hasattr(blocks, name)},
        holders=_holders(blocks),
        failure=failure,
        has_history=bool(history),
        history_problem=problem,
    )


def _holders(blocks: Blocks) -> tuple[Holder, ...]:
    owners = sorted(blocks.live_bytes, key=lambda owner: (-blocks.live_bytes[owner], owner))
    rows = [(owner, [owner]) for owner in owners[:MOST_HOLDERS]]
    rows += [(REST, rest)] if (rest := owners[MOST_HOLDERS:]) else []
    return tuple(
        Holder(
            module=name.module,
            site=name.site,
            live_bytes=sum(blocks.live_bytes[owner] for owner in of),
            num_live=sum(blocks.num_live[owner] for owner in of),
        )
        for name, of in rows
    )


def main() -> int:
    """Read the snapshot, summarise it and print the summary; return the exit code."""
    name, num_bytes, limit_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, hardest = resource.getrlimit(resource.RLIMIT_AS)
    if hardest != resource.RLIM_INFINITY:  # a shell's `ulimit -v`, which a process may not raise
        limit_bytes = min(limit_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file may grow: the process can write only to pipes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # millions of small objects live to the end: looking for cycles would take most of the time
    try:
        content = load_plain(sys.stdin.buffer)
        summary = summarise(content, file=name, file_bytes=num_bytes)
        if len(sys.argv) > 4 and summary.fullest:
            from harness.snapshot.what_if import answered

            question = Question.model_validate_json(sys.argv[4])
            what_if = answered(content_of(content), summary.fullest, question)
            summary = summary.model_copy(update={"what_if": what_if})
        answer, code = summary.model_dump_json(), 0
    except (RefusedPickleError, SnapshotFormatError) as error:
        answer, code = str(error), 2
    except MemoryError:
        limit = f"{limit_bytes / 1e9:.1f} GB that {num_bytes / 1e6:.1f} MB may take"
        answer, code = f"opening it needs more than the {limit}", 2
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    # End without freeing the values one by one, which would take seconds.
    import os

    os._exit(main())
