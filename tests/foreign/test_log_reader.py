"""Training logs as jobs leave them: interleaved, cut, restarted, one file per rank, each with the GPU that it names."""

import json
import re

import pytest

from harness.errors import SeveralMatchError
from harness.foreign.gpu_of_log import gpu_of_log
from harness.imports.sides import Side, read_side
from tests.imports.logs import bridge_log, iteration, megatron_lm_log, memory_gb, memory_mb, step_time


@pytest.fixture(name="read")
def _read(tmp_path):
    """The log of one file, or of several by their names."""

    def read(text="", **files):
        for name, content in {"run": text, **files}.items() if text else files.items():
            (tmp_path / f"{name}.log").write_text(content)
        paths = tuple(str(tmp_path / f"{name}.log") for name in ({"run": text} if text else {}) | files)
        return read_side(Side("log", paths, ""))[0]

    return read


def throughputs(log):
    return {item.number: item.tflops_per_gpu for item in log.iterations}


def test_bridge_and_megatron_lm_say_the_same_in_other_words_and_units(read):
    log = read(megatron_lm_log([8.9204, 0.9], [744.1, 800.0], memory=[(2, memory_mb(3, 2, 1.5, 2.0, 3.0, 4.0))]))
    first = log.iterations[0]
    assert (first.step_time_s, first.tflops_per_gpu, first.loss) == (pytest.approx(8.9204), 744.1, 11.5)
    assert (first.grad_norm, first.consumed_samples, first.global_batch_size) == (1.234, 128, 128)
    (memory,) = log.memory
    assert (memory.rank, memory.iteration) == (3, 2)
    assert (memory.allocated_bytes, memory.max_allocated_bytes) == (1_572_864, 2_097_152)
    assert (memory.reserved_bytes, memory.max_reserved_bytes) == (3_145_728, 4_194_304)
    (memory,) = read(memory_gb(7, 2, allocated=25.512, max_allocated=58.803, max_reserved=62.113)).memory
    assert (memory.allocated_bytes, memory.max_allocated_bytes, memory.max_reserved_bytes, memory.reserved_bytes) == (
        25_512_000_000, 58_803_000_000, 62_113_000_000, None,
    )  # fmt: skip
    texts = (bridge_log([700.0]), megatron_lm_log([0.9]), memory_mb(0, 1, 1.0, 2.0, 3.0, 4.0), iteration(1, 1))
    assert [read(text).format for text in texts] == ["bridge", "megatron-lm", "megatron-lm", None]


def test_a_missing_iteration_does_not_shift_the_others(read):
    lines = [step_time(21.0, 30.0), step_time(0.9, 700.0), iteration(2, 3)]
    log = read("\n".join([*lines, step_time(0.95, 690.0), iteration(3, 3, 0.95)]))
    assert throughputs(log) == {2: 700.0, 3: 690.0}
    assert [note.startswith("1 line") for note in log.notes] == [True]


@pytest.mark.parametrize(
    ("steps", "expected"), [((21.0, 0.9, 0.95), [30.0, 700.0, 663.158]), ((21.0, 0.95), [None] * 3)]
)
def test_step_times_of_a_file_of_their_own_are_bound_where_every_time_agrees_and_none_is_missing(read, steps, expected):
    first = "\n".join(step_time(value, 630.0 / value) for value in steps)
    last = "\n".join(iteration(number, 3, value) for number, value in enumerate((21.0, 0.9, 0.95), start=1))
    log = read(rank_0=first, rank_7=last)
    assert list(throughputs(log).values()) == [each and pytest.approx(each, rel=1e-4) for each in expected]
    assert [item.rank for item in log.iterations] == [7, 7, 7]
    assert [note.startswith("2 lines of 'Step Time'") for note in log.notes] == [True] * (None in expected)


def test_a_field_that_was_cut_off_is_missing_not_smaller(read):
    whole = iteration(2, 2, loss=11.743215)
    cut = iteration(1, 2) + "\n" + whole[: whole.index("lm loss: ") + len("lm loss: 1.17")]
    assert [row.number for row in read(cut).iterations] == [1]  # it was still being written
    log = read(cut + "\nsrun: interrupted")
    assert log.iterations[1].loss is None
    assert log.iterations[1].step_time_s == 0.9
    line = memory_mb(0, 1, 24330.19, 56079.48, 59235.0, 59235.0)
    (memory,) = read(line[: line.rindex("59235") + 3]).memory
    assert (memory.max_allocated_bytes, memory.max_reserved_bytes) == (round(56079.48 * 2**20), None)


def test_a_restart_is_reported_the_later_attempt_counts_and_what_it_did_not_reach_again_is_gone(read):
    before = [iteration(number, 6, 1.0, loss=10.0) for number in (1, 2, 3, 4)]
    after = [iteration(number, 6, 2.0, loss=9.0) for number in (3, 4, 5, 6)]
    log = read("\n".join(before + after))
    found = [(item.number, item.step_time_s) for item in log.iterations]
    assert found == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    assert log.restarts == (3,)
    assert re.findall(r"\d+", log.notes[0].partition(str(log.sources[0]))[0]) == ["4", "3"]
    assert [note.endswith(f"({log.sources[0]}:5)") for note in log.notes] == [True]
    log = read("\n".join([*(iteration(number, 9, 1.0) for number in range(1, 10)), iteration(5, 9, 2.0)]))
    assert [item.number for item in log.iterations] == [1, 2, 3, 4, 5]
    assert log.truncated.endswith(f" 5 of 9 ({log.sources[0]}:10)")


