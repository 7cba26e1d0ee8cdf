"""The moment of a memory failure, the other ranks' figures, its time and every known symptom decide the advice."""

import json
import re

import pytest

from harness.diagnose.diagnosis import recognised
from harness.diagnose.of_log import timed
from harness.failures.failure_scan import FailureScan
from harness.failures.first_failure import failure_of
from harness.foreign.logs.lines import LogLine
from harness.foreign.reader import LogReader
from tests.diagnose.conftest import FULL
from tests.diagnose.test_diagnose import iteration

HEAD = "Traceback (most recent call last):"
ADVISES_RECOMPUTE = re.compile(r"(?<!free )[Rr]ecompute (?!frees|makes|in|setting)|--recompute|RECIPE|planner", re.I)
SCHEDULE = '  File "/opt/megatron/core/pipeline_parallel/schedules.py", line 480, in forward_step'
MOMENTS = (
    ("optimizer_step", "/opt/core/optimizer/optimizer.py step_with_ready_grads", "/venv/torch/optim/adamw.py step"),
    ("optimizer_step", "/venv/apex/optimizers/fused_adam.py step"),
    ("optimizer_step", "/venv/transformer_engine/pytorch/optimizers/fused_adam.py _initialize_state"),
    ("optimizer_step", "/venv/torch/optim/adam.py _multi_tensor_adam"),
    ("optimizer_step", "/opt/core/optimizer/muon.py step", "/venv/emerging_optimizers/muon.py orthogonalize"),
    ("optimizer_step", "/opt/core/optimizer/clip_grads.py get_grad_norm_fp32"),
    ("load_checkpoint", "/opt/training/checkpointing.py load_checkpoint", "/venv/torch/optim/adam.py step"),
    ("save_checkpoint", "/opt/training/checkpointing.py save_checkpoint", "/x/distrib_optimizer.py sharded_state_dict"),
    ("evaluation", "/opt/training/training.py evaluate_and_print_results", "/opt/core/schedules.py forward_step"),
    ("evaluation", "/venv/lightning/loops/evaluation_loop.py validation_step", "/opt/core/model.py forward"),
    ("evaluation", "/opt/slime/actor.py compute_log_prob", "/opt/core/schedules.py forward_step"),
    ("gradient_sync", "/opt/core/distributed/finalize_model_grads.py finalize_model_grads", "/x/c10d.py all_reduce"),
)


def frames(*places):
    return [f'  File "{file}", line 7, in {function}' for file, function in (place.split() for place in places)]


@pytest.fixture(name="diagnosed")
def _diagnosed(mbr_perf, tmp_path):
    """The document for a log of these lines."""

    def diagnosed(*lines, options=()):
        log = tmp_path / "train.log"
        log.write_text("\n".join(lines) + "\n")
        return json.loads(mbr_perf("diagnose", log, *options, "--json").out)

    return diagnosed


def asks_for_recompute(answer):
    return [fix for fix in answer["fixes"] if ADVISES_RECOMPUTE.search(f"{fix['text']} {fix['command']}")]


@pytest.mark.parametrize(("moment", "places"), [(row[0], row[1:]) for row in MOMENTS], ids=lambda row: str(row)[:60])
def test_without_activations_no_recompute_is_advised(diagnosed, moment, places):
    answer = diagnosed(iteration(1), iteration(2), HEAD, *frames(*places), FULL)
    assert (answer["verdict"]["class"], answer["verdict"]["when"]) == ("capacity", f"in {moment} after iteration 2")
    assert len(answer["fixes"]) == 1 and not asks_for_recompute(answer)
    assert answer["allocator"]["remedy"] == "less_memory"


@pytest.mark.parametrize(
    "place",
    [
        "/opt/core/transformer/module.py float_conversion",
        "/opt/core/fusions/fused_cross_entropy.py forward",
        "/venv/transformers/loss/loss_utils.py ForCausalLMLoss",
        "/opt/verl/utils/megatron/tensor_parallel.py vocab_parallel_log_probs_from_logits",
    ],
)
@pytest.mark.parametrize(("request_gib", "fixes"), [("61.34", 1), ("3.91", 2)])
def test_logits_are_made_smaller_first_and_where_they_decide_nothing_else_is_advised(
    diagnosed, place, request_gib, fixes
):
    answer = diagnosed(HEAD, SCHEDULE, *frames(place), FULL.replace("3.91", request_gib))
    assert answer["verdict"]["class"] == "capacity" and len(answer["fixes"]) == fixes
    assert "logits" in answer["fixes"][0]["text"]
    assert bool(asks_for_recompute(answer)) is (fixes == 2)


def test_one_request_of_a_large_part_of_the_device_is_named(diagnosed):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.44 GiB. GPU 2 has a total capacity of 60.96 GiB of "
        "which 25.36 GiB is free. Of the allocated memory 30.23 GiB is allocated by PyTorch, and 2.85 GiB is reserved by PyTorch "
        "but unallocated."
    )
    answer = diagnosed(text)
    assert (answer["verdict"]["class"], answer["verdict"]["confidence"]) == ("capacity", "medium")
    assert answer["verdict"]["figures"]["device"] == 2 and "43%" in answer["verdict"]["reason"]
    assert "this one tensor" in answer["fixes"][0]["text"] and answer["allocator"]["remedy"] == "less_memory"


