"""Megatron-LM's golden files: per metric, steps from 1, seconds and bytes."""

import json

import pytest

from harness.errors import BadRequestError
from harness.foreign.golden import read_foreign_golden


def metric(values, start=1, interval=1):
    return {"start_step": start, "end_step": 100, "step_interval": interval, "values": values}


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(document):
        (tmp_path / "g.json").write_text(json.dumps(document))
        return read_foreign_golden(tmp_path / "g.json")

    return read


def test_metrics_become_steps(read):
    golden = read({
        "lm loss": metric({"1": 10.89631, "5": 10.89154}, interval=5),
        "iteration-time": metric({"1": "nan", "5": 0.06664}, interval=5),
        "mem-allocated-bytes": metric({"1": 581488640.0, "5": 581488640.0}, interval=5),
        "mem-max-allocated-bytes": metric({"1": 2594126336.0, "5": 2690742784.0}, interval=5),
        "num-zeros": metric({"1": 1483.0}),
    })  # fmt: skip
    assert (golden.format, list(golden.steps)) == ("megatron-lm", [1, 5])
    assert [(step.step_time_s, step.loss) for step in golden.steps.values()] == [(None, 10.89631), (0.06664, 10.89154)]
    assert golden.memory_by_iteration["max_allocated_bytes"] == {1: 2594126336, 5: 2690742784}
    assert golden.notes == ("not compared, because logs do not have them: num-zeros",)


def test_values_in_a_row_are_numbered_by_start_and_interval(read):
    golden = read({"iteration-time": metric([7.5, 0.07, 0.06], start=1, interval=5)})
    assert {number: step.step_time_s for number, step in golden.steps.items()} == {1: 7.5, 6: 0.07, 11: 0.06}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"iteration-time": metric({"1": "fast"})}, 'g.json: iteration-time: values: 1: "fast" is not a number'),
        ({"iteration-time": metric({"one": 1.0})}, "g.json: iteration-time: values: one: not a step number"),
        ({"iteration-time": metric(3)}, "g.json: iteration-time: values: must be an object of steps, is 3"),
        ({"iteration-time": metric({"1": 1.0}), "lm loss": [1]}, "g.json: lm loss: must be an object with values"),
        ({"iteration-time": metric([1.0], interval=0)}, "a list of values needs start_step and step_interval"),
        (
            {"0": {"input_prompt": "a", "generated_text": "b"}},
            "an inference test of Megatron-LM ('input_prompt'), not of training",
        ),
        (
            {"generated_text": "b", "latency": 1.0},
            "an inference test of Megatron-LM ('generated_text'), not of training",
        ),
        ({"num-zeros": metric({"1": 1.0})}, "neither iteration-time nor lm loss has a value; its metrics: 'num-zeros'"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(read, document, expected):
    with pytest.raises(BadRequestError) as refused:
        read(document)
    assert expected in str(refused.value)
