"""`mbr-perf compare` from options to exit code."""

import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from harness.app import spelled
from harness.compare.ask import compare
from harness.errors import BadRequestError
from harness.records.goldens import golden_text
from harness.records.store import write_record

APP = typer.Typer()
APP.command()(compare)
RUN_ID = "20260102T030405Z-llama3_70b-0a1b2c3d"


@pytest.fixture(name="results")
def _results(tmp_path, make_record):
    run_dir = tmp_path / "results" / "runs" / RUN_ID
    run_dir.mkdir(parents=True)
    write_record(run_dir, make_record(seconds=2.5, run_id=RUN_ID))
    return tmp_path / "results"


@pytest.fixture(name="golden")
def _golden(tmp_path, make_record, make_golden):
    """A golden file with the given throughput."""

    def write(tflops, **changes):
        path = tmp_path / "golden.json"
        path.write_text(golden_text(make_golden(make_record(), {"tflops_per_gpu": tflops}, **changes)))
        return path

    return write


def invoke(results, *arguments):
    return CliRunner().invoke(APP, spelled([RUN_ID, *map(str, arguments), "--results_dir", str(results)]))


@pytest.mark.parametrize(
    ("tflops", "options", "code", "outcome"),
    [
        (709.93, (), 0, "PASS"),
        (800.0, (), 5, "REGRESSION"),
        (800.0, ("--timing-threshold", "0.25"), 0, "PASS"),
        (600.0, (), 0, "IMPROVEMENT"),
        (600.0, ("--fail-on-improvement",), 7, "IMPROVEMENT"),
        (709.93, ("--eval_time_start_step", "48"), 6, "INCONCLUSIVE"),
    ],
)
def test_the_exit_code_is_the_verdict(results, golden, tflops, options, code, outcome):
    done = invoke(results, golden(tflops), *options)
    assert done.exit_code == code
    why = r"2 .* 3 .*; " if code == 6 else ""
    assert re.match(rf"{outcome}: {why}2\.500 s ", done.stdout)


def test_memory_has_its_own_threshold(results, tmp_path, make_record, make_golden):
    path = tmp_path / "golden.json"
    path.write_text(golden_text(make_golden(make_record(), {"peak_allocated_bytes": 54_000_000_000})))
    assert invoke(results, path).exit_code == 5
    assert invoke(results, path, "--memory_threshold", "0.1").exit_code == 0


def test_a_different_build_is_inconclusive_until_accepted(results, golden, make_record, make_golden):
    where = make_golden(make_record(), {}).measured_on
    assert where.versions["torch"] == "2.9.1"
    path = golden(709.0, measured_on=where.model_copy(update={"versions": {**where.versions, "torch": "2.8.0"}}))
    assert invoke(results, path).exit_code == 6
    assert invoke(results, path, "--accept_difference", "torch").exit_code == 0
    assert invoke(results, path, "--accept-difference", "software").exit_code == 0


def test_another_run_can_be_the_reference(results, make_record):
    other = results / "runs" / "20260101T000000Z-llama3_70b-11111111"
    other.mkdir()
    write_record(other, make_record(seconds=2.0, run_id=other.name))
    assert invoke(results, "11111111").exit_code == 5
    assert invoke(results, other).exit_code == 5


def test_repeats_are_judged_by_their_median(results, golden, make_record):
    for number, seconds in ((1, 2.5), (2, 9.9)):
        run_dir = results / "runs" / f"20260103T000000Z-llama3_70b-0000000{number}"
        run_dir.mkdir()
        write_record(run_dir, make_record(seconds=seconds, run_id=run_dir.name))
    done = invoke(results, golden(709.93), "--repeat", "00000001", "--repeat", "00000002", "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["metrics"]["step_time_s"]["median"]) == (0, 2.5)
    assert len(document["run_ids"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.json",), "no run 'nowhere.json'"),
        (("--golden_values_path", "nowhere"), "nowhere"),
        (("--timing_threshold", "-1"), "--timing_threshold -1.0: not a fraction"),
        (("--skip_first_percent_time", "7"), "--skip_first_percent_time"),
        (("--accept_difference", "weather"), "'weather'"),
        (("--accept_difference", "model.hiden_size"), "'model.hiden_size'"),
    ],
)
def test_a_wrong_request_is_an_error_that_names_it(results, golden, arguments, message):
    reference = () if arguments[0] in ("nowhere.json", "--golden_values_path") else (golden(709.93),)
    done = invoke(results, *reference, *arguments)
    assert isinstance(done.exception, BadRequestError)
    assert message in str(done.exception)
    assert int(done.exception.exit_code) == 2


def test_a_run_is_named_by_its_id_beside_golden_values_of_another_program(results, tmp_path):
    (tmp_path / "bridge.json").write_text('{"0": {"lm loss": 11.5}}')
    assert invoke(results, tmp_path / "bridge.json").exit_code == 6


def test_a_golden_can_be_named_as_golden_list_prints_it(results, mbr_perf):
    name = "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn"
    assert f"{name}.json" in mbr_perf("golden", "list").out
    done = invoke(results, name)
    assert f"{name}.json (external, " in done.output, done.output


def test_a_log_is_compared_with_a_golden_by_name(mbr_perf, tmp_path):
    (tmp_path / "run.log").write_text("nothing\n")
    answer = mbr_perf("compare", tmp_path / "run.log", "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn")
    assert answer.code == 6
    assert "llama3_70b.sft.fp8_cs.32gpu.core_attn.json (mbr-perf)" in answer.out
    answer = mbr_perf("compare", tmp_path / "run.log", "h100/nothing")
    assert (answer.code, "`mbr-perf golden list`" in answer.err) == (2, True)


def test_help_needs_neither_pydantic_nor_rich_tables_of_ours():
    script = "import sys, harness.compare.ask, harness.golden.ask; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "harness.show.terminal", "harness.show.page", "yaml"} & set(loaded)


@pytest.mark.parametrize("status", ["oom", "failed", "interrupted"])
def test_a_run_that_ended_badly_does_not_pass_without_a_golden(results, make_record, make_spec, status):
    batch = {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 4096}
    spec = make_spec(num_gpus=16, batch=batch)
    (results / "runs" / RUN_ID / "record.json").unlink()
    write_record(results / "runs" / RUN_ID, make_record(spec, run_id=RUN_ID, status=status, failure="rank 3 gave up"))
    done = invoke(results)
    assert (done.exit_code, f" {status}; no golden" in done.output) == (6, True)


def test_a_window_that_holds_no_step_is_a_wrong_request(results):
    assert "from step 50 on and before step 50 of 50" in str(invoke(results, "--eval_time_start_step", "50").exception)


def test_counted_work_of_an_accepted_recompute_setting_is_shown_and_not_judged(results, make_record, make_spec):
    other = results / "runs" / "20260101T000000Z-llama3_70b-22222222"
    other.mkdir()
    write_record(other, make_record(make_spec(recompute="full:uniform:1"), seconds=2.5, run_id=other.name))
    assert (done := invoke(results, other)).exit_code == 6
    assert "mbr-perf explain" in done.output
    answer = json.loads(invoke(results, other, "--accept_difference", "recompute", "--json").stdout)
    work = next(row for row in answer["comparison"] if row["metric"] == "counted_flops_per_step")
    assert (answer["exit_code"], work["verdict"]) == (0, "not_gated")
