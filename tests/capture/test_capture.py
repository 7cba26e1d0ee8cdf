"""Launch scripts of the kinds that people publish, each run for real among the stand-ins for its launchers."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import runs, wait_until

SCRIPTS = Path(__file__).parents[1] / "data" / "capture"
GPT = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16"


@pytest.fixture
def captured(mbr_perf, tmp_path, monkeypatch):
    """The commands of the jobs of a script, without those of the variables that the test's own shell has."""
    monkeypatch.setenv("LOG_DIR", str(tmp_path))

    def capture(script, *words, options=()):
        command = ("bash", SCRIPTS / script, *words)
        done = mbr_perf("capture", "--out", tmp_path / "out", *options, "--json", "--", *command)
        assert done.code == 0, done.err
        document = json.loads(done.out)
        return document["jobs"], document["notes"]

    return capture


def variables(job):
    lines = shlex.split(Path(job["env"]).read_text())
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("size", "layers", "gpus"), [((), "4", "2"), (("large",), "8", "3")])
def test_arrays_and_branches_are_as_bash_leaves_them(captured, monkeypatch, size, layers, gpus):
    monkeypatch.setenv("NNODES", gpus)
    [job], notes = captured("arrays_and_case.sh", *size)
    words = shlex.split(job["command"])
    assert words[:6] == ["torchrun", "--nproc_per_node", "8", "--nnodes", gpus, "pretrain_gpt.py"]
    assert words[words.index("--num-layers") + 1] == layers
    assert words[-2:] == ["--save", "/data/run one"]
    assert shlex.split(Path(job["args"]).read_text().replace("\\\n", ""), comments=True) == words
    assert {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "HF_TOKEN": "***"}.items() <= variables(job).items()
    assert notes == []


