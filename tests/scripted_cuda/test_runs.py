"""Whole runs on scripted GPUs: tests compare what they allocate with the prediction, and end some of them by signals."""

import json
import signal
import time

import pytest

from harness.launch.processes import is_alive, send
from harness.records.golden import golden_text
from harness.records.store import read_run
from tests.conftest import build_golden
from tests.faults.at_work import Run
from tests.scripted_cuda.conftest import LOCAL, RUN
from tests.scripted_cuda.lane import MCORE

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

ONE = ("-ng", "1", "-tp", "1", "-gb", "2")
TE = ("--set", "kernels.transformer_impl=transformer_engine")


def in_step(machine, step, ranks=1):
    """Return whether that many ranks have reached a step."""
    there = [path.read_text().replace(" ", "") for path in machine.folder.rglob("*.progress.jsonl")]
    return sum(f'"step":{step}' in text for text in there) >= ranks


def free_everywhere(machine):
    """Return whether all devices are free."""
    asked = (
        "import torch; print(all(len({*torch.cuda.mem_get_info(i)}) == 1 for i in range(torch.cuda.device_count())))"
    )
    return machine.run("-c", asked).stdout == "True\n"


@pytest.mark.parametrize(
    ("layout", "peaks", "predicted"),
    [
        (("-tp", "2"), [21.76, 21.76], 21.76),  # with sequence parallel
        (("-tp", "1", "-pp", "2"), [19.56, 26.76], 26.76),
        (("-tp", "1", "-pp", "2", "-vp", "2"), [20.91, 28.05], 28.05),
        (("-tp", "1"), [32.55, 32.55], 32.55),  # the distributed optimizer, with overlap
    ],
)
def test_two_ranks_allocate_what_was_predicted(machine, whole_run, layout, peaks, predicted):
    ran = whole_run(machine(num_devices=2), *LOCAL, "-ng", "2", "-gb", "4", *layout)
    assert ran.code == 0
    assert ran.peaks() == peaks
    assert round(ran.record["prediction"]["peak_bytes"] / 2**30, 2) == predicted
    assert ran.device_used == ran.peaks("max_reserved_bytes")


@pytest.mark.parametrize(
    ("changes", "busy", "reserved"),
    [
        ((), True, 47.13),
        (("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"), False, 44.71),
        (("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"), True, 50.96),
    ],
)
def test_reserved_depends_on_segments_and_on_side_streams(machine, whole_run, changes, busy, reserved):
    ran = whole_run(machine(num_devices=1, busy=busy), *LOCAL, *ONE, *changes)
    assert ran.peaks() == [43.29]
    assert ran.peaks("max_reserved_bytes") == [reserved]


@pytest.mark.parametrize(
    ("graphs", "figures"),
    [
        (
            ("transformer_engine", "--cuda_graph_scope", "attn", "-ms", "8"),
            {"0.16": (32.96, 33.68), "0.19": (32.96, 33.68)},
        ),
        (("local", "-ms", "6"), {"0.16": (29.02, 33.94), "0.19": (28.70, 34.00)}),
        (("full_iteration", "-ms", "6"), {"0.16": (33.02, 36.01), "0.19": (33.02, 33.14)}),
    ],
)
def test_megatron_core_captures_graphs_with_private_pools(machine, whole_run, graphs, figures):
    ran = whole_run(machine(num_devices=1), *TE, *ONE, "--cuda_graph_impl", *graphs)
    assert ran.code == 0
    assert (*ran.peaks(), *ran.peaks("max_reserved_bytes")) == figures[MCORE]


def test_offloaded_activations_leave_the_device(machine, whole_run):
    ran = whole_run(machine(num_devices=1), *TE, *ONE, "--activation_offload_layers", "2")
    assert ran.code == 0
    assert ran.peaks() == [30.83]  # 32.96 without


