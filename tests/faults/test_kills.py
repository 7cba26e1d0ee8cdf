"""The command and its sampler are killed, ranks hang after their records, a clock is set back, and a night is interrupted."""

import json
import signal

import pytest

from harness.launch.processes import is_alive, send
from harness.records.store import read_run
from tests.faults.stage import RECIPE, SETTINGS
from tests.waiting import wait_until


@pytest.mark.slow
def test_a_killed_harness_leaves_no_process_and_an_incomplete_run_that_is_shown_so(run, only_run, gone, mbr_perf):
    with run(wait="/nowhere") as running:
        there = running.victims(agent=1, rank=2, sampler=1)
        running.process.kill()
        running.ended()
    assert running.process.returncode == -signal.SIGKILL
    assert gone(*there["agent"], *there["rank"], *there["sampler"])
    run_dir = only_run()
    assert not (run_dir / "record.json").exists()
    shown = mbr_perf("results", "show", run_dir)
    assert f"process {running.process.pid} is gone" in shown.out
    assert mbr_perf("compare", run_dir).code == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_its_steps_and_no_process(run, only_run, gone, number, code):
    with run(wait="/nowhere") as running:
        there = running.victims(agent=1, rank=2, sampler=1)
        steps = only_run() / "ranks" / "rank_001.progress.jsonl"
        assert wait_until(lambda: steps.is_file() and '"step":1' in steps.read_text().replace(" ", ""), 60.0)
        running.process.send_signal(number)
        ended, out, _ = running.ended()
    record, lines = read_run(only_run()), out.splitlines()
    assert ended == code
    assert [line.partition(": ")[0] for line in lines] == [f"INTERRUPTED (exit {code})", "Kept", "Start again"]
    assert lines[1] == f"Kept: {only_run()}"
    assert (record.status, record.failure) == ("interrupted", f"interrupted by {number.name}")
    assert len(record.ranks[1].steps) == 2
    assert gone(*there["agent"], *there["rank"], *there["sampler"], within_s=1)


@pytest.mark.slow
def test_a_killed_sampler_costs_the_run_its_verdict_and_not_its_steps(run, only_run, tmp_path):
    go_on = tmp_path / "go_on"
    with run(wait=str(go_on)) as running:
        send(running.victims(rank=2, sampler=1)["sampler"][0], signal.SIGKILL)
        go_on.touch()
        code, _, _ = running.ended()
    record = read_run(only_run())
    assert (code, record.status) == (0, "ok")
    assert ["SIGKILL; see logs/sampler.log" in why for why in record.suspect] == [True]
    assert all(len(rank.steps) == 4 for rank in record.ranks)


@pytest.mark.slow
def test_a_hang_after_the_last_step_is_a_finished_run_with_a_note(run, only_run, gone):
    with run("--hang_timeout", "2", linger=1) as running:
        there = running.victims(rank=2)
        code, out, _ = running.ended()
    record = read_run(only_run())
    assert (code, record.status, record.failure) == (0, "ok", None)
    assert [len(rank.steps) for rank in record.ranks] == [4, 4]
    assert sum("records" in note for note in record.notes) == 1
    assert out.startswith("OK: ")
    assert "blocked_for_ever" in (only_run() / "logs" / "rank_001.log").read_text()
    assert gone(*there["rank"], within_s=1)


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_no_duration(run, only_run, shifted_clock):
    began, variables = shifted_clock
    with run(
        "--pass_env", "LD_PRELOAD", "--pass_env", "CLOCK_SET_BACK", touch=str(began), variables=variables
    ) as running:
        code, _, err = running.ended()
    record = read_run(only_run())
    assert (code, record.status) == (0, "ok"), err
    assert record.provenance.finished_at < record.provenance.started_at
    assert 0.2 < record.provenance.duration_s < 100


REQUEST = f"model_recipe_name: {RECIPE}, gpu: h100, set_values: [{', '.join(SETTINGS)}]"
SUITE = f"""title: Two cases
cases:
  - {{name: one, golden: optional, request: {{{REQUEST}}}}}
  - {{name: two, golden: optional, request: {{{REQUEST}, recompute_modules: none}}}}
"""


@pytest.mark.slow
def test_an_interrupted_night_keeps_its_first_case_and_is_resumed(stage, started, tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    stage.let(wait="/nowhere", where="cases/two")
    with started(stage.command("nightly", tmp_path / "suite.yaml", "--results_dir", tmp_path, "--json")) as night:
        there = night.victims(until=lambda: list(tmp_path.glob("nights/*/cases/two/*")) != [], rank=2, sampler=1)
        night.process.send_signal(signal.SIGINT)
        code, _, err = night.ended()
    assert code == 130, err
    assert not [process for kind in there.values() for process in kind if is_alive(process)]
    (night_dir,) = (tmp_path / "nights").iterdir()
    (first,) = night_dir.glob("cases/one/*/record.json")
    before = first.read_bytes()
    stage.let()
    with started(stage.command("nightly", "--resume", night_dir, "--json")) as night:
        code, out, err = night.ended()
    assert code == 0, err
    assert [case["outcome"] for case in json.loads(out)["cases"]] == ["pass", "pass"]
    assert first.read_bytes() == before
