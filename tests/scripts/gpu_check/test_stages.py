"""What gpu-check finds on a machine where all is well, and where one thing is not."""

import json
import shutil
import subprocess
import time

import pytest
from checks import not_suspect
from evidence import earlier_cases, write_case
from machine import Target, find_target, require_fit
from ooms import WAYS, make_ooms, oversize, survive_oom
from runs import end, finished
from sitting import RUN, Asked, probe
from snapshots import read_snapshots
from training import train_settings

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.processes import identify, is_alive
from tests.conftest import build_record, build_spec
from tests.waiting import wait_until

FEW = ("mlp", "full:uniform:1")


@pytest.fixture
def two_gpus(python):
    """A machine with two GPUs, of which the shell lets some be seen."""
    gpus = [{"index": i, "name": "NVIDIA H200", "uuid": f"GPU-{name}"} for i, name in enumerate(("a1", "b2"))]

    def make(visible):
        shell = {"SCRIPTED_GPU": json.dumps({"gpus": gpus}), "CUDA_VISIBLE_DEVICES": visible}
        return Host(python=python, hostname="here", num_cores=8, shell=shell)

    return make


def verdicts(cases):
    return {case.name: case.verdict for case in cases}


def failed(case):
    return [check.name for check in case.checks if check.verdict == "fail"]


@pytest.mark.slow
def test_every_setting_passes_where_all_is_well(machine, shape):
    cases = list(train_settings(machine(), shape("dense"), FEW))
    assert verdicts(cases) == {"dense.none": "pass", "dense.mlp": "pass", "dense.full-uniform-1": "pass"}
    full = cases[1]
    assert [check.name for check in full.checks] == [
        "trained", "not_suspect", "memory_measured", "memory_in_order", "same_device", "recompute_acts", "same_losses",
        "peak_not_above",
    ]  # fmt: skip
    assert full.figures == {
        "step_time_s": 0.1, "tflops_per_gpu": full.figures["tflops_per_gpu"], "peak_allocated_bytes": 8 * 10**9,
        "peak_reserved_bytes": 9 * 10**9, "peak_device_bytes": 20 * 10**9, "static_bytes": None, "loss_first": 10.4,
        "loss_last": 10.35,
    }  # fmt: skip


def test_every_shape_is_trained_without_and_with_whole_recompute_before_any_other_setting(machine, shape):
    asked = Asked((shape("dense"), shape("moe")), ("bf16",), ("fused",))
    names = [case.name if case else None for case in RUN["train"](machine(seconds=5.0), asked)]
    assert names[:5] == ["dense.none", "dense.full-uniform-1", "moe.none", "moe.full-uniform-1", None]
    assert names.count(None) == 1
    assert {"dense.mlp", "moe.moe_act"} <= set(names[5:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "setting", "checks"),
    [
        ("reserved_above_device", "none", ["memory_in_order"]),
        ("other_gpu", "none", ["memory_in_order", "same_device"]),  # which nobody watched
        ("other_layers", "mlp", ["recompute_acts"]),
        ("other_loss", "mlp", ["same_losses"]),
        ("full_costs_more", "full:uniform:1", ["peak_not_above"]),
        ("crash", "mlp", ["trained"]),
        ("throttled", "mlp", ["not_suspect"]),
    ],
)
def test_what_goes_wrong_fails_its_own_check_only(machine, shape, fault, setting, checks):
    cases = {case.recompute: case for case in train_settings(machine(fault), shape("dense"), (setting,))}
    assert failed(cases[setting]) == checks


@pytest.mark.parametrize(("gpu", "verdict"), [("h100", "fail"), ("cpu", "skipped")])
def test_a_suspect_run_fails_with_its_reasons_and_a_rehearsal_says_them(gpu, verdict):
    reasons = ("GPU 0 of here was throttled: sw_thermal_slowdown", "GPU 1 of here was shared with pid 7 (x)")
    check = not_suspect(build_record(build_spec(gpu=gpu), suspect=reasons))
    assert check.verdict == verdict
    assert check.found.endswith("; ".join(reasons))
    assert not_suspect(build_record(build_spec(gpu=gpu))).verdict == "pass"


@pytest.mark.slow
def test_a_setting_whose_control_failed_is_compared_in_a_later_sitting(machine, shape, tmp_path):
    runs = machine("control_crash")
    first = list(train_settings(runs, shape("dense"), ("mlp",)))
    assert verdicts(first) == {"dense.none": "fail", "dense.mlp": "not_run"}
    for case in first:
        write_case(tmp_path / "kept", runs.target, case)
    assert earlier_cases(tmp_path / "kept", runs.target).kept == {}


