"""`mbr-perf diagnose` from the command line: runs, sweeps, logs, standard input."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from harness.records.rank import Failure
from harness.records.store import write_record
from tests.diagnose.conftest import FRAGMENTED, FULL, SETTING

PEER = "[rank1]: RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:41311"


def iteration(number, loss="1.1E+01", tflops=700.0):
    return (
        f" [2026-01-02 03:04:{number:02d}.000000] iteration {number:8d}/      50 | consumed samples: {32 * number:12d} | "
        f"elapsed time per iteration (ms): 2450.0 | throughput per GPU (TFLOP/s/GPU): {tflops} | learning rate: 1.0E-04 | "
        f"global batch size:    32 | lm loss: {loss} | grad norm: 5.0 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    )


def traceback(message):
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/megatron/core/pipeline_parallel/schedules.py", line 480, in backward_step\n'
        f"    torch.autograd.backward(x)\n{message}"
    )


@pytest.fixture(name="logs")
def _logs(tmp_path):
    """A folder with one log per rank."""

    def write(*texts, folder="logs"):
        (tmp_path / folder).mkdir()
        for rank, text in enumerate(texts):
            (tmp_path / folder / f"rank_{rank:03d}.log").write_text(text + "\n")
        return tmp_path / folder

    return write


@pytest.fixture(name="run")
def _run(tmp_path, make_rank, make_record, make_spec):
    """A committed run; ``of_rank_0``: how that rank failed."""

    def write(name, of_rank_0=None, settings=None, seconds=1.0, **changes):
        spec = make_spec(**settings or {})
        ranks = [make_rank(spec, rank, seconds) for rank in range(spec.num_gpus)]
        if of_rank_0:
            ranks[0] = ranks[0].model_copy(update={"failure": of_rank_0, "finished": False})
            changes = {"status": "oom" if of_rank_0.kind == "oom" else "failed"} | changes
        run_dir = tmp_path / "results" / "runs" / name
        run_dir.mkdir(parents=True)
        write_record(run_dir, make_record(spec, ranks=tuple(ranks), run_id=name, **changes))
        return run_dir

    return write


def oom(text):
    return Failure(kind="oom", message=text, phase="forward_backward", step=2)


def verdict_of(answer):
    return json.loads(answer.out)["verdict"]


def test_a_folder_of_logs_names_the_rank_that_really_failed(mbr_perf, logs):
    folder = logs(f"{iteration(1)}\n{iteration(2)}\n{traceback(FRAGMENTED)}", PEER)
    answer = mbr_perf("diagnose", folder, "-v")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0].startswith("Fragmentation (high): 20.41 GiB (26% ")
    assert lines[2] == f"Where     rank 0, GPU 0, in forward_backward after iteration 2 ({folder}/rank_000.log:6)"
    assert "   export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in lines
    assert any(line.endswith(": rank 1") for line in lines)


@pytest.mark.parametrize(
    ("text", "code", "rank"),
    [
        ("Root Cause (first observed failure):\n  rank      : 6 (local_rank: 6)\n  exitcode  : 1 (pid: 906)", 6, 6),
        (iteration(1), 6, None),
    ],
    ids=["only torchrun's report", "a log that stops"],
)
def test_logs_without_a_cause_are_inconclusive(mbr_perf, logs, text, code, rank):
    answer = mbr_perf("diagnose", logs(text), "--json")
    assert (answer.code, verdict_of(answer)["class"], verdict_of(answer)["rank"]) == (code, None, rank)


def test_the_document_holds_verdict_evidence_and_fixes(mbr_perf, run):
    unset = {"environment": {"PYTORCH_CUDA_ALLOC_CONF": ""}}
    document = json.loads(mbr_perf("diagnose", run("a", oom(FRAGMENTED), provenance=unset), "--no_plan", "--json").out)
    assert {"verdict", "evidence", "fixes"} <= set(document)
    assert (document["schema_version"], document["exit_code"]) == (1, 0)
    verdict = document["verdict"]
    assert (verdict["class"], verdict["confidence"], verdict["rank"]) == ("fragmentation", "high", 0)
    assert verdict["figures"]["unallocated_bytes"] == round(20.41 * 1024**3)
    words = shlex.split(document["fixes"][0]["command"])
    assert (words[:2], words[-2:]) == (["mbr-perf", "run"], ["-E", SETTING])


def test_a_rank_that_died_without_a_record_is_diagnosed_by_its_log(mbr_perf, run):
    folder = run("a", Failure(kind="lost", message="lost"))
    (folder / "logs").mkdir()
    (folder / "logs" / "rank_003.log").write_text(traceback(FULL) + "\n")
    verdict = verdict_of(mbr_perf("diagnose", folder, "--no_plan", "--json"))
    assert (verdict["class"], verdict["rank"]) == ("capacity", 3)


@pytest.mark.parametrize("sweep", [True, False])
def test_a_sweep_and_a_second_job_are_refused_with_what_to_name(mbr_perf, run, sweep):
    paths = [Path("tests/data/sweeps/cpu_oom").absolute()] if sweep else [run(name, oom(FULL)) for name in "ab"]
    answer = mbr_perf("diagnose", *paths, "--no_plan")
    assert (answer.code, answer.out) == (2, "")
    assert ("cells/000/0" if sweep else "2 jobs") in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "'nowhere'"),
        (("nowhere", "elsewhere"), "'elsewhere'"),
        (("-", "--recompute", "mlp"), "--recompute without a recipe"),
        (("job.log", "-mr", "llama3_8b"), "-g "),
    ],
)
def test_wrong_requests_exit_2_and_start_nothing(mbr_perf, tmp_path, arguments, message):
    answer = mbr_perf("diagnose", *arguments, "--results_dir", tmp_path)
    assert answer.code == 2
    assert message in answer.err


def test_a_snapshot_is_named_as_one(mbr_perf, tmp_path):
    path = tmp_path / "oom.pickle"
    path.write_bytes(b"x")
    answer = mbr_perf("diagnose", path)
    assert (answer.code, f"mbr-perf snapshot {path}" in answer.err) == (2, True)


def test_a_pipe_is_read_once_and_whole(mbr_perf, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", 'printf "%s" "$1" > "$0"', tmp_path / "pipe", FULL]):
        verdict = verdict_of(mbr_perf("diagnose", tmp_path / "pipe", "--json"))
    assert verdict["class"] == "capacity"


@pytest.mark.train
def test_the_answer_contains_the_planners_prediction(mbr_perf, replay, tmp_path):
    replay("oom")
    (run_dir,) = (tmp_path / "results" / "runs").iterdir()
    document = json.loads(mbr_perf("diagnose", run_dir, "--json").out)
    expected = document["expected"]
    assert expected["stage"]["pp_rank"] == 0
    assert expected["unexplained_bytes"] == expected["needed_bytes"] - expected["stage"]["total"] > 0
    assert " stage 0: " in document["evidence"][0]


@pytest.mark.train
def test_with_settings_of_a_log_the_fix_is_the_cheapest_change_that_fits(mbr_perf, logs):
    words = FULL.replace("3.91 GiB", "64.00 MiB").replace("73.48 GiB", "76.50 GiB").replace("812.44 MiB", "100.00 MiB")
    settings = shlex.split("-mr llama3_8b -g h100 -c bf16 -ng 8 -mb 4 -gb 32 --recompute none")
    document = json.loads(mbr_perf("diagnose", logs(traceback(words)), *settings, "--json").out)
    assert document["verdict"]["class"] == "capacity"
    fixes = [fix for fix in document["fixes"] if fix["command"] and " % step time" in fix["text"]]
    costs = [float(re.search(r"([+-]\d+\.\d) % step time", fix["text"])[1]) for fix in fixes]
    assert len(fixes) >= 2 and costs == sorted(costs)  # micro-batch, layout and recompute, the cheapest first
    micro, recompute = (next(fix for fix in fixes if word in fix["text"]) for word in (": micro-batch", ": recompute"))
    assert re.search(r"--micro_batch_size [12] ", micro["command"])
    assert recompute["command"].split()[-1] == "mlp"  # as fast as full:block:22, and needs less
    assert recompute["megatron_lm"] == "--recompute-granularity selective --recompute-modules mlp"
    words = recompute["command"].split()
    assert mbr_perf("plan", *words[2:], "--only", words[-1], "--json").code == 0


def test_a_log_without_the_size_of_its_vocabulary_is_diagnosed_without_a_prediction(mbr_perf, tmp_path):
    sizes = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "micro_batch_size": 1,
             "tokenizer_type": "HuggingFaceTokenizer", "world_size": 1}  # fmt: skip
    lines = ["----- arguments -----", *(f"  {name} ..... {value}" for name, value in sizes.items()),
             "----- end of arguments -----", f"[rank0]: {FULL}"]  # fmt: skip
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines))
    answer = mbr_perf("diagnose", log, "-g", "h100", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["verdict"]["class"]) == (0, "capacity")
    assert found["fixes"][0]["command"] == f"mbr-perf diagnose {log} -g h100 --vocab_size N"
