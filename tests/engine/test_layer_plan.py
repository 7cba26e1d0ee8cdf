"""A plan of recompute by layer on real layers of megatron-core: read back, and measured as predicted on every rank."""

import json

import pytest

from harness.experiment.modules import MODULES

# PP, VP, layers, the plan, and what ranks are to read back: layers under full, and layers by module.
PLANS = {
    "two stages": ("2", "none", "4", "plan:1xfull+1xmlp;1xmlp+1xnone", 1, {"mlp": 2}),
    "full before selective": (
        "2", "none", "8", "plan:3xfull+1xcore_attn,layernorm;4xfull", 7, {"core_attn": 1, "layernorm": 1},
    ),
    "interleaved": ("4", "2", "8", "plan:1xfull/1xmlp;1xmlp/1xnone;1xnone/1xfull;1xnone/1xnone", 2, {"mlp": 2}),
}  # fmt: skip


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two stages", *(pytest.param(name, marks=pytest.mark.long) for name in [*PLANS][1:])])
def test_a_mixed_plan_is_measured_as_predicted_on_every_rank(name, mbr_perf, tmp_path):
    pp, vp, layers, plan, num_full, modules = PLANS[name]
    done = mbr_perf(
        "run", "-mr", "llama3_8b", "-g", "cpu", "-pp", pp, "-vp", vp, "-ng", pp, "--num_layers", layers, "-gb", "4",
        "--recompute", plan, "-sl", "256", "--max_steps", "4", "--results_dir", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "record.json").read_text())
    predicted = {stage["pp_rank"]: stage["total"] for stage in record["prediction"]["stages"]}
    assert len(record["ranks"]) == int(pp)
    for rank in record["ranks"]:
        stage = rank["coordinates"]["pp"]
        assert rank["memory"]["max_allocated_bytes"] == pytest.approx(predicted[stage], rel=0.003)
    assert record["effective"]["full_layers"] == num_full
    assert record["effective"]["modules"] == modules


@pytest.mark.train
@pytest.mark.filterwarnings("ignore")  # torch and megatron warn on import
def test_every_module_can_be_set_on_a_layer():
    from harness.engine.layer_plan import _SET

    assert set(_SET) == set(MODULES)


@pytest.mark.slow
def test_a_plan_of_another_layout_does_not_start(mbr_perf):
    done = mbr_perf("check", "-mr", "llama3_8b", "-g", "cpu", "--recompute", "plan:1xfull+2xnone", "--json")
    assert done.code != 0
    assert "R24" in {finding["id"] for finding in json.loads(done.out)["findings"]}


def test_every_problem_of_a_plan_file_is_named_at_once(mbr_perf, tmp_path):
    file = tmp_path / "plan.yaml"
    rows = ["{stage: -1, chunk: 0, layers: 1, setting: mlp}", "{stage: 0, chunk: 0, layers: 0, setting: mlp}",
            "{stage: 0, chunk: 0, layers: 1, setting: mpl}", "{stage: 0, layers: 1, setting: mlp}"]  # fmt: skip
    file.write_text("recompute_plan:\n" + "".join(f"  - {row}\n" for row in rows))
    done = mbr_perf("check", "-mr", "llama3_8b", "-g", "cpu", "--recompute", str(file))
    assert done.code == 2
    assert all(f"recompute_plan[{number}]" in done.err for number in range(len(rows)))
