"""`mbr-perf compare LOG GOLDEN`: training logs of Megatron-Bridge and Megatron-LM compared with their golden values."""

import json
import re
import sys

import pytest

from harness.experiment.gpu import GPUS
from tests.imports.logs import bridge_log, golden_of, megatron_lm_log, memory_gb, memory_mb

TFLOPS = [30.0] + [700.0] * 49
MEMORY = [
    (1, memory_gb(8, 1, allocated=25.5, max_allocated=45.0, max_reserved=62.0)),
    (1, memory_gb(0, 1, allocated=20.0, max_allocated=40.0, max_reserved=50.0)),
    (2, memory_gb(8, 2, allocated=25.5, max_allocated=58.8, max_reserved=64.2)),
]


def bridge_golden(tflops=TFLOPS, **memory):
    return golden_of(tflops, **memory)


def megatron_lm_golden(seconds, peaks=None, losses=None):
    def metric(values):
        return {"start_step": 1, "end_step": len(seconds), "step_interval": 1, "values": values}

    found = {"iteration-time": metric({str(n): value for n, value in enumerate(seconds, 1)})}
    if peaks:
        found["mem-max-allocated-bytes"] = metric({str(n): value for n, value in enumerate(peaks, 1)})
    if losses:
        found["lm loss"] = metric({str(n): value for n, value in enumerate(losses, 1)})
    return found


@pytest.fixture(name="compare")
def _compare(mbr_perf, tmp_path):
    """Compare a log's text with a golden's document."""

    def run(log, golden, *options):
        (tmp_path / "run.log").write_text(log)
        (tmp_path / "g.json").write_text(json.dumps(golden))
        return mbr_perf("compare", tmp_path / "run.log", tmp_path / "g.json", *options)

    return run


def findings(answer):
    return {finding["metric"]: finding for finding in json.loads(answer.out)["comparison"]}


@pytest.mark.parametrize(
    ("tflops", "options", "code", "outcome"),
    [
        (700.0, (), 0, "PASS"),
        (665.0, (), 0, "PASS"),
        (664.9, (), 5, "REGRESSION"),
        (664.9, ("--timing-threshold", "0.06"), 0, "PASS"),
        (740.0, (), 0, "IMPROVEMENT"),
        (740.0, ("--fail_on_improvement",), 7, "IMPROVEMENT"),
        (700.0, ("--eval_time_start_step", "48"), 6, "INCONCLUSIVE"),
        (700.0, ("--eval_time_start_step", "10", "--eval_time_end_step", "13"), 0, "PASS"),
    ],
)
def test_the_exit_code_is_the_verdict(compare, tflops, options, code, outcome):
    answer = compare(bridge_log([30.0] + [tflops] * 49), bridge_golden(), *options)
    assert answer.code == code
    assert answer.out.splitlines()[0].startswith(f"{outcome}: ")


@pytest.mark.parametrize(
    ("log", "golden", "doubt"),
    [
        (
            700.0e4,
            700.0,
            rf"\blog: 7e\+06 .* {max(flops for row in GPUS.values() for flops in row.peak_flops.values()) / 1e12:g} ",
        ),
        (700.0, 700.0e4, r"\breference: 7e\+06 "),
    ],
)
def test_figures_that_cannot_be_true_get_no_verdict(compare, log, golden, doubt):
    answer = compare(bridge_log([30.0] + [log] * 49), bridge_golden([30.0] + [golden] * 49), "--json")
    assert answer.code == 6
    assert json.loads(answer.out)["outcome"] == "inconclusive"
    assert re.search(doubt, findings(answer)["tflops_per_gpu"]["reason"])


