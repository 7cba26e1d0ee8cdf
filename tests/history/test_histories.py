"""History: one file, to which any number of processes add; read back whatever happened to it."""

import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from harness.errors import BadRequestError, RunFailedError
from harness.history.store import history_file, read_history, survey_history, write_history
from tests.conftest import build_kept

LOCK, ROOT = "runs.lock", Path(__file__).parents[2]


def test_a_run_that_history_has_stays_as_it_was(tmp_path, make_kept):
    assert write_history(tmp_path, [make_kept()]) == (make_kept(),)
    assert write_history(tmp_path, [make_kept(tflops=1.0), make_kept(1)]) == (make_kept(), make_kept(1))
    assert read_history(tmp_path) == (make_kept(), make_kept(1))


def test_a_start_that_is_no_time_is_refused_and_a_folder_in_which_nothing_can_be_written_is_named(tmp_path, make_kept):
    with pytest.raises(BadRequestError):
        write_history(tmp_path, [make_kept(started_at="yesterday")])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "history").write_text("a file in the way")
    with pytest.raises(RunFailedError, match="history"):
        write_history(tmp_path, [make_kept()])
    assert read_history(tmp_path) == ()


def test_runs_are_found_by_case_fingerprint(tmp_path, make_kept):
    others = [make_kept(1, case="cpu/other"), make_kept(2, fingerprint="ffff")]
    write_history(tmp_path, [make_kept(0), *others, make_kept(3)])

    def found(**asked):
        return [record.run_id for record in survey_history(tmp_path, **asked).records]

    assert found(case="cpu/other") == ["run0001"]
    assert found(case=make_kept().case) == ["run0000", "run0002", "run0003"]
    assert found(case=make_kept().case, fingerprint="ffff") == ["run0002"]


def test_a_run_of_a_newer_program_is_named_and_skipped(tmp_path, make_kept):
    write_history(tmp_path, [make_kept(0), make_kept(1)])
    newer = make_kept(1).model_dump_json().replace('"schema_version":1', '"schema_version":99')
    with closing(sqlite3.connect(history_file(tmp_path))) as base, base:
        base.execute("UPDATE runs SET record = ? WHERE run_id = 'run0001'", (newer,))
    reading = survey_history(tmp_path)
    assert [record.run_id for record in reading.records] == ["run0000"]
    (note,) = reading.notes
    assert "run0001" in note and "schema_version" in note


def _add(results, first, num):
    for number in range(first, first + num):
        write_history(results, [build_kept(number)])


@pytest.mark.slow
def test_two_nights_at_once_lose_no_run(tmp_path):
    spawning = multiprocessing.get_context("spawn")
    nights = [spawning.Process(target=_add, args=(tmp_path, 100 * night, 40)) for night in range(2)]
    for night in nights:
        night.start()
    for night in nights:
        night.join()
    assert [night.exitcode for night in nights] == [0, 0]
    numbers = [int(record.run_id.removeprefix("run")) for record in read_history(tmp_path)]
    assert numbers == [*range(40), *range(100, 140)]


def test_a_writer_that_holds_the_file_is_reported_with_its_path(tmp_path, make_kept):
    write_history(tmp_path, [make_kept()])
    holder = f"import fcntl, sys; f = open({str(tmp_path / 'history' / LOCK)!r}); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(RunFailedError, match=LOCK):
            write_history(tmp_path, [make_kept(1)], patience_s=0.1)
        process.stdin.close()
    assert len(read_history(tmp_path)) == 1


def test_a_file_that_another_program_locks_is_reported_with_its_path(tmp_path, make_kept):
    write_history(tmp_path, [make_kept()])
    with closing(sqlite3.connect(history_file(tmp_path), isolation_level=None)) as base:
        base.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunFailedError, match=r"runs\.sqlite.*locked"):
            survey_history(tmp_path, patience_s=0.1)
        with pytest.raises(RunFailedError, match=r"runs\.sqlite.*locked"):
            write_history(tmp_path, [make_kept(1)], patience_s=0.1)


@pytest.mark.parametrize("damage", ["cut", "text", "middle"])
def test_a_damaged_file_ends_every_command_with_its_path(mbr_perf, tmp_path, make_kept, damage):
    write_history(tmp_path, [make_kept(number) for number in range(20)])
    path = history_file(tmp_path)
    content = path.read_bytes()
    middle = content[:4096] + b"\xff" * 4096 + content[8192:]
    broken = {"cut": content[:5000], "text": b"not sqlite" * 900, "middle": middle}
    path.write_bytes(broken[damage])
    for arguments in ((), ("h100/llama3_70b",), ("add", ROOT / "tests" / "data" / "sweeps" / "cpu_oom")):
        answer = mbr_perf("history", *arguments, "--results_dir", tmp_path)
        assert (answer.code, str(path) in answer.err) == (3, True)
    night = mbr_perf("nightly", "cpu_smoke", "--results_dir", tmp_path)
    assert (night.code, (tmp_path / "nights").exists()) == (3, False)


@pytest.mark.slow
def test_a_folder_that_may_only_be_read_is_read(tmp_path, make_kept):
    write_history(tmp_path, [make_kept()])
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 77; exec "$@"'
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    words = ["unshare", "--mount", *as_root, "sh", "-c", script, str(tmp_path)]

    def answer(*command):
        command = [sys.executable, "-m", "harness.app", "history", *command, "--results_dir", str(tmp_path)]
        return subprocess.run([*words, *command], cwd=ROOT, capture_output=True, text=True, check=False)

    shown = answer()
    if shown.returncode == 77:
        pytest.skip(f"no folder can be mounted here: {shown.stderr}")
    assert (shown.returncode, make_kept().case in shown.stdout) == (0, True)
    added = answer("add", str(ROOT / "tests" / "data" / "sweeps" / "cpu_oom"))
    assert (added.returncode, str(tmp_path / "history" / LOCK) in added.stderr) == (3, True)


def _add_without_room(results):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        write_history(results, [build_kept(number) for number in range(1, 100)])
    except RunFailedError as error:
        os._exit(3 if str(history_file(results)) in error.message else 1)


def test_a_full_disk_keeps_what_was_there(tmp_path, make_kept):
    write_history(tmp_path, [make_kept()])
    process = multiprocessing.get_context("spawn").Process(target=_add_without_room, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 3
    assert read_history(tmp_path) == (make_kept(),)
