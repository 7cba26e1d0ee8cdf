"""Problems of a night's folder, with the command that resumes it."""

import pytest

from harness.launch.processes import this_process
from harness.records.batches import NIGHT_FOLDERS
from harness.records.folders import folders
from harness.records.night import NightPlan, PlannedCase, run_dir_of
from harness.records.rank import OWNER
from harness.results.housekeeping import examine_results, move_to_trash


@pytest.fixture(name="night")
def _night(tmp_path, make_spec):
    """A planned night with one case that has not run."""
    folder, case = (
        NIGHT_FOLDERS.new_dir(tmp_path, "smoke"),
        PlannedCase(name="dense", spec=make_spec(gpu="cpu"), repeats=2),
    )
    NIGHT_FOLDERS.write_plan(folder, NightPlan(night_id=folder.name, suite="smoke", title="Smoke", cases=(case,), confirm=2, retries=1,
                                 command=("mbr-perf",), started_at="2026-01-02T03:04:05Z", mbr_perf="0.1.0"))  # fmt: skip
    return folder


def test_an_unfinished_night_is_named_with_the_command_that_resumes_it(night, tmp_path):
    (ailment,) = examine_results(tmp_path)
    assert (ailment.kind, ailment.remedy, ailment.movable) == (
        "unfinished",
        f"mbr-perf nightly --resume {night}",
        False,
    )


def test_a_damaged_run_of_a_night_goes_to_the_trash_after_its_process_ended(night, tmp_path):
    run_dir = run_dir_of(night, "dense", 0)
    run_dir.mkdir(parents=True)
    (run_dir / "record.json").write_text("{")
    owner = this_process().model_copy(update={"start_ticks": 1})
    (night / OWNER).write_text(owner.model_dump_json())
    (ailment,) = (each for each in examine_results(tmp_path) if each.kind == "damaged" and each.movable)
    move_to_trash((ailment,), tmp_path)
    assert folders(night / "cases" / "dense") == ()
    assert [ailment.kind for ailment in examine_results(tmp_path)] == ["unfinished"]
