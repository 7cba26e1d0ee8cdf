"""Files from anywhere are opened without running or breaking anything."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from copyreg import add_extension, remove_extension
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadRequestError
from harness.snapshot.reading import SnapshotLimits, looks_like_a_snapshot, snapshot_summary
from harness.units import MIB
from tests.snapshot_pickles import trained, written


class Runs:
    """A pickle of it runs a shell command when it is loaded the usual way."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that an attack would make; it is never there."""
    path = tmp_path / "ran"
    yield path
    assert not path.exists()


def test_a_snapshot_is_summarised(tmp_path: Path):
    summary = snapshot_summary(written(tmp_path / "a.pickle", trained().snapshot()))
    assert summary.devices[0].allocated_bytes == 8 * 192 * MIB


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol_of_python_3_is_read(tmp_path: Path, protocol: int):
    path = written(tmp_path / "a.pickle", trained().snapshot(), protocol)
    assert looks_like_a_snapshot(path)
    assert snapshot_summary(path).devices[0].num_segments > 0


def test_the_attack_works_on_those_who_load_it_the_usual_way(tmp_path: Path):
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [Runs(tmp_path / "made")]}))
    subprocess.run([sys.executable, "-c", f"import pickle; pickle.load(open({str(path)!r}, 'rb'))"], check=True)
    assert (tmp_path / "made").exists()


def refused(path: Path, limits: SnapshotLimits | None = None) -> str:
    with pytest.raises(BadRequestError) as raised:
        snapshot_summary(path, limits)
    assert str(path) in raised.value.message
    return raised.value.message


def test_a_pickle_that_runs_a_command_is_refused_unrun(tmp_path: Path, marker: Path):
    assert "asks for posix.system" in refused(written(tmp_path / "evil.pickle", {"segments": [Runs(marker)]}))


@pytest.mark.parametrize(
    "module", ["builtins\neval", "os\nsystem", "subprocess\nPopen", "harness.errors\nHarnessError"]
)
def test_old_text_opcodes_reach_no_global(tmp_path: Path, marker: Path, module: str):
    path = tmp_path / "evil.pickle"
    path.write_bytes(b"c" + module.encode() + b"\n(S'touch " + str(marker).encode() + b"'\ntR.")
    assert "asks for" in refused(path)


def test_a_registered_extension_code_is_refused(tmp_path: Path, marker: Path):
    add_extension("tests.nowhere", "Thing", 241)
    try:
        path = tmp_path / "evil.pickle"
        path.write_bytes(b"\x80\x02\x82\xf1(X\x04\x00\x00\x00calltR.")
        assert "241" in refused(path) or "tests.nowhere" in refused(path)
    finally:
        remove_extension("tests.nowhere", "Thing", 241)


def test_a_persistent_id_is_refused(tmp_path: Path):
    path = tmp_path / "evil.pickle"
    path.write_bytes(b"\x80\x02X\x03\x00\x00\x00aaaQ.")
    assert "refers to objects outside the file" in refused(path)


def test_an_object_is_refused_also_where_it_is_harmless(tmp_path: Path):
    assert "asks for pathlib" in refused(written(tmp_path / "a.pickle", {"segments": [Path("x")]}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"not a pickle at all",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x04K\x01",
        b"\x80\x04h\x05.",
        b"\x80\x63.",
    ],
)
def test_what_is_no_whole_pickle_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    refused(path)


def test_a_snapshot_cut_short_is_refused(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained().snapshot())
    path.write_bytes(path.read_bytes()[:-200])
    assert "damaged, cut short or not a pickle" in refused(path)


def test_a_bomb_of_empty_dicts_meets_the_memory_limit(tmp_path: Path):
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x04](" + b"}" * 5_000_000 + b"e.")
    assert "opening it needs more than" in refused(path, SnapshotLimits(memory_base_bytes=200 * MIB))


def test_a_claimed_length_beyond_the_file_is_no_bomb(tmp_path: Path):
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc")
    refused(path)


def test_a_memo_of_four_billion_entries_meets_the_memory_limit(tmp_path: Path):
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert "opening it needs more than" in refused(path)


def test_deep_nesting_ends_in_words(tmp_path: Path):
    path = tmp_path / "deep.pickle"
    path.write_bytes(b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".")
    assert "is of type list, expected a dict" in refused(path)


def test_a_list_of_itself_ends_in_words(tmp_path: Path):
    loop: dict[str, Any] = {"segments": []}
    loop["segments"].append(loop)
    assert "segments[0].address is absent" in refused(written(tmp_path / "loop.pickle", loop))


def test_reading_ends_at_the_time_limit(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained(num_steps=20).snapshot())
    with pytest.raises(BadRequestError, match="took more than 0 s"):
        snapshot_summary(path, SnapshotLimits(time_base_s=0.01, time_per_byte_s=0))


def test_a_shell_that_allows_less_memory_is_kept_to(tmp_path: Path):
    path = written(tmp_path / "a.pickle", trained().snapshot())
    child = f"{sys.executable} -m harness.snapshot.child a {path.stat().st_size} {2**40} < {path}"
    done = subprocess.run(["bash", "-c", f"ulimit -v 4000000; {child}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:8]) == (0, '{"file":'), done.stderr


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path):
    path = tmp_path / "a.pickle"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)  # takes no room on the disk
    assert "3221 MB; mbr-perf opens files of up to 2147 MB" in refused(path)


def test_a_missing_file_is_an_error(tmp_path: Path):
    assert "no such file" in refused(tmp_path / "absent.pickle")
    assert "a folder" in refused(tmp_path)
