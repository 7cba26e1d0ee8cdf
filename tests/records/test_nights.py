"""Sweeps and nights on disk."""

import re

import pytest
from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.records.batches import NIGHT_FOLDERS, append_event
from harness.records.night import NightEvent, NightPlan, PlannedCase, RefusedCase, read_night, run_dir_of
from harness.records.references import folder_of, run_id_of
from harness.records.store import record_path, write_record
from harness.records.sweep import PlannedCell, RefusedCell, SweepPlan
from tests.commands import refused
from tests.nightly.night_recordings import plan_of


@pytest.fixture(name="night")
def _night(tmp_path, make_spec):
    """A planned night with one case."""
    folder = NIGHT_FOLDERS.new_dir(tmp_path, "smoke")
    case = PlannedCase(name="dense.core_attn,layernorm", spec=make_spec(gpu="cpu"), repeats=2)
    NIGHT_FOLDERS.write_plan(folder, plan_of(case, night_id=folder.name))
    return folder


CASE = "dense.core_attn,layernorm"


def start(night, number, purpose="repeat", reason=""):
    append_event(night, NightEvent(time="2026-01-02T03:04:06Z", kind="started", case=CASE, number=number, purpose=purpose,
                                   reason=reason))  # fmt: skip
    run_dir = run_dir_of(night, CASE, number)
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def runs(night):
    return [
        (run.number, run.purpose, run.reason, run.record and run.record.status)
        for run in read_night(night).cases[0].runs
    ]


def test_a_run_that_was_begun_is_there_and_started_again_counts_for_its_first_reason(night, make_record, make_spec):
    start(night, 3, "retry", "run 0 ended by: port taken")
    assert runs(night) == [(3, "retry", "run 0 ended by: port taken", None)]
    write_record(start(night, 3, "repeat"), make_record(make_spec(gpu="cpu")))
    assert runs(night) == [(3, "retry", "run 0 ended by: port taken", "ok")]


def test_a_plan_is_written_once(night):
    with pytest.raises(FileExistsError):
        NIGHT_FOLDERS.write_plan(night, read_night(night).plan)


def test_the_id_of_a_run_is_a_file_name_and_finds_that_run_only(night, tmp_path, make_spec, make_record):
    ids = {run_id_of("night", name, 0) for name in ("a,b", "a-b", "a:b", "a b")}
    assert len(ids) == 4 and all(re.fullmatch(r"[a-z0-9.-]+", run_id) for run_id in ids)
    run_dir = start(night, 0)
    write_record(run_dir, make_record(make_spec(gpu="cpu")))
    assert all(
        record_path(run_id_of(start_of_id, CASE, 0), tmp_path).parent == run_dir
        for start_of_id in (night.name, night.name[-8:])
    )
    with pytest.raises(BadRequestError):
        record_path(run_id_of(night.name, CASE, 1), tmp_path)


def test_a_command_to_copy_is_quoted(night, tmp_path):
    moved = night.rename(tmp_path / "a night")
    refused(lambda: folder_of(moved, "sweep"), f"mbr-perf nightly --resume '{moved}'")


def sweep_plan(*cells):
    return SweepPlan(sweep_id="s", title="t", recipe="llama3_8b", gpu="cpu", control="none", axes=(), grid=False, repeats=1,
                     cells=cells, command=("mbr-perf",), started_at="2026-03-04T05:06:07Z", mbr_perf="0.1.0")  # fmt: skip


def cell(kind, **more):
    return kind(name="mlp", changes={"recompute": "mlp"}, recompute="mlp", **more)


def test_cells_are_read_back_as_what_they_were(make_spec):
    runs = cell(PlannedCell, index=0, spec=make_spec())
    pruned = cell(RefusedCell, index=1, spec=make_spec(), fate="pruned", reason="needs 90 GiB")
    unresolved = cell(RefusedCell, index=2, fate="illegal", reason="no such module")
    plan = SweepPlan.model_validate_json(sweep_plan(runs, pruned, unresolved).model_dump_json())
    assert plan.cells == (runs, pruned, unresolved)
    assert plan.planned == (runs,)


def test_cases_are_read_back_as_what_they_were(make_spec):
    runs = PlannedCase(name="dense", spec=make_spec(), repeats=3)
    forbidden = RefusedCase(name="moe", spec=make_spec(), repeats=3, refused="rule T08")
    unresolved = RefusedCase(name="wrong", repeats=3, refused="no such recipe")
    plan = NightPlan.model_validate_json(plan_of(runs, forbidden, unresolved).model_dump_json())
    assert plan.cases == (runs, forbidden, unresolved)
    assert plan.planned == (runs,)


def test_an_entry_that_may_run_has_an_experiment_and_a_refused_one_a_reason(make_spec):
    with pytest.raises(ValidationError, match="spec"):
        PlannedCase.model_validate({"name": "dense", "repeats": 3})
    with pytest.raises(ValidationError, match="spec"):
        cell(PlannedCell, index=0)
    with pytest.raises(ValidationError, match="refused"):
        RefusedCase(name="dense", spec=make_spec(), repeats=3, refused="")
    with pytest.raises(ValidationError, match="reason"):
        cell(RefusedCell, index=0, fate="illegal")
