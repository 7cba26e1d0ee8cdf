"""The index of history: made of the files, never the truth."""

import os
import sqlite3

import pytest

from harness.history.files import INDEX, indexed_stamps
from harness.history.store import read_history, survey_history, write_history


@pytest.fixture(name="results")
def _results(tmp_path, make_kept):
    """Three runs, asked for once, so that there is an index."""
    for number in range(3):
        write_history(tmp_path, make_kept(number))
    read_history(tmp_path)
    assert len(indexed_stamps(tmp_path / "history")) == 3
    return tmp_path


def index_of(results):
    return results / "history" / INDEX


def ids(results):
    return [record.run_id for record in read_history(results)]


def test_what_the_index_gives_is_what_the_files_hold(results, make_kept):
    assert read_history(results) == (make_kept(0), make_kept(1), make_kept(2))


def test_unchanged_files_are_not_opened_again(results):
    """Their stamps are the same, so that what the index took in is answered, whatever they hold by now."""
    for path in (results / "history").rglob("*.json"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ids(results) == ["run0000", "run0001", "run0002"]
    index_of(results).unlink()
    assert len(survey_history(results).notes) == 3


def test_a_new_a_changed_and_a_deleted_file_are_noticed(results, make_kept):
    write_history(results, make_kept(3))
    month = results / "history" / "202601"
    (month / "run0001.json").unlink()
    (month / "run0002.json").write_text(make_kept(2, tflops=1.0, hostname="elsewhere").model_dump_json())
    expected = (make_kept(0), make_kept(2, tflops=1.0, hostname="elsewhere"), make_kept(3))
    assert read_history(results) == expected
    assert set(indexed_stamps(results / "history")) == {f"202601/run000{number}.json" for number in (0, 2, 3)}
    assert read_history(results) == expected


def test_a_file_that_is_damaged_later_leaves_the_index_and_is_named_each_time(results):
    (results / "history" / "202601" / "run0001.json").write_text("{")
    for _ in range(2):
        reading = survey_history(results)
        assert [record.run_id for record in reading.records] == ["run0000", "run0002"]
        assert len(reading.notes) == 1 and "run0001.json" in reading.notes[0]


@pytest.mark.parametrize("damage", ["missing", "empty", "rubbish", "cut", "other layout", "other content"])
def test_an_index_that_cannot_be_used_is_made_anew(results, make_kept, damage):
    path = index_of(results)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage in ("other layout", "other content"):
        with sqlite3.connect(path) as index:
            index.execute("PRAGMA user_version = 99" if damage == "other layout" else "UPDATE runs SET packed = x'00'")
        index.close()
    else:
        path.write_bytes({"empty": b"", "rubbish": os.urandom(9000), "cut": whole[: len(whole) // 2]}[damage])
    reading = survey_history(results)
    assert (reading.records, reading.notes) == ((make_kept(0), make_kept(1), make_kept(2)), ())
    assert len(indexed_stamps(results / "history")) == 3


def test_where_no_index_can_be_kept_the_answer_is_the_same_and_reports_it(results, make_kept):
    path = index_of(results)
    path.unlink()
    path.mkdir()
    reading = survey_history(results)
    assert reading.records == (make_kept(0), make_kept(1), make_kept(2))
    assert len(reading.notes) == 1
    assert reading.notes[0].startswith("3 files read one by one, because mbr-perf cannot write an index in ")