def test_a_log_shorter_than_its_reference_is_judged_up_to_its_end(compare):
    answer = compare(bridge_log([30.0] + [600.0] * 29), bridge_golden(), "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["window"]["end"], len(document["provisional"])) == (5, 30, 1)


def test_memory_is_compared_at_the_moment_of_the_golden_and_the_worst_rank_is_named(compare):
    golden = bridge_golden(alloc=25.5, max_alloc=45.0, max_reserved=64.2)
    answer = compare(bridge_log(TFLOPS, memory=MEMORY), golden, "-v")
    assert answer.code == 0
    assert "peak allocated 54.76 GiB on rank 8 after iteration 2" in answer.out


def without_throughput(step):
    golden = bridge_golden()
    del golden[step]["GPU utilization"]
    return golden


CUT = bridge_log([700.0] * 40 + [None] * 10)


@pytest.mark.parametrize(
    ("log", "golden", "options", "named"),
    [
        (CUT, bridge_golden(), (), ["iteration 40 of 50"]),
        (CUT, bridge_golden(), ("--eval_time_start_step", "5", "--eval_time_end_step", "15"), ["iteration 40 of 50"]),
        (
            bridge_log(TFLOPS, losses=[11.5] * 30 + [None] * 20),
            bridge_golden(),
            (),
            ["iteration 31 is missing", "run.log:62"],
        ),
        (bridge_log([700.0] * 40 + ["nan"] + [700.0] * 9), bridge_golden(), (), ["iteration 41"]),
        (megatron_lm_log([0.9] * 50), bridge_golden(), (), ["no throughput"]),
        ("hello\nworld\n", bridge_golden(alloc=1.0, max_alloc=2.0), (), ["run.log"]),
        (bridge_log(TFLOPS), bridge_golden([0.0] * 50), (), [" 0.0"]),
        (bridge_log(TFLOPS), without_throughput("40"), (), ["step 40 of "]),
        (bridge_log(TFLOPS), bridge_golden([30.0] + [float("nan")] * 49), (), ["step 35 of "]),
    ],
)
def test_what_allows_no_verdict_is_inconclusive_and_says_where(compare, log, golden, options, named):
    answer = compare(log, golden, *options)
    assert answer.code == 6
    assert [text for text in named if text not in answer.out] == []


def test_the_failure_that_ended_a_log_is_shown(compare, tmp_path):
    oom = "[rank3]: torch.OutOfMemoryError: CUDA: 2.00 GiB."
    answer = compare(bridge_log([700.0] * 40 + [None] * 10) + oom + "\n", bridge_golden())
    assert answer.code == 6
    assert re.search(rf"rank 3 .* iteration 40 \({tmp_path / 'run.log'}:81\): torch.OutOfMemory", answer.out)


def restarted(at, tflops):
    """The log of a job of 700 TFLOP/s/GPU that goes back to iteration ``at`` after its last, then at ``tflops``."""
    lines = bridge_log(TFLOPS).splitlines()
    again = bridge_log([tflops] * 50, losses=[11.25] * 50).splitlines()
    return "\n".join(lines + again[2 * (at - 1) :]) + "\n"


@pytest.mark.parametrize(
    ("log", "options", "code", "doubt"),
    [
        (restarted(50, 1400.0), (), 6, " iteration 50,"),
        (restarted(41, 750.0), (), 6, "--eval_time_start_step 40 or --eval_time_end_step 40"),
        (restarted(41, 750.0), ("--eval_time_start_step", "40"), 0, None),
        (restarted(41, 750.0), ("--eval_time_end_step", "40"), 0, None),
        (restarted(45, 700.0) + restarted(1, 700.0), (), 0, None),
        (bridge_log(TFLOPS) * 2, (), 0, None),
    ],
)
def test_a_window_of_two_attempts_gets_no_verdict(compare, log, options, code, doubt):
    answer = compare(log, bridge_golden(), "--json", *options)
    assert answer.code == code
    assert doubt is None or doubt in findings(answer)["tflops_per_gpu"]["reason"]


def test_megatron_lm_without_gpus_and_batch_judges_the_last_rank_and_no_time(compare):
    seconds = [7.5] + [0.9] * 49
    memory = [(2, memory_mb(rank, 2, 1000.0, peak, 3000.0, 3000.0)) for rank, peak in ((0, 2900.0), (4, 2000.0))]
    peaks = [1900.0 * 2**20] + [2000.0 * 2**20] * 49
    answer = compare(megatron_lm_log(seconds, memory=memory), megatron_lm_golden(seconds, peaks), "-v")
    assert answer.code == 6
    assert "GPUs and global batch size" in " ".join(answer.out.split())
    assert "peak allocated 2.83 GiB on rank 0" in answer.out
    slower = compare(megatron_lm_log([7.5] + [0.96] * 49), megatron_lm_golden(seconds), "--json")
    assert (slower.code, findings(slower)["step_time_s"]["verdict"]) == (6, "inconclusive")


def test_metrics_of_a_golden_may_have_different_steps(compare):
    golden = megatron_lm_golden([0.9] * 50, losses=[11.5] * 50)
    golden["iteration-time"]["values"] = {str(n): 0.9 for n in (1, *range(5, 51, 5))} | {"10": "nan"}
    answer = compare(megatron_lm_log([0.9] * 50), golden, "--json")
    assert (answer.code, json.loads(answer.out)["window"]["iterations"]) == (6, [40, 45, 50])


def test_json_is_one_document_with_the_keys_of_compare(compare, tmp_path):
    document = json.loads(compare(bridge_log(TFLOPS, memory=MEMORY), bridge_golden(alloc=25.5), "--json").out)
    assert (document["schema_version"], document["outcome"], document["exit_code"]) == (1, "pass", 0)
    assert document["golden"] == {
        "path": str(tmp_path / "g.json"), "format": "bridge", "layout": "flat", "num_steps": 50,
    }  # fmt: skip
    assert document["window"]["iterations"] == list(range(36, 51))
    assert document["log"]["worst_memory"]["max_allocated_bytes"]["rank"] == 8
    assert document["comparison"][0] == {
        "metric": "tflops_per_gpu", "current": 700.0, "golden": 700.0, "change": 0.0, "threshold": 0.05,
        "verdict": "pass", "reason": None,
    }  # fmt: skip


def test_a_log_comes_from_standard_input(mbr_perf, tmp_path, monkeypatch):
    (tmp_path / "g.json").write_text(json.dumps(bridge_golden()))
    (tmp_path / "job.log").write_text(bridge_log(TFLOPS))
    with (tmp_path / "job.log").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert mbr_perf("compare", "-", tmp_path / "g.json").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("x.log", "g", "--golden_values_path", "h"), "--golden_values_path"),
        (("-", "g", "--accept_difference", "torch"), "--accept_difference"),
        (("-", "g", "--follow"), "--follow: - "),
        (("x.log", "g", "--timing_threshold", "nan"), "--timing_threshold nan"),
        (("RUN", "--follow"), "--follow: for a log only"),
        (("-", "-"), "-: "),
        ((), "error: "),
    ],
)
def test_a_wrong_request_is_refused(mbr_perf, options, message):
    answer = mbr_perf("compare", *options)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize(
    "options",
    [("--skip_first_percent_time", "1"), ("--eval_time_start_step", "-1"),
     ("--eval_time_start_step", "9", "--eval_time_end_step", "9")],
)  # fmt: skip
def test_a_window_out_of_range_is_a_wrong_request(compare, options):
    assert compare(bridge_log(TFLOPS), bridge_golden(), *options).code == 2