def test_the_same_output_in_two_files_counts_once(read):
    text = bridge_log([700.0, 710.0])
    log = read(node0=text, node1=text)
    assert (throughputs(log), log.restarts) == ({1: 700.0, 2: 710.0}, ())


def test_a_log_that_ends_early_is_truncated_unless_it_says_that_it_ended_or_that_it_logs_every_tenth(read):
    lines = [iteration(number, 50) for number in (1, 2, 3)]
    assert " 3 of 50 " in read("\n".join(lines)).truncated
    assert read("\n".join([*lines, "exiting program at iteration 3 at 2026-08-01"])).truncated is None
    log = read("\n".join(iteration(number, 55) for number in (1, 10, 20, 30, 40, 50)))
    assert (log.interval, log.truncated) == (10, None)


def test_nan_is_kept_as_such(read):
    log = read(
        iteration(1, 2, grad_norm="nan") + "\n" + iteration(2, 2, grad_norm="inf").replace("1.150000E+01", "nan")
    )
    assert [repr(item.grad_norm) for item in log.iterations] == ["nan", "inf"]
    assert repr(log.iterations[1].loss) == "nan"


def test_the_worst_rank_is_found_over_all_reports(read):
    lines = [memory_gb(rank, after, max_allocated=value)
             for rank, after, value in ((0, 1, 45.0), (8, 1, 70.0), (0, 2, 71.5), (8, 2, 71.5))]  # fmt: skip
    worst = read("\n".join(lines)).worst("max_allocated_bytes")
    assert (worst.value, worst.rank, worst.iteration) == (71_500_000_000, 0, 2)


@pytest.mark.parametrize(
    "line",
    [
        "Training epoch 0, iteration {n}/9 | lr: 2.9e-05 | consumed_samples: 48 | global_batch_size: 24 | global_step: 2 | reduced_train_loss: 7.5 | train_step_timing in s: 1.25",
        "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 9 | consumed_tokens: 65.5K | time_per_iteration_ms: 1.25K | lm_loss: 7.5 | lr: 2.9e-05 | grad_norm: 1.5",
        " samples/sec: 7.7 | iteration {n:8d}/       9 | elapsed time per iteration (ms): 1250.0 | lm_loss: 7.5E+00 | loss scale: 1024.0 |",
    ],
)  # fmt: skip
def test_nemo_nanotron_and_neox_name_the_loss_in_their_own_way(read, line):
    log = read("\n".join(line.format(n=n) for n in (1, 2)))
    assert [(row.number, row.loss) for row in log.iterations] == [(1, 7.5), (2, 7.5)]
    assert (log.total, log.notes, log.has_other_losses) == (9, (), False)


OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {} GiB of which 1.00 GiB is free."
SPEED = " iteration 2/ 9 | throughput per GPU (TFLOP/s/GPU): {} |"


@pytest.mark.parametrize(
    ("lines", "gpu"),
    [
        (["| 0  NVIDIA A100-SXM4-80GB   On |"], "a100"),
        (["| 0  NVIDIA GH200 480GB      On |"], "gh200"),
        ([OOM.format("79.11"), "using NVIDIA H100 80GB HBM3"], "h100"),
        ([OOM.format("139.80")], "h200"),
        ([OOM.format("184.31")], "gb200"),
        (["NPU out of memory. (NPU 2; 60.96 GiB total capacity)"], ""),
        ([SPEED.format("410.5"), OOM.format("79.15")], "h100"),
        (["NVIDIA H100 PCIe", SPEED.format("410.5")], ""),
    ],
)
def test_a_log_names_its_gpu_type(tmp_path, lines, gpu):
    log = tmp_path / "job.log"
    log.write_text("\n".join(["start", *lines, "end"]))
    assert gpu_of_log([str(log)])[0] == gpu


def test_a_memory_that_several_types_have_is_no_answer(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(f"{SPEED.format('99.0')}\n{OOM.format('79.11')}\n")
    with pytest.raises(SeveralMatchError) as error:
        gpu_of_log([str(log)])
    assert error.value.choices == (("-g", "a100"), ("-g", "h100"))


def test_a_job_without_a_gpu_type_is_judged_for_the_one_of_its_log(mbr_perf, tmp_path):
    sizes = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "micro_batch_size": 1,
             "world_size": 1, "padded_vocab_size": 128, "bf16": "True", "max_position_embeddings": 32}  # fmt: skip
    lines = ["----- arguments -----", *(f"  {name} ..... {value}" for name, value in sizes.items()),
             "----- end of arguments -----", OOM.format("139.80")]  # fmt: skip
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines))
    found = json.loads(mbr_perf("check", log, "--no_megatron", "--json").out)
    assert found["spec"]["gpu"] == "h200"
    assert any(note.startswith("assumed: h200") for note in found["notes"])
    answer = mbr_perf("diagnose", log, "--no_plan")
    assert answer.code == 0
    assert "Assumed   h200" in answer.out
