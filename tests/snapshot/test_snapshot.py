"""`mbr-perf snapshot` as its users call it."""

import json
import os
from pathlib import Path

import pytest

from harness.app import main
from tests.snapshot_pickles import MIB, Allocator, fragmented, written


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["snapshot", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.out, captured.err


def test_a_failed_request_is_explained_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, _ = printed(capsys, written(tmp_path / "a.pickle", fragmented().snapshot()))
    assert "Fragmentation (high)" in out
    assert "stranded 4.30 GiB" in " ".join(out.split())
    assert "expandable_segments:True" in out


def test_one_json_document_holds_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, _ = printed(capsys, written(tmp_path / "a.pickle", fragmented().snapshot()), "--json")
    document = json.loads(out)
    assert document["schema_version"] == 1
    assert document["verdict"]["class"] == "fragmentation"
    assert document["devices"][0]["stranded_bytes"] == 200 * 22 * 2**20


def test_names_in_a_stack_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    allocator = Allocator()
    allocator.alloc(64 * MIB, [{"filename": "/job/[/red][link=x]model.py", "line": 7, "name": "[/bold]"}])
    assert "[/red][link=x]model.py" in printed(capsys, written(tmp_path / "a.pickle", allocator.snapshot()))[0]


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    """A folder with what is no snapshot."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    (tmp_path / "run" / "ranks" / "snapshot_000.pickle").touch()
    (tmp_path / "text.pickle").write_text("hello")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "nosuch: cannot be read"),
        ("empty", "empty: it is damaged"),
        ("pipe", "pipe: a folder, a pipe"),
        ("/dev/zero", "not a file"),
        ("run", "/run/ranks/snapshot_000.pickle"),
        ("text.pickle", "text.pickle: "),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused_with_a_remedy(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
):
    assert message in printed(capsys, place / name, code=2)[1]


@pytest.mark.parametrize("option", ["--memory_snapshot", "--snapshot_on_oom"])
def test_on_a_processor_there_is_nothing_to_take_a_snapshot_of(capsys: pytest.CaptureFixture[str], option: str):
    with pytest.raises(SystemExit) as ended:
        main(["run", "-mr", "llama3_8b", "-g", "cpu", option, "--dryrun"])
    assert ended.value.code == 2
    assert "CPU19: " in capsys.readouterr().err


def test_a_run_that_is_recorded_throughout_says_that_it_is_slowed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["run", "-mr", "llama3_8b", "-g", "h100", "--snapshot_on_oom", "--dryrun"])
    assert ended.value.code == 0
    assert "RUN07" in "".join(capsys.readouterr())
