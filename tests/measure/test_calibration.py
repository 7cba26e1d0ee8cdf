"""`plan --calibrate` from recorded runs to the kept file."""

import json
from dataclasses import replace

import pytest

from harness.errors import BadRequestError
from harness.launch.environment import this_host
from harness.launch.machine import installed_software
from harness.measure.calibration_runs import calibrate
from harness.measure.prediction import constants_for, predict_with, tracing
from harness.predict.exact import planner_fingerprint, traced_with
from harness.predict.prediction import BUILT_IN
from harness.records.calibration import Calibration, FittedConstant
from harness.records.folders import calibration_path
from harness.records.rank import Coordinates
from harness.records.store import write_record
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from tests.commands import refused


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    here = this_host()
    return replace(here, shell={**here.shell, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))})


@pytest.fixture
def recorded(host, tmp_path, make_record):
    """``recorded("mlp", more)``: a committed cpu run that took ``more`` bytes beyond what is predicted of each stage."""

    def write(recompute: str, more: int, **changes):
        spec = resolve(Request(model_recipe_name="llama3_8b", gpu="cpu", recompute=recompute)).spec
        spec = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"transformer_impl": "local"})})
        predicted = predict_with(tracing(host), spec, installed_software()).prediction
        record = make_record(spec, run_id=f"run-{recompute}-{more}", **changes)
        ranks = tuple(
            rank.model_copy(update={
                "coordinates": Coordinates(pp=rank.rank),
                "memory": rank.memory.model_copy(update={
                    "max_allocated_bytes": predicted.stages[rank.rank].total + more
                }),
            })
            for rank in record.ranks
        )  # fmt: skip
        folder = tmp_path / record.run_id
        folder.mkdir(parents=True)
        write_record(folder, record.model_copy(update={"ranks": ranks}))
        return folder

    return write


@pytest.mark.train
@pytest.mark.long
def test_cpu_runs_determine_only_what_the_allocator_holds(recorded, host, tmp_path):
    for recompute, more in (("none", 1000), ("mlp", 2000), ("full:uniform:1", 4000)):
        recorded(recompute, more)
    made, path = calibrate((str(tmp_path),), host, tmp_path / "cpu.json")
    assert [(c.name, c.value) for c in made.constants if c.value is not None] == [("allocator_bytes", 2000)]
    errors = {run.recompute: run for run in made.runs}
    assert errors["mlp"].peak_after == 0
    assert errors["mlp"].peak_before < 0
    assert errors["mlp"].peak_left_out > 0  # the other two say 2500
    assert json.loads(path.read_text()) == made.model_dump(mode="json")


def test_a_kept_calibration_is_used_and_named(recorded, host, tmp_path):
    run = recorded("none", 5000)
    calibrate((str(run),), host, calibration_path("cpu", tmp_path / "results"))
    constants = constants_for("cpu", tmp_path / "results")
    assert constants.allocator_bytes == 5000
    assert constants.origin.startswith("calibrated on 1 run of cpu: ")
    assert "allocator_bytes" in constants.origin
    assert constants_for("cpu", tmp_path / "elsewhere") == BUILT_IN
    assert constants_for("h100", tmp_path / "results") == BUILT_IN


@pytest.fixture
def kept(tmp_path):
    """``kept(planner=...)``: a calibration of the CPU in a results folder; returns that folder."""

    def write(**changes):
        fitted = FittedConstant(name="allocator_bytes", built_in=0, value=77, bounds=(0, 100))
        values = {"planner": planner_fingerprint(), "traced_with": traced_with(), **changes}
        made = Calibration(gpu="cpu", constants=(fitted,), runs=(), made_at="2026-01-02T03:04:05+00:00", **values)
        path = calibration_path("cpu", tmp_path)
        path.parent.mkdir()
        path.write_text(made.model_dump_json())
        return tmp_path

    return write


