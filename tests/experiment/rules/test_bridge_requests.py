"""Requests of Megatron-Bridge's performance scripts: adopted, or refused where they would cost GPUs."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

DATA = Path(__file__).parents[2] / "data" / "bridge" / "requests.yaml"
REQUESTS = [request for group in yaml.safe_load(DATA.read_text()).values() for request in group]


def fields(request: dict) -> dict:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in request["changes"].items()}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: str(r["changes"]))
def test_bridge_requests_are_judged_as_recorded(request_, judge):
    findings = judge(request_["kind"], fields(request_))
    errors = {f.id for f in findings if f.blocks}
    assert (request_["rule"] in errors) if request_["rule"] else errors == set()
    assert request_.get("warning") in {None, *(f.id for f in findings)}


@pytest.mark.parametrize("request_", [r for r in REQUESTS if "why" not in r], ids=lambda r: str(r["changes"]))
def test_bridge_refuses_the_same_unless_the_record_says_why_not(request_):
    assert (request_["bridge"] == "refuses") == (request_["rule"] is not None)


@pytest.mark.parametrize(
    "request_", [r for r in REQUESTS if isinstance(r["bridge"], dict)], ids=lambda r: str(r["changes"])
)
def test_the_data_parallel_size_is_that_of_bridge(request_, request_for):
    assert request_for(request_["kind"], **fields(request_)).data_parallel_size == request_["bridge"]["dp"]


def test_a_request_for_no_gpus_does_not_construct(request_for):
    with pytest.raises(ValidationError, match="num_gpus"):
        request_for("dense", num_gpus=0)


def test_a_tensor_size_that_divides_nothing_is_one_error_with_the_sizes_that_divide_all(judge):
    [found] = [f for f in judge("dense", {"num_gpus": 8, "tp": 3, "sp": True}) if f.blocks]
    assert (found.id, found.fix) == ("P03", "use -tp 1 or 2 or 4 or 8")
