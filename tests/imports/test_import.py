"""`mbr-perf import`: training logs as runs that every other command reads."""

import hashlib
import json
import os
import re

import pytest

from harness.records.golden import GoldenRecord, golden_text
from harness.records.store import read_run
from tests.imported_logs import TABLE, Job, iteration, job_log
from tests.imports import logs

SFT = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "--cuda_graph_impl", "none")


@pytest.fixture(name="results")
def _results(tmp_path):
    return tmp_path / "results"


@pytest.fixture(name="imported")
def _imported(mbr_perf, tmp_path, results):
    """Import one log with the published settings; return the answer and the document."""

    def run(text, *options):
        (tmp_path / "job.log").write_text(text)
        answer = mbr_perf("import", tmp_path / "job.log", *SFT, "--results_dir", results, "--json", *options)
        return answer, json.loads(answer.out)

    return run


def test_a_log_becomes_a_run_of_its_ranks_with_its_origin(imported, results, tmp_path):
    answer, document = imported(job_log(TABLE[1]), "--recompute", "mlp")
    record = read_run(document["run_id"], results)

    assert answer.code == 0
    assert "llama3_70b-imported" in document["run_id"]
    assert document["metrics"]["tflops_per_gpu"]["median"] == pytest.approx(593.6, rel=1e-3)
    assert document["imported"]["own_throughput"]["median"] == 593.6
    assert abs(document["imported"]["own_throughput"]["change"]) < 0.001
    assert record.imported.source_format == "bridge"
    assert record.imported.files[0].sha256 == hashlib.sha256((tmp_path / "job.log").read_bytes()).hexdigest()
    assert record.provenance.driver_version is None
    assert record.provenance.versions == {}
    assert record.notes[0].startswith("imported from a training log (Megatron-Bridge, 1 file)")
    # Ranks that the log does not name are absent.
    with_memory = [rank.rank for rank in record.ranks if rank.memory]
    assert with_memory == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    assert [rank.rank for rank in record.ranks if rank.steps] == [31]
    assert document["metrics"]["peak_allocated_bytes"]["value"] == 55_600_000_000
    assert document["metrics"]["peak_device_bytes"] is None


def test_settings_that_a_rule_refuses_are_imported_with_a_note_of_the_rule(imported, results):
    _, document = imported(job_log(TABLE[1]), "--recompute", "moe")
    (note,) = (note for note in read_run(document["run_id"], results).notes if note.startswith("rules refuse"))
    assert re.search(r"settings: [A-Z]+-?\w*; check", note)


def test_the_memory_of_a_single_rank_is_not_the_peak_of_the_job(imported):
    text = "\n".join(line for line in job_log(TABLE[1]).splitlines() if "[Rank " not in line or "[Rank 0]" in line)
    _, document = imported(text, "--recompute", "mlp")

    assert document["metrics"]["peak_allocated_bytes"]["rank"] == 0
    problem = document["metrics"]["problems"]["peak_allocated_bytes"]
    assert " 30 of 32 ranks," in problem
    assert any("memory of 31 of 32 ranks" in note for note in document["notes"])


def test_an_out_of_memory_log_is_an_out_of_memory_run(imported, results):
    answer, document = imported(job_log(TABLE[0]), "--recompute", "core_attn")
    rank = read_run(document["run_id"], results).ranks[0]

    assert answer.code == 4
    assert (document["outcome"], document["status"]) == ("oom", "oom")
    assert document["failure"].startswith("rank 0 ") and " iteration 2 (" in document["failure"]
    assert (rank.failure.kind, rank.failure.phase, rank.failure.step) == ("oom", "forward_backward", 2)
    assert rank.failure.request_bytes == 896 * 2**20
    assert rank.memory.max_allocated_bytes == 58_800_000_000