def test_plan_and_check_take_a_captured_job(captured, mbr_perf, monkeypatch):
    monkeypatch.setenv("RECOMPUTE", "1")
    [job], _ = captured("arrays_and_case.sh")
    done = mbr_perf("check", job["args"], "-g", "h100", "--no_megatron", "--json")
    spec = json.loads(done.out)["spec"]
    assert (spec["num_gpus"], spec["recompute"]["granularity"]) == (16, "full")
    assert spec["env"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_the_next_command_asks_for_a_vocabulary_that_the_job_does_not_say(mbr_perf, tmp_path):
    for option, ends in (("--vocab-size=9", "-g h100"), ("--seq-length=9", "--vocab_size N")):
        done = mbr_perf("capture", "--out", tmp_path, "--", "bash", SCRIPTS / "exec_passes_arguments_on.sh", option)
        assert next(line for line in done.out.splitlines() if line.startswith("Next: ")).endswith(ends)


def test_every_job_of_a_loop_is_captured_in_place_of_an_earlier_capture(captured):
    captured("loop_over_jobs.sh")
    jobs, _ = captured("loop_over_jobs.sh")
    sizes = [job["command"].partition("--tensor-model-parallel-size ")[2] for job in jobs]
    assert sizes == [f"{tp}{more}" for tp in (1, 2, 4) for more in ("", " --recompute-activations")]
    assert [Path(job["args"]).name for job in jobs] == [f"job_00{number}.args" for number in range(1, 7)]
    [job], _ = captured("exec_passes_arguments_on.sh", "--micro-batch-size", "2")
    assert [path.name for path in sorted(Path(job["args"]).parent.iterdir())] == ["job_001.args", "job_001.env"]


def test_exec_after_cd_passes_arguments_on(captured):
    words = ("--a", "b c", "--password", "hunter2 x", "--moe-token-dispatcher-type", "flex", "--api-key=hunter2")
    [job], _ = captured("exec_passes_arguments_on.sh", *words)
    kept = "--a 'b c' --password '***' --moe-token-dispatcher-type flex '--api-key=***'"
    assert (job["folder"], job["command"]) == ("/", f"torchrun --nproc_per_node=8 pretrain_gpt.py {kept}")
    assert "hunter2" not in Path(job["args"]).read_text()


@pytest.mark.slow
def test_helpers_run_and_training_programs_do_not(captured):
    jobs, _ = captured("python_by_variable.sh")
    assert [job["command"] for job in jobs] == [
        f"python -u -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py {GPT}",
        "python3 train.py --config 'a b.yaml'",
    ]


def test_a_command_in_a_variable_and_batch_jobs_are_captured_with_the_sizes_that_slurm_would_give_them(captured):
    [job], _ = captured("command_in_a_variable.sh")
    assert job["command"] == f"torchrun --nproc_per_node 8 --nnodes 2 /opt/Megatron-LM/pretrain_qwen.py {GPT}"
    (first, second), _ = captured("batch_by_here_document.sh")
    assert first["command"] == f"srun --nodes=4 --ntasks-per-node=8 python pretrain_gpt.py {GPT} --exit-interval 4"
    assert (first["folder"], variables(first)["LAYERS"]) == ("/", "4")
    assert second["command"] == "torchrun --nnodes 2 --nproc_per_node 4 train.py --job 1"


def test_a_changed_path_and_a_job_in_the_background_are_no_obstacle(captured):
    [job], _ = captured("changes_path_and_waits.sh")
    assert job["command"] == f"deepspeed --num_gpus 8 pretrain_gpt.py {GPT}"


def test_a_launcher_called_by_its_path_is_named(mbr_perf, tmp_path):
    done = mbr_perf("capture", "--out", tmp_path / "out", "--", "bash", SCRIPTS / "by_its_path.sh")
    assert done.code == 2
    named = [line for line in (3, 4) if f"by_its_path.sh:{line}: " in done.err]
    assert (named, "by_its_path.sh:1" in done.err, "by_its_path.sh:2" in done.err) == ([3, 4], False, False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("bash", SCRIPTS / "trains_nothing.sh"), "exit code 2", "Usage:"),
        (("bash", "-c", "exit 7"), "exit code 7", "printed nothing"),
        (("bash", SCRIPTS / "absent.sh"), "exit code 127", "absent.sh"),
        (("no-such-command",), "no-such-command", "bash run.sh"),
    ],
)
def test_a_capture_of_nothing_says_what_the_script_did_instead(mbr_perf, tmp_path, command, code, said):
    done = mbr_perf("capture", "--out", tmp_path / "out", "--", *command)
    assert (done.code, done.out) == (2, "")
    assert code in done.err
    assert said in done.err


def ended(*files):
    """Whether the processes end whose numbers the files hold; they are killed a moment after their parent is asked to stop."""
    return wait_until(lambda: not any(runs(int(file.read_text())) for file in files), 20.0)


@pytest.mark.slow
def test_at_the_limit_all_that_the_script_started_is_killed(captured, tmp_path):
    [job], notes = captured("never_ends.sh", options=("--timeout", "2"))
    assert job["command"] == "torchrun train.py"
    assert ["killed after 2 s" in note for note in notes] == [True]
    assert ended(tmp_path / "pid", tmp_path / "child")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_script_too_and_leaves_nothing(tmp_path, number, code):
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "LOG_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    words = [sys.executable, "-m", "harness.app", "capture", "--out", str(tmp_path / "out"), "--"]
    process = subprocess.Popen([*words, "bash", str(SCRIPTS / "never_ends.sh")], env=environment)
    try:
        limit = time.monotonic() + 60
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
            assert time.monotonic() < limit
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
    assert ended(tmp_path / "pid", tmp_path / "child")
    assert ([*(tmp_path / "tmp").iterdir()], (tmp_path / "out").exists()) == ([], False)


def test_line_1_is_the_answer(mbr_perf, tmp_path):
    done = mbr_perf("capture", "--out", tmp_path / "out", "--", "bash", "-c", "echo noise; torchrun train.py; exit 3")
    lines = done.out.splitlines()
    assert lines[0].startswith("CAPTURED: 1 job of bash -c")
    assert f"{tmp_path}/out/job_001.args  {tmp_path}/out/job_001.env" in lines
    assert [line for line in lines if "exit code 3" in line] != []
