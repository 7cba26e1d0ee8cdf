"""The prediction that a run keeps beside its measurement."""

from dataclasses import replace

import pytest

from harness.launch.environment import this_host
from harness.recipes.request import Request
from harness.recipes.resolve import resolve
from harness.report.plan_json import prediction_document
from harness.runner.machine import installed_software
from harness.runner.plan import predict
from harness.spec.recompute import parse_recompute


@pytest.fixture
def host(tmp_path):
    here = this_host()
    return replace(here, shell={**here.shell, "XDG_CACHE_HOME": str(tmp_path)})


@pytest.fixture
def spec():
    return resolve(Request(model_recipe_name="llama3_8b", gpu="cpu")).spec


@pytest.mark.train
def test_a_cpu_request_is_predicted(spec, host):
    made = predict(spec, installed_software(), "local", host)
    document = prediction_document(made.prediction, made.reason)
    assert document["peak_bytes"] == sum(
        value for key, value in document["stages"][document["worst_stage"]].items()
        if key not in ("pp_rank", "total", "peak", "peaks")
    )  # fmt: skip


@pytest.mark.train
def test_a_request_that_the_tracer_declines_has_no_prediction_but_a_reason(spec, host):
    offloading = spec.model_copy(update={"offload": spec.offload.model_copy(update={"cpu_offloading_num_layers": 1})})
    made = predict(offloading, installed_software(), "local", host)
    assert made.prediction is None
    assert prediction_document(made.prediction, made.reason) == {"reason": made.reason}
    assert "offloading is not modelled" in made.reason


def test_a_tracer_that_cannot_start_fails_no_run(spec, host):
    made = predict(
        spec.model_copy(update={"recompute": parse_recompute("none")}), installed_software(), "local",
        replace(host, python="/nowhere/python"),
    )  # fmt: skip
    assert made.prediction is None
    assert made.reason