@pytest.mark.parametrize("ending", ["", "slurmstepd: error: *** STEP 4.0 ON n CANCELLED AT NOON DUE TO TIME LIMIT ***"])
@pytest.mark.parametrize(("tflops", "code"), [(704.0, 6), (600.0, 5)])
def test_a_log_that_has_not_finished_is_judged_up_to_its_end_and_provisional(imported, results, ending, tflops, code):
    text = "\n".join([*job_log(Job("core_attn", tflops, 58.8)).splitlines()[:-6], ending])
    answer, document = imported(text, "--recompute", "core_attn")

    assert (answer.code, document["status"]) == (code, "ok")
    assert " 17 of 20 (" in document["imported"]["provisional"]
    assert document["metrics"]["step_time_s"]["window"] == [11, 17]


def test_a_pipe_is_refused_before_it_is_opened(mbr_perf, tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    assert mbr_perf("import", "--log", tmp_path / "pipe.log", *SFT).code == 2


def test_a_file_that_is_no_log_is_named_as_what_it_is(mbr_perf, tmp_path, make_record, make_golden):
    files = {
        "golden of Megatron-Bridge": '{"0": {"lm loss": 1}}',
        "golden of Megatron-LM": '{"lm loss": {"start_step": 1, "step_interval": 1, "values": {"1": 2.0}}}',
        "golden of mbr-perf": golden_text(make_golden(make_record(), {"tflops_per_gpu": 700.0})),
        "JSON file": '{"hidden_size": 4096}',
        "run of mbr-perf": make_record().model_dump_json(),
        ".sh file": "torchrun pretrain_gpt.py --num-layers 4",
    }
    for what, text in files.items():
        path = tmp_path / {"run of mbr-perf": "record.json", ".sh file": "file.sh"}.get(what, "file.json")
        path.write_text(text)
        for settings in (SFT, ()):
            answer = mbr_perf("import", "--log", path, *settings)
            assert (answer.code, f"{path}: a {what}, not a log" in answer.err) == (2, True), answer.err


@pytest.mark.slow
@pytest.mark.parametrize(("total", "ends"), [(20, False), (40, True)], ids=["whole", "cut"])
def test_a_job_of_gradients_that_are_no_numbers_is_failed_and_says_so(imported, total, ends):
    lines = [logs.iteration(number, total, loss=None, grad_norm=float("nan")) for number in range(1, 21)]
    answer, document = imported("\n".join(lines), "--recompute", "mlp", "-ms", str(total), "-gb", "128")

    assert (answer.code, document["status"]) == (3, "failed")
    assert "gradient norm is nan " in document["failure"] and " iteration 1 " in document["failure"]
    assert (" 20 of 40" in document["failure"]) == ends


def test_a_line_for_several_iterations_counts_if_all_are_in_the_window(imported):
    lines = [iteration(number, 3.0, total=100) for number in range(5, 101, 5)]
    _, document = imported("\n".join(lines), "--recompute", "mlp", "--eval_time_start_step", "72")

    assert document["metrics"]["step_time_s"]["n"] == 5  # 80, 85, 90, 95, 100
    assert any("a line every 5 iterations" in note for note in document["notes"])


@pytest.mark.slow
def test_history_shows_imported_runs_at_the_time_of_their_jobs_and_marks_unknown_times(mbr_perf, imported, results):
    logs = {
        "logged": job_log(TABLE[1]).replace("2026-08-01", "2024-08-01"),
        "unknown": job_log(TABLE[1]).replace("[2026-08-01 10:00:01] ", ""),
    }
    answers = {which: imported(text, "--recompute", "mlp")[1] for which, text in logs.items()}
    runs = {which: document["run_id"] for which, document in answers.items()}
    assert mbr_perf("history", "add", *runs.values(), "--results_dir", results).code == 0
    shown = mbr_perf("history", "llama3_70b", "--results_dir", results)
    nights = json.loads(mbr_perf("history", "llama3_70b", "--results_dir", results, "--json").out)["nights"]

    assert [night["id"] for night in nights] == [runs["logged"], runs["unknown"]]
    assert nights[0]["started_at"] == "2024-08-01T10:00:01+00:00"
    assert [night["is_start_known"] for night in nights] == [True, False]
    listed = re.findall(r"\d{4}-\d\d-\d\dT\S+", mbr_perf("results", "list", "--results_dir", results).out)
    assert (listed[0], listed[1][-2:]) == ("2024-08-01T10:00:01Z", "Z?")
    assert shown.out.count("Z? ") == 1
    assert "?: 1 of 2 runs " in shown.out


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("using world size: 64\n" + job_log(TABLE[1]), (), [" 64 ranks", " 32"]),
        (job_log(TABLE[1]), ("-gb", "64"), [" 32,", " 64"]),
        ("nothing of interest\n", (), ["iteration"]),
    ],
)
def test_a_log_of_another_job_is_refused(imported, results, text, options, names):
    answer, document = imported(text, *options)

    assert (answer.code, results.exists()) == (2, False)
    assert [name for name in names if name not in document["error"]] == []


