"""Files from anywhere are opened without running or breaking anything."""

import gzip
import lzma
import os
import pickle
import re
import subprocess
import sys
from copyreg import add_extension, remove_extension
from pathlib import Path
from typing import Any

import pytest

from harness.snapshot.reading import SnapshotLimits, snapshot_summary
from harness.units import MIB
from tests import commands
from tests.snapshot_pickles import trained, written


class Runs:
    """A pickle of it runs a shell command when it is loaded the usual way."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def refused(path: Path, limits: SnapshotLimits | None = None) -> str:
    [problem] = commands.refused(lambda: snapshot_summary(path, limits), str(path))
    return problem.message


def test_the_oldest_protocol_of_python_3_is_read(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained().snapshot(), 2)
    assert snapshot_summary(path).devices[0].allocated_bytes == 8 * 192 * MIB


def test_a_pickle_that_runs_a_command_is_refused_unrun(tmp_path: Path):
    path, marker = tmp_path / "evil.pickle", tmp_path / "ran"
    assert "posix.system" in refused(written(path, {"segments": [Runs(marker)]}))
    assert not marker.exists()
    subprocess.run([sys.executable, "-c", f"import pickle; pickle.load(open({str(path)!r}, 'rb'))"], check=True)
    assert marker.exists()


@pytest.mark.parametrize("name", ["os\nsystem", "harness.errors\nHarnessError", ""])
def test_old_text_opcodes_and_registered_extension_codes_reach_no_global(tmp_path: Path, name: str):
    by_name = f"c{name}\n(S'touch {tmp_path}/ran'\ntR.".encode()
    by_code = b"\x80\x02\x82\xf1(X\x04\x00\x00\x00calltR."
    add_extension("tests.nowhere", "Thing", 241)
    try:
        (tmp_path / "evil.pickle").write_bytes(by_name if name else by_code)
        assert re.search(name.replace("\n", ".") or "241|tests.nowhere", refused(tmp_path / "evil.pickle"))
    finally:
        remove_extension("tests.nowhere", "Thing", 241)
    assert not (tmp_path / "ran").exists()


NEEDS_TOO_MUCH, DAMAGED = "opening it needs more than", "damaged, cut short or not a pickle"
CONTENTS = {
    "empty": (b"", DAMAGED),
    "only a head": (b"\x80\x04.", ""),
    "text": (b"not a pickle at all", DAMAGED),
    "gzip": (gzip.compress(pickle.dumps({})), DAMAGED),
    "xz": (lzma.compress(pickle.dumps({})), DAMAGED),
    "an unknown memo": (b"\x80\x04h\x05.", DAMAGED),
    "cut short": (pickle.dumps(trained().snapshot())[:-200], DAMAGED),
    "a persistent id": (b"\x80\x02X\x03\x00\x00\x00aaaQ.", "objects outside the file"),
    "a harmless object": (pickle.dumps({"segments": [Path("x")]}), "asks for pathlib"),
    "a bomb of empty dicts": (b"\x80\x04](" + b"}" * 5_000_000 + b"e.", NEEDS_TOO_MUCH),
    "a claimed length beyond the file": (b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc", ""),
    "a memo of four billion entries": (b"\x80\x02}r\xff\xff\xff\xff.", NEEDS_TOO_MUCH),
    "deep nesting": (b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".", "no 'segments'"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_snapshot_is_refused_in_words(tmp_path: Path, name: str):
    content, expected = CONTENTS[name]
    (tmp_path / "a.pickle").write_bytes(content)
    assert expected in refused(tmp_path / "a.pickle", SnapshotLimits(memory_base_bytes=200 * MIB))


@pytest.mark.slow
def test_equal_stacks_of_a_large_file_are_kept_once(tmp_path: Path):
    """Every event has a list of its own; half of the memory would be these lists."""
    frames = [{"filename": f"/a/{number}.py", "line": number, "name": "f"} for number in range(40)]
    event = {"action": "alloc", "addr": 0, "size": 512, "stream": 0}
    trace = [event | {"addr": number, "frames": frames[number % 2 :]} for number in range(150_000)]
    path = written(tmp_path / "a.pickle", {"segments": [], "device_traces": [trace]})
    read = "import sys; from harness.snapshot.child import load_plain; import gc; gc.disable();"
    count = (
        "print(len({id(e['frames'][0]) for e in load_plain(open(sys.argv[1], 'rb'))['device_traces'][0][:100_000]}))"
    )
    done = subprocess.run([sys.executable, "-c", read + count, path], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_reading_ends_at_the_time_limit(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained(num_steps=20).snapshot())
    assert " 0 s" in refused(path, SnapshotLimits(time_base_s=0.01, time_per_byte_s=0))


def test_a_shell_that_allows_less_memory_is_kept_to(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained().snapshot())
    child = f"{sys.executable} -m harness.snapshot.child a {path.stat().st_size} {2**40} < {path}"
    done = subprocess.run(["bash", "-c", f"ulimit -v 4000000; {child}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:8]) == (0, '{"file":'), done.stderr


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path):
    path = tmp_path / "a.pickle"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)  # takes no room on the disk
    assert "3221 MB" in refused(path)
