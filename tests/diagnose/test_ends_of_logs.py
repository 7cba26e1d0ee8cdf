"""What ends a log: harmless lines after training, and a message that `srun --label` broke."""

import json

import pytest

DONE = "[after training is done] datetime: 2026-01-02 03:04:05"
KILLS = "slurmstepd: error: Detected 2 oom_kill events in StepId=77.batch. Some of the step tasks have been OOM Killed."
TASK = "srun: error: n1: task 3: Out Of Memory"
UNEVEN = "RuntimeError: world_size (24) is not divisible by expert_tensor_model_pipeline_parallel size (16)"


def row(number):
    return (
        f" [2026-01-02 03:04:{number:02d}] iteration {number:8d}/      40 | consumed samples: {32 * number:12d} | "
        "elapsed time per iteration (ms): 2450.0 | global batch size:    32 | lm loss: 1.1E+01 | grad norm: 5.0 |"
    )


@pytest.fixture(name="diagnosed")
def _diagnosed(mbr_perf, tmp_path):
    """Diagnose a log with these lines."""

    def diagnose(*lines):
        (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
        return json.loads(mbr_perf("diagnose", tmp_path / "train.log", "--json").out)

    return diagnose


@pytest.mark.parametrize(
    ("last", "note"),
    [
        (KILLS, "Training ended well. Slurm counted a kill ("),
        (
            "job.core: RuntimeError: seven shards are left",
            "Training ended well, although a line mentions an error: RuntimeError: seven shards are left (",
        ),
    ],
)
def test_a_line_after_a_training_that_ended_well_is_a_note(diagnosed, last, note):
    document = diagnosed(*map(row, range(1, 41)), DONE, last)
    assert (document["job"]["status"], document["verdict"]["is_oom"]) == ("ok", False)
    assert any(each.startswith(note) for each in document["job"]["notes"])


@pytest.mark.parametrize("lines", [(*map(row, range(1, 20)), KILLS), (*map(row, range(1, 41)), DONE, KILLS, TASK)])
def test_a_kill_in_a_training_that_did_not_end_or_of_a_task_is_the_failure(diagnosed, lines):
    assert diagnosed(*lines)["verdict"]["class"] == "host_memory"


@pytest.mark.parametrize("label", ["0: ", ""])
@pytest.mark.parametrize("cut", [15, 28, 33, 40, 48])
def test_a_message_that_was_broken_keeps_its_cause_and_its_symptom(diagnosed, label, cut):
    lines = ("begin", "Traceback (most recent call last):", '  File "/job/train.py", line 7, in main')
    document = diagnosed(*(label + line for line in (*lines, UNEVEN[:cut], UNEVEN[cut:], "end")))
    assert document["verdict"]["reason"].startswith("the number of ranks is not a multiple")
    assert [symptom["id"] for symptom in document["symptoms"]] == ["A01"]


def test_an_unknown_error_is_not_joined_with_a_cause_of_the_next_line(diagnosed):
    lines = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in main', "KeyError: 'a'")
    assert diagnosed(*lines, "Connection closed by peer")["verdict"]["reason"] == "the program raised KeyError: 'a'"
