"""History: written once by any number of processes, read back whatever lies there."""

from datetime import UTC, datetime

import pytest

from harness.errors import BadRequestError, RunFailedError
from harness.history.store import read_history, survey_history, write_history


def test_the_same_record_again_changes_nothing(tmp_path, make_kept):
    path = write_history(tmp_path, make_kept())
    before = path.stat().st_mtime_ns
    assert write_history(tmp_path, make_kept()) == path
    assert path.stat().st_mtime_ns == before


def test_other_content_under_the_same_id_is_refused_and_the_first_stays(tmp_path, make_kept):
    write_history(tmp_path, make_kept())
    with pytest.raises(RunFailedError, match="exists with other content"):
        write_history(tmp_path, make_kept(tflops=1.0))
    assert read_history(tmp_path) == (make_kept(),)


@pytest.mark.parametrize("changes", [{"run_id": "../../escape"}, {"run_id": ".hidden"}, {"started_at": "yesterday"}])
def test_what_is_no_name_or_no_time_is_refused(tmp_path, make_kept, changes):
    with pytest.raises(BadRequestError):
        write_history(tmp_path, make_kept(**changes))
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_folder_is_named(tmp_path, make_kept):
    (tmp_path / "history").write_text("a file in the way")
    with pytest.raises(RunFailedError, match="history"):
        write_history(tmp_path, make_kept())


def test_runs_are_found_by_case_fingerprint_and_time(tmp_path, make_kept):
    for record in (make_kept(0), make_kept(1, case="cpu/other"), make_kept(2, fingerprint="ffff"), make_kept(3)):
        write_history(tmp_path, record)

    def found(**asked):
        return [record.run_id for record in survey_history(tmp_path, **asked).records]

    assert found(case="cpu/other") == ["run0001"]
    assert found(case=make_kept().case) == ["run0000", "run0002", "run0003"]
    assert found(case=make_kept().case, fingerprint="ffff") == ["run0002"]
    assert found(since=datetime(2026, 1, 3, 2, tzinfo=UTC)) == ["run0002", "run0003"]


def test_a_damaged_and_a_newer_file_are_named_and_skipped(tmp_path, make_kept):
    good, damaged, newer = (write_history(tmp_path, make_kept(number)) for number in range(3))
    damaged.write_text(damaged.read_text()[:50])
    newer.write_text(newer.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    reading = survey_history(tmp_path)
    assert [record.run_id for record in reading.records] == [good.stem]
    assert len(reading.notes) == 2
    assert str(damaged) in reading.notes[0] and "not JSON" in reading.notes[0]
    assert str(newer) in reading.notes[1] and "schema_version" in reading.notes[1]


def test_what_a_writer_has_not_finished_is_no_record(tmp_path, make_kept):
    path = write_history(tmp_path, make_kept())
    path.with_name(f".{path.name}.0123456789ab.tmp").write_text("half")
    path.with_name(f".{path.name}").write_text("half")
    reading = survey_history(tmp_path)
    assert (len(reading.records), reading.notes) == (1, ())
