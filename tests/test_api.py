"""The Python interface: the documents of the commands as values."""

import json
import subprocess
import sys

import pytest

from harness.api import BadRequestError, Experiment, check, compare, load_run, plan

LLAMA = Experiment(model_recipe_name="llama3_8b", gpu="h100", tensor_model_parallel_size=2)


def test_importing_it_loads_neither_torch_nor_pydantic_documents():
    asked = "import sys, harness.api; print(*sorted({'torch', 'megatron'} & sys.modules.keys()))"

    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "\n"


def test_check_is_the_document_of_the_command(mbr_perf):
    found = check(LLAMA, ask_megatron=False)
    printed = mbr_perf("check", "-mr", "llama3_8b", "-g", "h100", "-tp", 2, "--no_megatron", "--json")

    assert found.to_dict() == json.loads(printed.out)
    assert found.exit_code == printed.code == 0
    assert found.spec.parallelism.tensor_model_parallel_size == 2


def test_an_illegal_request_is_an_answer_and_an_unreadable_one_an_error():
    found = check(
        Experiment(model_recipe_name="llama3_8b", gpu="h100", tensor_model_parallel_size=3), ask_megatron=False
    )

    assert found.exit_code == 2
    assert {finding.severity for finding in found.findings} >= {"error"}
    with pytest.raises(BadRequestError, match="llama3_9b"):
        check(Experiment(model_recipe_name="llama3_9b"))
    for function in (check, plan):
        with pytest.raises(BadRequestError, match=r"'llama3_8b' .*Experiment"):
            function("llama3_8b")


def test_a_run_is_compared_as_by_the_command(replay, mbr_perf, tmp_path):
    replay("ok")
    results = tmp_path / "results"
    (run,) = (results / "runs").iterdir()
    found = compare(run)

    assert found.to_dict() == json.loads(mbr_perf("compare", run, "--json").out)
    with pytest.raises(BadRequestError, match="replay"):
        compare(run, run, results_dir=results)


def test_a_loaded_run_has_a_row_for_every_step_of_every_rank(replay, tmp_path):
    replay("ok")
    (run,) = (tmp_path / "results" / "runs").iterdir()
    loaded = load_run(run.name, results_dir=tmp_path / "results")

    assert loaded.status == "ok"
    assert loaded.metrics.step_time_s.median > 0
    assert all(rank.steps for rank in loaded.ranks)
    assert json.loads(json.dumps(loaded.to_dict()))["run_id"] == run.name
    with pytest.raises(BadRequestError):
        load_run("nothing", results_dir=tmp_path / "results")


@pytest.mark.train
def test_a_plan_is_the_document_of_the_command(mbr_perf):
    asked = Experiment(model_recipe_name="llama3_8b", gpu="cpu")
    found = plan(asked, over={"mb": (1, 2)}, only=("mlp",), margin=0.1)
    printed = mbr_perf(
        "plan", "-mr", "llama3_8b", "-g", "cpu", "--over", "mb=1,2", "--only", "mlp", "--margin", 0.1, "--json"
    )

    assert found.to_dict() == json.loads(printed.out)
    assert {(row.layout, row.recompute) for row in found.settings} >= {("mb=1", "mlp"), ("mb=2", "none")}