def test_an_ab_of_the_allocator_runs_both_and_measures_no_time(machine):
    here = machine(num_devices=1)
    done = here.mbr_perf("run", *RUN, *LOCAL, *ONE, "--ab", "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
                         "--results_dir", here.folder / "results", "--json")  # fmt: skip
    records = [json.loads(path.read_text()) for path in sorted(here.folder.rglob("record.json"))]
    reserved = [round(record["ranks"][0]["memory"]["max_reserved_bytes"] / 2**30, 2) for record in records]
    assert reserved == [43.87, 44.71], done.stderr[-2000:]
    cells = json.loads(done.stdout)["cells"]
    assert [cell["metrics"]["step_time_s"] for cell in cells] == [None, None]


def test_a_run_passes_its_memory_gate(machine, whole_run, tmp_path):
    here = machine(num_devices=1)
    # Kernels take no time. Long steps let a sample fall among them; with more steps the constant loss would be in doubt.
    first = whole_run(here, *LOCAL, *ONE, "-gb", "64", "-ms", "6", "--sample_interval_ms", "3")
    record, golden = read_run(str(first.folders[0])), tmp_path / "golden.json"
    golden.write_text(
        golden_text(build_golden(record, {"peak_allocated_bytes": record.ranks[0].memory.max_allocated_bytes}))
    )
    accept = [word for name in ("software", "device_name", "driver_version") for word in ("--accept_difference", name)]
    judged = here.mbr_perf("compare", first.folders[0], golden, *accept, "--json")
    found = json.loads(judged.stdout)
    verdicts = {each["metric"]: each["verdict"] for each in found["comparison"]}
    assert (verdicts["peak_allocated_bytes"], judged.returncode) == ("pass", 0), judged.stdout


def test_ctrl_c_ends_the_ranks_and_frees_the_devices(machine):
    here = machine(num_devices=1)
    command = here.mbr_perf_command("run", *RUN, *LOCAL, *ONE, "-ms", "5000", "--results_dir", here.folder / "results")
    process = here.started(*command, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not in_step(here, 3):
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130, said[-2000:]
    assert free_everywhere(here)


@pytest.mark.parametrize(
    ("number", "kinds", "why"),
    [
        (signal.SIGKILL, ["signal", "signal"], "Signal 9 (SIGKILL)"),
        (signal.SIGSTOP, ["lost", "hang"], "no sign"),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_run_and_frees_the_devices(machine, number, kinds, why):
    here = machine(num_devices=2)
    command = here.mbr_perf_command("run", *RUN, *LOCAL, "-ng", "2", "-tp", "1", "-gb", "4", "-ms", "5000",
                                    "--hang_timeout", "30", "--results_dir", here.folder / "results")  # fmt: skip
    run = Run(here.started(*command, start_new_session=True))
    there = run.victims(lambda: in_step(here, 3, ranks=2), rank=2, agent=1)
    send(max(there["rank"], key=lambda process: process.pid), number)
    code, said, _ = run.ended()
    (path,) = (here.folder / "results" / "runs").glob("*/record.json")
    record = json.loads(path.read_text())
    assert (code, record["status"]) == (3, "failed"), said[-2000:]
    assert record["failure"].startswith("rank 1 ") and why in record["failure"]
    assert [rank["failure"]["kind"] for rank in record["ranks"]] == kinds
    assert not any(is_alive(process) for kind in there for process in there[kind])
    assert free_everywhere(here)


def test_communication_of_experts_that_overlaps_runs_by_megatron_cores_schedule_of_layers(machine):
    """One rank of 256: the schedule asks forward_step for the parts of the layers."""
    job = {"model_recipe_name": "qwen3_235b_a22b", "task": "pretrain", "gpu": "h100", "compute_dtype": "bf16"}
    words = [f"{name}={value}" for name, value in job.items()]
    found = machine(num_devices=1).one_rank("0", "2", *words, "num_gpus=256", "global_batch_size=512", "balanced=1")
    assert found["failure"] is None and found["coordinates"]["pp"] == 0
    assert found["peak_allocated_bytes"][1] == pytest.approx({"0.16": 59.22, "0.19": 59.16}[MCORE] * 2**30, rel=0.0005)