@pytest.mark.slow
def test_what_passed_is_not_run_again(machine, shape, tmp_path):
    def sitting(runs):
        return [*train_settings(runs, shape("dense"), ("mlp",)), *survive_oom(runs, shape("dense"))]

    first = machine()
    for case in sitting(first):
        write_case(tmp_path / "kept", first.target, case)
    shutil.rmtree(tmp_path / "runs")
    again = sitting(machine(kept=earlier_cases(tmp_path / "kept", first.target).kept))
    assert verdicts(again) == dict.fromkeys(("dense.none", "dense.mlp", "dense.oom", "dense.after_oom"), "pass")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_oom_must_be_recorded_and_the_next_run_be_normal(machine, shape):
    cases = list(survive_oom(machine(), shape("dense")))
    assert verdicts(cases) == {"dense.oom": "pass", "dense.after_oom": "pass"}
    assert failed(next(survive_oom(machine("oom_fits"), shape("dense")))) == ["recorded_as_oom", "says_where"]


@pytest.mark.parametrize("name", ["dense", "moe", "mla"])
def test_an_oversized_request_of_a_rehearsal_is_legal_and_no_machine_grants_it(machine, shape, name):
    target = machine(rehearse=True).target
    model = shape(name).settle(target, **oversize(target, shape(name))).spec.model
    assert 2 * model.vocab_size * model.hidden_size > 2 * 10**13


@pytest.mark.parametrize("total_gb", [24, 80, 141, 288])
def test_an_oversized_request_needs_more_than_the_gpu_and_its_weights_less(machine, shape, total_gb):
    target = machine(total_bytes=total_gb * 10**9).target
    asked = oversize(target, shape("dense"))
    layers, samples = asked["num_layers"], asked["micro_batch_size"]
    seq = shape("dense").settle(target).spec.batch.seq_length
    weights_and_gradients = layers * 218e6 * 6 + 262e6 * 6
    kept_by_a_layer = 16 * 2 * samples * seq * 4096
    assert weights_and_gradients < total_gb * 1e9 < layers * kept_by_a_layer


@pytest.mark.slow
def test_every_way_of_running_out_of_memory_has_its_class(machine):
    cases = {case.name: case for case in make_ooms(machine())}
    assert {name: failed(case) for name, case in cases.items() if failed(case)} == {}
    assert len(cases) == len(WAYS)
    kept = cases["oom.outside_allocator"].facts["oom"]
    assert (kept["expected"], kept["found"], kept["confidence"]) == ("outside_allocator", "outside_allocator", "medium")
    assert kept["text"].startswith("CUDA out of memory. Tried to allocate 1.00 GiB.")


@pytest.mark.slow
def test_a_text_that_is_taken_for_another_class_or_a_program_that_dies_fails(machine):
    cases = [case for case in make_ooms(machine("other_class")) if case.verdict != "pass"]
    assert [case.name for case in cases] == ["oom.outside_allocator"]
    assert failed(next(make_ooms(machine("program_dies")))) == ["made"]


@pytest.mark.slow
def test_a_run_that_leaves_no_snapshot_fails(machine, shape):
    cases = {case.name: case for case in read_snapshots(machine(), shape("dense"))}
    assert failed(cases["dense.snapshot"]) == ["snapshot_read"]
    assert cases["dense.snapshot_on_oom"].checks[-1].found == "snapshot_000.pickle was not written"


def test_what_needs_a_gpu_is_skipped_on_a_processor_and_says_so(machine, shape):
    runs = machine(rehearse=True)
    cases = [*read_snapshots(runs, shape("dense"))]
    assert {case.verdict for case in cases} == {"skipped"}
    assert all("needs a GPU" in check.found for case in cases for check in case.checks)
    ooms = verdicts(make_ooms(runs))
    assert (ooms.pop("oom.host_memory"), set(ooms.values())) == ("pass", {"skipped"})


def test_nothing_is_started_that_the_time_does_not_allow(machine, shape, tmp_path):
    runs = machine(seconds=5.0)
    cases = [*train_settings(runs, shape("dense"), FEW), *make_ooms(runs)]
    for stage in (survive_oom, read_snapshots):
        cases += stage(runs, shape("dense"))
    assert {case.verdict for case in cases} == {"not_run"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [train_settings, survive_oom])
def test_a_run_that_the_deadline_stopped_is_no_failure(machine, shape, stage):
    only = (("mlp",),) if stage is train_settings else ()
    cases = list(stage(machine("timed_out"), shape("dense"), *only))
    assert {case.verdict for case in cases} == {"not_run"}
    assert [check.found.partition(" after ")[0] for check in cases[0].checks] == ["stopped at the deadline"]


