"""Damaged and hostile snapshots: each must be summarised or refused in words."""

import io
import pickle
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.snapshot.child import RefusedPickleError, load_plain, summarise
from harness.snapshot.fields import SnapshotFormatError
from harness.snapshot.values import Question
from harness.snapshot.what_if import answered
from tests.snapshot_pickles import MLP, fragmented, trained

ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 2 << 30
_QUESTION = Question(settings=("expandable_segments:True",), device_bytes=1 << 30)
_ODD: tuple[Any, ...] = (
    None, -1, 2**63, 10**40, True, 1.5, float("nan"), "", "\ud800", b"x", [], {}, (), [[]], {"a": 1},
)  # fmt: skip


def damaged_snapshots(count: int) -> int:
    """Try so many damaged files; return how many were summarised."""
    small = trained(num_layers=1, num_steps=1)
    small.oom(1 << 40, 0, MLP)
    seeds = [small.snapshot(), trained(num_layers=2).snapshot(), {**fragmented().snapshot(), "device_traces": []}]
    files = [pickle.dumps(seed, protocol=protocol) for seed in seeds for protocol in (2, 4)]
    answers = 0
    for seed in range(count):
        try:
            answers += _is_summarised(files, random.Random(seed))
        except BaseException:
            sys.stderr.write(f"seed {seed}\n")
            raise
    return answers


def _is_summarised(files: list[bytes], draw: random.Random) -> bool:
    try:
        if draw.random() < 0.5:
            value = load_plain(io.BytesIO(_damaged(draw.choice(files), draw)))
        else:
            value = _altered(pickle.loads(draw.choice(files)), draw)
        summary = summarise(value, file="fuzzed", file_bytes=1)
        summary.model_dump_json()
        if summary.fullest and isinstance(value, dict):
            answered(value, summary.fullest, _QUESTION).model_dump_json()
    except (RefusedPickleError, SnapshotFormatError, MemoryError):
        return False
    return True


def _damaged(content: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, put in or taken out; or the end lost."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 30))):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                data[at:at] = draw.randbytes(draw.randrange(1, 6))
            case 2:
                del data[at : at + draw.randrange(1, 9)]
            case _:
                other = draw.randrange(len(data))
                data[at : at + 20] = data[other : other + 20]
        if not data:
            return b""
    return bytes(data[: draw.randrange(len(data))]) if draw.random() < 0.1 else bytes(data)


def _altered(value: Any, draw: random.Random) -> Any:
    """A snapshot of which something is another value, missing, or there twice."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = value
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw.choice(keys)
            below = at[key]
            if isinstance(below, (dict, list)) and below and draw.random() < 0.9:
                at = below
                continue
            if isinstance(at, (dict, list)):
                _change(at, key, draw)
            break
    return value


def _change(at: Any, key: Any, draw: random.Random) -> None:
    if draw.random() < 0.2:
        del at[key]
    else:
        at[key] = draw.choice((*_ODD, draw.randrange(2**40), at[key]))


@pytest.mark.slow
def test_damaged_snapshots_are_summarised_or_refused():
    """In a process of its own, whose memory is limited."""
    command = [sys.executable, "-m", "tests.snapshot.test_damaged"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, int(done.stdout or 0) > 10) == (0, True), done.stderr[-3000:]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.write(f"{damaged_snapshots(200)}\n")