@pytest.mark.parametrize(
    "where",
    [
        "/opt/core/transformer/cuda_graphs.py create_fwd_graph",
        "/venv/transformer_engine/pytorch/graph.py _make_graphed_callables",
    ],
)
def test_the_capture_of_a_graph_cannot_give_cached_memory_back(diagnosed, where):
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 78.50 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 16.00 GiB is reserved by PyTorch but unallocated."
    captured = diagnosed(HEAD, *frames(where), SCHEDULE, text)
    assert captured["verdict"]["class"] == "cuda_graph_pools"
    assert captured["allocator"]["available_bytes"] == pytest.approx(60.5 * 1024**3)
    assert captured["allocator"]["remedy"] == "less_memory" and captured["allocator"]["missing_bytes"] > 0
    assert "expandable" not in json.dumps(captured["fixes"])
    replayed = frames("/opt/core/transformer/cuda_graphs.py __call__")  # also calls modules that no graph holds yet
    assert diagnosed(HEAD, *replayed, SCHEDULE, text)["verdict"]["class"] == "fragmentation"


def memory(rank, after, allocated, highest=60000):
    return (
        f"[Rank {rank}] (after {after} iterations) memory (MB) | allocated: {allocated}.5 | max allocated: {highest}.5 | "
        "reserved: 70000.0 | max reserved: 70000.0"
    )


def test_memory_that_grows_from_report_to_report_is_a_leak_and_not_answered_with_recompute(diagnosed):
    steps = [line for n in range(1, 13) for line in (iteration(n), memory(0, n, 20000 + 900 * n))]
    answer = diagnosed(*steps, f"[rank0]: {FULL}")
    assert "grew from" in answer["evidence"][0] and not asks_for_recompute(answer)
    flat = [line for n in range(1, 13) for line in (iteration(n), memory(0, n, 20000 + 5 * (n % 2)))]
    assert "grew" not in "".join(diagnosed(*flat, f"[rank0]: {FULL}")["evidence"])
    first_step = [memory(0, 1, 10000), *(memory(0, n, 30000) for n in range(2, 13))]  # Adam's states appear once
    assert "grew" not in "".join(diagnosed(*first_step, iteration(12), f"[rank0]: {FULL}")["evidence"])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((iteration(1), memory(0, 1, 61000)), "after iteration 1, "),
        ((iteration(1),), "optimizer's states"),
        (tuple(map(iteration, range(1, 30))), "29 reported iterations ran before"),
        ((iteration(1), iteration(2)), "longest batch"),
        (
            [line for n in range(1, 6) for line in (iteration(n), memory(12, n, 20000, 50000 + 4000 * (n > 3)))],
            "rank 12's peak rose from 48.83 GiB (iteration 3) to 52.73 GiB (4)",
        ),
        ((), ""),
    ],
)
def test_the_answer_says_why_memory_ran_out_at_this_iteration(diagnosed, lines, why):
    answer = diagnosed(*lines, f"[rank12]: {FULL}")
    assert (
        [text for text in answer["evidence"] if text.startswith("Why now")] == []
        if not why
        else why in answer["evidence"][0]
    )
    assert bool(asks_for_recompute(answer))  # after what the time asks for


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
                                   "RuntimeError: Trying to create tensor with negative dimension -123: [-123]"])  # fmt: skip
@pytest.mark.parametrize("is_before", [True, False])
def test_a_size_that_a_broken_collective_left_is_no_cause(diagnosed, error, is_before):
    timeout = "[rank5]:[E ProcessGroupNCCL.cpp:563] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST)"
    lines = [timeout, f"[rank5]: {HEAD}", f"[rank5]: {error}"]
    found = diagnosed(*(lines if is_before else [*lines[1:], timeout]))["verdict"]
    assert found["class"] == ("not_oom" if is_before else "bad_size")


def test_a_gpu_type_alone_does_not_stop_the_diagnosis(mbr_perf, tmp_path):
    (tmp_path / "a.log").write_text(f"{FULL}\n")
    answer = mbr_perf("diagnose", tmp_path / "a.log", "-g", "h100", "--json")
    assert (answer.code, json.loads(answer.out)["verdict"]["class"]) == (0, "capacity")
    assert "--gpu" in json.loads(answer.out)["evidence"][0]
    assert mbr_perf("diagnose", tmp_path / "a.log", "-ng", "8").code == 2


def test_variables_that_torch_refuses_are_refused(mbr_perf, tmp_path):
    (tmp_path / "a.log").write_text(f"{FULL}\n")
    codes = [
        mbr_perf("diagnose", tmp_path / "a.log", "-E", f"PYTORCH_CUDA_ALLOC_CONF={value}").code
        for value in ("expandable_segmnts:True", "expandable_segments:True", "backend:cudaMallocAsync")
    ]
    assert codes == [2, 0, 0]


TEXTS = (
    ("R20", "AssertionError: full recompute is only supported with full iteration CUDA graph."),
    ("R18", "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"),
)  # fmt: skip


def found(case):
    return {row.id: row for row in recognised(case)}


@pytest.mark.parametrize(("symptom", "text"), TEXTS)
def test_megatron_cores_own_message_names_the_symptom_without_any_settings(case, symptom, text):
    row = found(case(text, spec=None))[symptom]
    assert row.evidence == f"job: {text}"


@pytest.mark.parametrize("is_dense", [True, False])
def test_no_advice_on_a_dense_job_is_about_experts(is_dense):
    lines = [f"[2026-01-02 03:04:05.0] iteration {n}/ 50 | elapsed time per iteration (ms): 9.0 |" for n in (1, 2, 3)]
    read, scan = LogReader(), FailureScan()
    for number, text in enumerate((*lines, f"[rank3]: {FULL}"), start=1):
        read.feed(LogLine(text, "job.log", number))
        scan.feed(LogLine(text, "job.log", number))
    found, _ = timed(read.finish(), failure_of(scan, None), is_dense=is_dense)
    assert ("expert" in found.advice, "{" in found.advice) == (not is_dense, False)