def test_a_program_that_the_deadline_stopped_is_no_failure(machine, shape):
    runs = machine("endless", seconds=1.0, least_s=0.5)
    (way, *_) = (case for case in make_ooms(runs) if case.checks)
    assert way.verdict == "not_run"
    assert way.checks[0].found == "stopped at the deadline after 1 s"


@pytest.mark.parametrize(
    ("visible", "uuid"), [("", "GPU-a1"), ("1", "GPU-b2"), ("GPU-b2,GPU-a1", "GPU-b2"), ("GPU-b", "GPU-b2")]
)
def test_the_gpu_that_is_checked_is_the_first_that_ranks_would_see(two_gpus, tmp_path, visible, uuid):
    assert find_target(two_gpus(visible), tmp_path, rehearse=False).uuids[0] == uuid


@pytest.mark.parametrize("visible", ["2", "MIG-a1", "GPU-", "-1"])
def test_a_variable_that_names_no_gpu_of_this_machine_is_refused(two_gpus, tmp_path, visible):
    with pytest.raises(BadRequestError, match=rf"CUDA_VISIBLE_DEVICES: '{visible}' is .*\n.*one of 0 \(GPU-a1\), 1 "):
        find_target(two_gpus(visible), tmp_path, rehearse=False)


@pytest.mark.slow
def test_no_secret_that_a_program_prints_is_in_what_is_kept(machine, shape, tmp_path):
    runs = machine("secret")
    cases = [*make_ooms(runs), *train_settings(runs, shape("dense"), ("mlp",))]
    for case in cases:
        write_case(tmp_path / "kept", runs.target, case)
    texts = {path.stem: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert [name for name, text in texts.items() if "CANARY" in text] == []
    assert all("***" in texts[name] for name in ("oom.capacity", "oom.library", "dense.mlp"))


def test_the_doctor_is_asked_first_and_its_problems_end_the_sitting_with_their_remedies(python, tmp_path):
    """Without a compiler, or with a torch that does not load, the first step of every run would crash."""
    (tmp_path / "echo").symlink_to("/bin/echo")  # which the scripted interpreter needs
    gpus = '{"gpus": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1"}]}'
    host = Host(python=python, hostname="here", num_cores=8, shell={"SCRIPTED_GPU": gpus, "PATH": str(tmp_path)})
    with pytest.raises(BadRequestError, match=r"(?s)doctor\):\n.*imports: torch: .*compiler: no C compiler.*\n.*g\+\+"):
        require_fit(Target(host, "h200", "NVIDIA H200"), tmp_path)


def test_a_rehearsal_asks_the_doctor_for_a_machine_without_gpus(python, tmp_path):
    host = Host(python=python, hostname="here", num_cores=8, shell={"SCRIPTED_GPU": "{", "PATH": str(tmp_path)})
    assert all("NVML" not in warning for warning in require_fit(Target(host, "cpu", "CPU"), tmp_path))
    (tmp_path / "results").write_text("a file")
    with pytest.raises(BadRequestError, match=r"results folder: .*\n  use a checkout that you may write to"):
        require_fit(Target(host, "cpu", "CPU"), tmp_path / "results")


def test_a_run_that_does_not_end_when_asked_to_is_killed_with_all_that_it_started():
    script = "trap '' TERM; sleep 60 & echo $!; while :; do sleep 0.1; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as process:
        child = identify(int(process.stdout.readline()))
        began = time.monotonic()
        end(process, within_s=0.3)
    assert process.returncode == -9
    assert wait_until(lambda: not is_alive(child))
    assert time.monotonic() - began < 10


def test_a_run_that_outlives_its_time_limit_is_killed_and_says_so(machine, tmp_path):
    ran = finished(("/bin/sleep", "60"), {}, tmp_path, timeout_s=0.5)
    assert (ran.exit_code, ran.record, ran.was_killed) == (-15, None, True)
    assert ran.output == "still running after 0 s, ended by gpu-check"


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "failing"), [("", []), ("too_fast", ["gemm_bf16"]), ("program_dies", ["made"])])
def test_probed_constants_that_no_gpu_reaches_fail(machine, fault, failing):
    runs = machine(fault)
    (case,) = probe(runs)
    assert [check.name for check in case.checks if check.verdict == "fail"] == failing
    if not fault:
        assert (case.facts["gpu"], case.facts["constants"]["call_s"]) == (
            "h200",
            pytest.approx(6e-5 / 0.7268, rel=0.01),
        )
        return
    (case,) = probe(machine(rehearse=True))  # a processor's rates are no constants
    assert (case.verdict, case.facts) == ("skipped", {})