@pytest.mark.parametrize(("options", "command"), [(("-g", "h100"), "-g h100 -mr RECIPE"), ((), "-mr RECIPE -g GPU")])
def test_without_a_recipe_and_arguments_the_command_is_quoted(mbr_perf, tmp_path, options, command):
    log = tmp_path / "a.log"
    log.write_text(job_log(TABLE[1]))
    answer = mbr_perf("import", log, *options)
    assert (answer.code, answer.err.splitlines()[-1]) == (2, f"  mbr-perf import {log} {command}")


@pytest.mark.slow
def test_the_gpu_type_is_the_one_that_the_log_names_or_must_be_given(mbr_perf, tmp_path):
    silent, named, job = tmp_path / "a.log", tmp_path / "b.log", ("-mr", "llama3_70b", "--task", "sft", "-c", "fp8_cs")
    silent.write_text(job_log(TABLE[1]))
    named.write_text("NVIDIA H100 80GB HBM3\n" + job_log(TABLE[1]))
    refused = mbr_perf("import", "--log", silent, *job)
    assert (refused.code, "GPU type" in refused.err) == (2, True)
    document = json.loads(mbr_perf("import", "--log", named, *job, "--results_dir", tmp_path, "--json").out)
    assert any("h100" in note and f"{named}:1" in note for note in document["notes"])


def test_the_other_commands_read_an_imported_run(mbr_perf, imported, results):
    _, document = imported(job_log(Job("core_attn", 704.0, 58.8)), "--recompute", "core_attn")
    run = document["run_id"]

    compared = mbr_perf("compare", run, "--results_dir", results, "--json")
    assert compared.code == 0
    changes = {row["metric"]: row["change"] for row in json.loads(compared.out)["comparison"]}
    assert changes["tflops_per_gpu"] == pytest.approx(704 / 709.93 - 1, abs=1e-4)
    assert mbr_perf("explain", run, "--results_dir", results).code == 0
    assert mbr_perf("results", "show", run, "--results_dir", results).code == 0
    added = mbr_perf("history", "add", run, "--results_dir", results)
    assert added.code == 0
    assert run in mbr_perf("results", "list", "--results_dir", results).out


def test_a_golden_from_a_log_is_marked_and_a_measured_golden_does_not_judge_it(mbr_perf, imported, results, tmp_path):
    _, document = imported(job_log(TABLE[1]), "--recompute", "mlp")
    goldens, run = tmp_path / "goldens", document["run_id"]
    exported = mbr_perf("golden", "export", run, "--results_dir", results)
    assert exported.code == 2
    promoted = mbr_perf("golden", "promote", run, "--reason", "theirs", "--author", "me", "--golden_dir", goldens,
                        "--results_dir", results)  # fmt: skip
    path = next(goldens.rglob("*.json"))
    golden = json.loads(path.read_text())

    assert promoted.code == 0
    assert golden["kind"] == "external"
    assert golden["source"].startswith("training logs: ")
    assert any("driver" in caveat for caveat in golden["caveats"])
    measured = {"kind": "measured", "caveats": (), "source": None}
    path.write_text(golden_text(GoldenRecord.model_validate_json(path.read_text()).model_copy(update=measured)))
    judged = mbr_perf("compare", run, path, "--results_dir", results)
    assert judged.code == 6
    assert "driver_version: golden none, " in judged.out
