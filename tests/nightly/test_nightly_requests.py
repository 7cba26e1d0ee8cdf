"""What `mbr-perf nightly` refuses before anything starts."""

import json

import pytest

from harness.launch.environment import this_host
from harness.nightly.plan import unable
from harness.records.batches import BatchLaunch
from harness.records.job import SlurmOptions
from harness.records.night import PlannedCase
from tests.commands import REPLAYS
from tests.nightly.night_recordings import RECIPE, plan_of


@pytest.fixture(name="made")
def _made(stage):
    return stage(dense="repeats: 1")


def test_what_is_wrong_with_the_request_is_reported_at_once_and_nothing_is_written(made, nightly, tmp_path):
    answer = nightly(made, "--confirm", "-1", "--only", "sparse*", "--golden_dir", tmp_path / "none")
    assert answer.code == 2
    for expected in ("--confirm -1", "--only sparse*", "--golden_dir"):
        assert expected in answer.err
    assert not made.nights.exists()


def test_what_is_wrong_in_the_suite_is_reported_with_what_is_wrong_with_the_options(made, nightly, tmp_path):
    made.suite.write_text(made.suite.read_text().replace("repeats: 1", "repeats: none"))
    answer = nightly(made, "--partition", "batch", "--junit", tmp_path / "none" / "junit.xml")
    assert answer.code == 2
    for expected in ("--partition: only with --launcher slurm", "--junit", "repeats: "):
        assert expected in answer.err


def test_a_dry_run_reports_where_results_could_not_be_kept(made, mbr_perf):
    answer = mbr_perf("nightly", made.suite, "--dryrun", "--results_dir", "/proc/none")
    assert (answer.code, "--results_dir /proc/none: " in answer.err) == (2, True)


def test_recorded_runs_are_for_the_replay_launcher_only(made, mbr_perf):
    for command in (("nightly", made.suite), ("run", "-mr", RECIPE, "-g", "cpu"),
                    ("sweep", "-mr", RECIPE, "-g", "cpu", "--over", "recompute=none")):  # fmt: skip
        answer = mbr_perf(
            *command, "--from", "/none", "--confirm" if command[0] == "nightly" else "-ms", "5", "--dryrun"
        )
        assert (answer.code, "--from /none: only with --launcher replay" in answer.err) == (2, True)


def test_cases_with_too_few_steps_are_named_before_the_night(mbr_perf, tmp_path):
    suite = tmp_path / "short.yaml"
    suite.write_text(
        "title: Short\nsource: here\ndefaults:\n  request: {model_recipe_name: llama3_8b, gpu: cpu, max_steps: 3}\n"
        "cases:\n  - name: dense\n    request: {recompute: [none, mlp]}\n"
    )
    short, shipped = (mbr_perf("nightly", str(name), "--dryrun", "-v").out for name in (suite, "cpu_smoke"))
    notes = [line for line in short.splitlines() if "will count" in line]
    assert len(notes) == 1
    assert "-ms" not in notes[0]  # which nightly does not have
    assert "will count" not in shipped


@pytest.mark.parametrize("option", ["--detach", "--no_submit"])
def test_a_night_cannot_leave_its_jobs_alone(made, mbr_perf, option):
    asked = ("--launcher", "slurm", "--time_limit", "10", option)
    answer = mbr_perf("nightly", made.suite, *asked, "--dryrun")
    assert (answer.code, option in answer.err) == (2, True)


def test_a_replay_is_not_predicted(made, nightly):
    (case,) = json.loads(nightly(made, "--dryrun", "--json").out)["cases"]
    assert (case["prediction"], case["no_prediction"].startswith("replayed")) == (None, True)


@pytest.mark.parametrize(
    ("changes", "sources", "why"),
    [
        ({}, {}, "32 GPUs need 4 nodes"),
        ({"launch": BatchLaunch(launcher="replay", replay_from=REPLAYS)}, {}, "is not a run folder"),
        ({"cluster": SlurmOptions(time_limit_minutes=30)}, {"gpu": "this machine"}, "whose GPU"),
        ({"cluster": SlurmOptions(time_limit_minutes=30)}, {}, None),
    ],
)
def test_a_case_says_why_it_cannot_start_here(make_spec, changes, sources, why):
    case = PlannedCase(name="a", spec=make_spec(), repeats=1, sources=sources)
    found = unable(plan_of(case, **changes), case, this_host())
    assert found is None if why is None else why in found.message


def test_a_folder_of_goldens_that_does_not_exist_is_refused_with_how_to_make_it(mbr_perf, tmp_path):
    answer = mbr_perf("nightly", "smoke", "--golden_dir", tmp_path / "new")
    assert (answer.code, f"mkdir -p {tmp_path / 'new'}" in answer.err) == (2, True)
