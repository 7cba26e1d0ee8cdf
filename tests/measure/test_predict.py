"""The prediction that a run keeps with its measurement."""

from dataclasses import replace
from threading import Event

import pytest

from harness.experiment.recompute import parse_recompute
from harness.launch.environment import this_host
from harness.launch.machine import installed_software
from harness.launch.plan import Nodes
from harness.measure.experiment import Display
from harness.measure.prediction import NOT_TRACED, predict_with, predicted_first, tracing
from harness.measure.understanding import RunRequest, understand
from harness.measure.values import prediction_document
from harness.predict.tracer import Tracing, trace_cache
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from tests.commands import json_of


@pytest.fixture
def host(tmp_path):
    here = this_host()
    return replace(here, shell={**here.shell, "XDG_CACHE_HOME": str(tmp_path)})


@pytest.fixture
def spec():
    """A sequence length of which mbr-perf brings no traces."""
    return resolve(Request(model_recipe_name="llama3_8b", gpu="cpu", seq_length=96)).spec


def test_what_mbr_perf_brings_traces_of_needs_no_tracer(host):
    shipped = resolve(Request(model_recipe_name="llama3_8b", gpu="cpu")).spec
    made = predict_with(tracing(replace(host, python="/nowhere/python")), shipped, installed_software())
    assert made.prediction.peak_bytes > 0


@pytest.mark.train
def test_a_request_that_the_tracer_declines_has_no_prediction_but_a_reason(spec, host):
    offloading = spec.model_copy(update={"offload": spec.offload.model_copy(update={"cpu_offloading_num_layers": 1})})
    made = predict_with(tracing(host), offloading, installed_software())
    assert made.prediction is None
    assert json_of(prediction_document(made.prediction, made.reason)) == {"reason": made.reason}
    assert "offloading" in made.reason.lower()


@pytest.mark.train
def test_a_request_is_predicted_at_once_from_the_cache_and_what_is_not_there_starts_nothing(spec, host):
    software = installed_software()
    at_once = Tracing(replace(host, python="/nowhere/python"), trace_cache(host.shell), cached_only=True)
    before = predict_with(at_once, spec, software)
    assert (before.prediction, before.reason) == (None, NOT_TRACED)
    traced = predict_with(tracing(host), spec, software)
    assert predict_with(at_once, spec, software) == traced
    document = json_of(prediction_document(traced.prediction, traced.reason))
    stage = document["stages"][document["worst_stage"]]
    assert document["peak_bytes"] == sum(stage[key] for key in stage.keys() - {"pp_rank", "total", "peak", "whole_run"})


@pytest.mark.train
def test_nobody_waits_for_a_tracer_whose_run_has_ended(spec, host):
    over = Event()
    over.set()
    made = predict_with(Tracing(host, trace_cache(host.shell), stop=over), spec, installed_software())
    assert (made.prediction, "ended" in made.reason) == (None, True)


@pytest.mark.train
def test_a_tracer_that_takes_too_long_is_given_up(spec, host):
    made = predict_with(Tracing(host, trace_cache(host.shell), timeout_s=0.1), spec, installed_software())
    assert (made.prediction, made.reason.endswith(" 0.1 s")) == (None, True)


def test_a_tracer_that_cannot_start_fails_no_run(spec, host):
    other = spec.model_copy(update={"recompute": parse_recompute("none")})
    made = predict_with(tracing(replace(host, python="/nowhere/python")), other, installed_software())
    assert made.prediction is None
    assert made.reason


def test_only_the_first_node_predicts(host, tmp_path):
    asked = Request(model_recipe_name="llama3_8b", gpu="h100", num_gpus=8, num_layers=2)
    understood = understand(RunRequest(asked=asked), host, tmp_path / "run")
    launch = replace(understood.launch, nodes=Nodes(nnodes=2, node_rank=1, master_addr="node0"))
    made = predicted_first(replace(understood, launch=launch))
    assert (made.prediction, "first node" in made.reason) == (None, True)


@pytest.mark.train
def test_a_prediction_that_does_not_fit_is_a_warning(host, tmp_path, capsys):
    limited = {"memory_limit": 0.01, "max_steps": 5, "eval_time_start_step": 2}
    asked = Request(model_recipe_name="llama3_8b", gpu="cpu", **limited)
    understood = understand(RunRequest(asked=asked), host, tmp_path / "run")
    Display().warn_of_misfit(understood, predicted_first(understood))
    shown = capsys.readouterr().err
    assert shown.startswith("Warning: ") and " 10.04 MiB, " in shown
