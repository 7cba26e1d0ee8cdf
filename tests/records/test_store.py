"""Files are written whole, and stay readable for their owner."""

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.errors import RunFailedError
from harness.records.folders import checkout_dir, results_dir
from harness.records.store import new_run_dir, read_run, write_atomically, write_once, write_record
from tests.commands import refused

ROOT = Path(__file__).parents[2]


def test_a_run_folder_is_named_by_time_recipe_and_chance(tmp_path):
    first, second = (new_run_dir(tmp_path, "llama3_8b") for _ in range(2))
    assert first.parent == tmp_path / "runs"
    began = datetime.strptime(first.name.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - began) < timedelta(minutes=1)
    assert re.fullmatch("-llama3_8b-[0-9a-f]{8}", first.name[16:])
    assert first != second
    assert sorted(p.name for p in first.iterdir()) == ["logs", "ranks"]
    assert first.stat().st_mode & 0o007 == 0
    of_a_path = new_run_dir(tmp_path, "../../etc/my recipe.yaml").name
    assert of_a_path[16:].startswith("-etc-my-recipe.yaml-")


def test_results_that_cannot_be_written_are_a_bad_request(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    refused(lambda: new_run_dir(tmp_path, "llama3_8b"), str(tmp_path / "runs"))


def test_results_are_in_the_checkout_by_default(tmp_path):
    assert checkout_dir() == ROOT
    assert results_dir() == ROOT / "results"
    assert results_dir(tmp_path) == tmp_path


def test_a_record_reads_back_as_it_was_written(tmp_path, make_record):
    record = make_record()
    assert write_record(tmp_path, record) == tmp_path / "record.json"
    assert read_run(tmp_path) == record
    assert read_run(tmp_path / "record.json") == record
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_committed_run_is_never_overwritten(tmp_path, make_record):
    write_record(tmp_path, make_record())
    with pytest.raises(RunFailedError, match="never overwrites"):
        write_record(tmp_path, make_record(status="failed"))
    assert read_run(tmp_path).status == "ok"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_run_is_found_by_the_start_of_its_id_or_by_its_digits_and_else_candidates_are_named(tmp_path, make_record):
    names = ("20260304T050607Z-llama3_8b-0a1b2c3d", "20260305T050607Z-llama3_8b-99999999")
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_record(tmp_path / "runs" / name, make_record(run_id=name))
    for reference in ("20260304", "0a1b2c3d", names[0]):
        assert read_run(reference, tmp_path).run_id == names[0]
    refused(lambda: read_run("2026", tmp_path), " 2 folders", *names)
    refused(lambda: read_run("1999", tmp_path), "1999")
    for slip in ("20260304T050607Z-lama3_8b-0a1b2c3d", "0a1b2c3e"):
        refused(lambda slip=slip: read_run(slip, tmp_path), f"'{names[0]}'")


def test_a_run_that_was_never_committed_says_so(tmp_path):
    refused(lambda: read_run(tmp_path), "no record.json: ")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"schema_version": 1', '"schema_version": 2', "record.json:2: schema_version: "),
        ('"status": "ok"', '"status": "ok", "status": "oom"', "record.json: duplicate key 'status'"),
        ('"duration_s": 60.0', '"duration_s": NaN', "provenance.duration_s"),
        ('"duration_s": 60.0', '"duration_s": "60"', "provenance.duration_s"),
        ("{", "[", "not JSON"),
        ('"status": "ok"', '"status": "fine"', "record.json:4: status: "),
        ('"status": "ok"', '"status": "ok", "colour": "red"', "record.json:4: colour: "),
    ],
)
def test_a_record_that_lies_is_refused_by_file_and_key(tmp_path, make_record, old, new, expected):
    path = write_record(tmp_path, make_record())
    path.chmod(0o640)
    path.write_text(path.read_text().replace(old, new, 1))
    refused(lambda: read_run(path), str(path), expected, num=None)


def test_a_full_disk_keeps_the_old_content_and_leaves_nothing_behind(tmp_path):
    """A file size limit makes write() fail half-way, as a full disk does."""
    path = tmp_path / "golden.json"
    write_atomically(path, "old")
    assert path.stat().st_mode & 0o007 == 0
    script = (
        "import resource, signal, sys; from pathlib import Path; from harness.records.store import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_atomically(Path(sys.argv[1]), 'x' * 100_000)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert f"OSError: [Errno {errno.EFBIG}]" in ended.stderr
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["golden.json"]


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_content_or_the_new(tmp_path):
    path = tmp_path / "record.json"
    write_atomically(path, json.dumps({"n": -1, "fill": "x" * 200_000}))
    script = (
        "import json, sys; from pathlib import Path; from harness.records.store import write_atomically\n"
        "print('go', flush=True)\n"
        "for n in range(10**6): write_atomically(Path(sys.argv[1]), json.dumps({'n': n, 'fill': 'x' * 200_000}))"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        with writer:
            writer.stdout.readline()
            for _ in range(20):
                assert len(json.loads(path.read_text())["fill"]) == 200_000
            writer.kill()
        assert len(json.loads(path.read_text())["fill"]) == 200_000


def test_a_number_too_long_to_calculate_with_is_refused(tmp_path, make_record):
    """A division of such a number would overflow in a later command, and Python reads at most 4300 digits."""
    path = tmp_path / "record.json"
    document = make_record().model_dump_json()
    for number in ("9" * 30, "-" + "9" * 30, "9" * 4301):
        path.write_text(re.sub(r'"seconds":[0-9.]+', f'"seconds":{number}', document, count=1))
        refused(lambda: read_run(path), "record.json")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_once, "record.json"),
        (write_once, ".record.json.000000000000.tmp"),
        (write_atomically, ".record.json.000000000000.tmp"),
    ],
)
def test_a_link_planted_at_the_name_or_at_the_temporary_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None], name: str
) -> None:
    """The temporary name is drawn by chance; here the attacker has guessed it."""
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "0" * 2 * num_bytes)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(tmp_path / "record.json", "theirs")
    assert victim.read_text() == "mine"
