"""What ends a log: harmless lines after training, and a message that `srun --label` broke."""

import shlex

import pytest

from tests.diagnose.conftest import FRAGMENTED, FULL

LOG = "train.log"
DONE = "[after training is done] datetime: 2026-01-02 03:04:05"
KILLS = "slurmstepd: error: Detected 2 oom_kill events in StepId=77.batch. Some of the step tasks have been OOM Killed."
TASK = "srun: error: n1: task 3: Out Of Memory"


def row(number):
    return (
        f" [2026-01-02 03:04:{number:02d}] iteration {number:8d}/      40 | consumed samples: {32 * number:12d} | "
        "elapsed time per iteration (ms): 2450.0 | global batch size:    32 | lm loss: 1.1E+01 | grad norm: 5.0 |"
    )


@pytest.mark.parametrize("last", [KILLS, "job.core: RuntimeError: seven shards are left"])
def test_a_line_after_a_training_that_ended_well_is_a_note(diagnosed, last):
    document = diagnosed(*map(row, range(1, 41)), DONE, last)
    assert (document["job"]["status"], document["verdict"]["is_oom"]) == ("ok", False)
    assert any(each.endswith("train.log:42).") for each in document["job"]["notes"])


@pytest.mark.parametrize(
    "line",
    [
        "[exiting program after 77.5 minutes] datetime: 2026-01-02 03:04:05",
        "`Trainer.fit` stopped: `max_steps=7` reached.",
        "INFO:torch.distributed.elastic.agent.server.api:worker group finished (SUCCEEDED). Waiting 300 seconds",
        "INFO:torch.distributed.elastic.agent.server.api:[default] worker group successfully finished. Waiting",
    ],
)
def test_each_trainer_says_in_its_own_words_that_training_ended(diagnosed, line):
    assert diagnosed("begin", line)["job"]["status"] == "ok"


@pytest.mark.parametrize("lines", [(*map(row, range(1, 20)), KILLS), (*map(row, range(1, 41)), DONE, KILLS, TASK)])
def test_a_kill_in_a_training_that_did_not_end_or_of_a_task_is_the_failure(diagnosed, lines):
    assert diagnosed(*lines)["verdict"]["class"] == "host_memory"


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_an_empty_log_is_called_empty(mbr_perf, tmp_path, text):
    (tmp_path / "train.log").write_text(text)
    answer = mbr_perf("diagnose", tmp_path / "train.log")
    assert (answer.code, " empty" in answer.out) == (6, True)


@pytest.mark.train
@pytest.mark.parametrize(
    ("text", "first"), [(FULL, "Recompute frees no memory here"), (FRAGMENTED, "=expandable_segments:True")]
)
def test_out_of_memory_while_loading_a_checkpoint_is_not_answered_with_recompute(mbr_perf, tmp_path, text, first):
    log, frame = (
        tmp_path / "train.log",
        '  File "/opt/megatron/training/checkpointing.py", line 480, in load_checkpoint',
    )
    log.write_text(f"Traceback (most recent call last):\n{frame}\n{text}\n")
    settings = shlex.split("-mr llama3_8b -g h100 -c bf16 -ng 8 --recompute none")
    answer = mbr_perf("diagnose", log, *settings, "-v")
    assert answer.code == 0
    assert "while it loaded a checkpoint" in answer.out
    assert ", in load_checkpoint (" in answer.out
    assert first in answer.out
    assert "Cheapest change" not in answer.out
    assert "mbr-perf run" not in answer.out and "mbr-perf plan" not in answer.out
    without = mbr_perf("diagnose", log).out
    assert "Replace the capitals" not in without and first in without


def test_slurms_task_is_no_rank_and_its_count_no_other_failure(diagnosed):
    """With torchrun, a task is a node."""
    answer = diagnosed(row(1), KILLS, TASK)
    assert (answer["verdict"]["rank"], answer["verdict"]["place"]) == (None, "task 3")
    assert answer["job"]["notes"] == []


def test_a_rank_that_prints_its_error_with_and_without_prefix_is_one(diagnosed):
    answer = diagnosed(FULL, f"[rank3]: {FULL}")
    assert (answer["verdict"]["rank"], answer["job"]["notes"]) == (3, [])


def test_a_document_is_no_log_and_its_tables_are_no_errors(mbr_perf, tmp_path):
    for name, code in (("notes.md", 2), ("notes.txt", 6)):
        (tmp_path / name).write_text("| peak | mean absolute error | worst |\n| --- | --- | --- |\n")
        assert mbr_perf("diagnose", tmp_path / name).code == code