def test_a_calibration_of_this_planner_is_used(kept):
    assert constants_for("cpu", kept()).allocator_bytes == 77


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"planner": "0123456789abcdef"}, "planner"),
        ({"traced_with": {"megatron-core": "0.1.0"}}, "fitted with megatron-core 0.1.0, here "),
    ],
)
def test_a_calibration_of_another_planner_is_not_used_and_the_reason_is_shown(kept, change, reason):
    results = kept(**change)
    constants = constants_for("cpu", results)
    assert replace(constants, origin="") == BUILT_IN
    assert reason in constants.origin
    assert str(calibration_path("cpu", results)) in constants.origin


def test_a_file_that_cannot_be_written_is_a_wrong_request(recorded, host, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "x.json"
    refused(lambda: calibrate((str(recorded("none", 5000)),), host, out), str(out))


def test_runs_of_several_gpus_are_refused(make_record, make_spec, host, tmp_path):
    for record in (make_record(run_id="one"), make_record(make_spec(gpu="cpu"), run_id="two")):
        (tmp_path / record.run_id).mkdir()
        write_record(tmp_path / record.run_id, record)
    with pytest.raises(BadRequestError, match="several GPU types: h100: one; cpu: two"):
        calibrate((str(tmp_path),), host, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("gpu", "constants", "problem"),
    [
        ("h200", {"memory": 0.8}, "several GPU types: h200: the probe; h100: "),
        ("h100", {"memory": 1.2}, r"memory 1\.2: from 0\.1 to 0\.98"),
        ("h100", {"norm": 3.0}, "norm 3: known: gemm_bf16, "),
        ("h100", {"call_s": "quick"}, "call_s"),
        ("scripted", {}, "Scripted NVIDIA H100 "),
    ],
)
def test_a_probe_with_impossible_values_is_refused(make_record, host, tmp_path, gpu, constants, problem):
    write_record(tmp_path, make_record())
    probe = tmp_path / "probe.json"
    device = "Scripted NVIDIA H100" if gpu == "scripted" else "NVIDIA H100"
    document = {"gpu": gpu.replace("scripted", "h100"), "constants": constants, "device": device}
    probe.write_text(json.dumps(document))
    with pytest.raises(BadRequestError, match=problem):
        calibrate((str(tmp_path), str(probe)), host, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("content", ["", "text", "[1]", '{"a": 1}', '{"constants": [], "planner": ""}'])
def test_a_file_that_is_no_probe_is_refused_in_one_message(host, tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    refused(lambda: calibrate((str(path),), host, tmp_path / "out.json"), f"{path} is no file of mbr-perf probe: ")
    assert not (tmp_path / "out.json").exists()


def test_runs_without_use_for_the_fit_are_refused_with_their_reasons(make_record, make_spec, host, tmp_path):
    spec = make_spec(gpu="cpu")
    unfit = {
        "died": {"status": "failed"},
        "odd": {"suspect": ("GPU 1 was throttled",)},
        "old": {"notes": ("replayed from x: nothing measured",)},
    }
    for name, changes in unfit.items():
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, make_record(spec, run_id=name, **changes))
    refused(lambda: calibrate((str(tmp_path),), host, tmp_path / "out.json"), "died: ", " failed", "odd: GPU 1 was throttled", "old: replayed from x",
            "allocator_bytes: ")  # fmt: skip
    assert not (tmp_path / "out.json").exists()


def test_all_references_that_name_no_run_are_reported_at_once(host, tmp_path):
    (tmp_path / "empty").mkdir()
    given = (str(tmp_path / "empty"), str(tmp_path / "nowhere"))
    refused(lambda: calibrate(given, host), "empty: no record.json", "nowhere", num=None)


def test_a_probe_of_an_unknown_gpu_type_is_a_wrong_request(host, tmp_path):
    (path := tmp_path / "probe.json").write_text('{"gpu": "h999", "device": "H999", "constants": {"gemm_bf16": 0.8}}')
    refused(lambda: calibrate((str(path),), host), f"{path}: gpu 'h999'")
