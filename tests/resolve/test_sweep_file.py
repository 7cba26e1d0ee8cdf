"""Sweep files: read strictly, every fault at its line; found by name or by path."""

import pytest

from harness.errors import HarnessError
from harness.resolve.sweep_file import read_sweep_file
from tests.resolve.conftest import refused

GOOD = """\
title: Two axes
source: a test
request:
  model_recipe_name: llama3_8b
  gpu: cpu
  num_layers: 4
  memory_limit: 1
  env: ["A=1"]
over:
  recompute: [none, "mlp,core_attn", "full:uniform:1"]
  mb: [1, 2]
  vp: none
  env.A: ["1", "2"]
grid: true
repeats: 3
"""


@pytest.fixture
def read(write):
    """Read GOOD with texts replaced."""
    return lambda *changes: read_sweep_file(str(write(*changes, text=GOOD, name="mine.yaml")))


def test_a_file_is_what_the_command_line_would_say(read):
    sweep = read()
    assert (sweep.title, sweep.source, sweep.grid, sweep.repeats, sweep.control) == (
        "Two axes",
        "a test",
        True,
        3,
        None,
    )
    assert sweep.request.given == {
        "model_recipe_name": "llama3_8b", "gpu": "cpu", "num_layers": 4, "memory_limit": 1.0, "env": ("A=1",),
    }  # fmt: skip
    assert sweep.over == {
        "recompute": ("none", "mlp,core_attn", "full:uniform:1"), "mb": ("1", "2"), "vp": ("none",), "env.A": ("1", "2"),
    }  # fmt: skip


def test_recompute_may_be_left_to_the_planner(read):
    assert read(('[none, "mlp,core_attn", "full:uniform:1"]', "auto")).over["recompute"] == ("auto",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  num_layers: 4", "  num_layer: 4", ":6: request.num_layer: no such setting\n  did you mean 'num_layers'?"),
        ('env: ["A=1"]', "env: {A: 1}", ":8: request.env: must be a list, is a mapping"),
        ("  gpu: cpu", "  gpu: h101", ":5: request.gpu: no such value 'h101'\n  did you mean 'h100'?"),
        ("  model_recipe_name: llama3_8b\n", "", "request.model_recipe_name: missing"),
        ("  mb: [1, 2]", "  mb: []", ":11: over.mb: must be a list of values"),
        ("title: Two axes", "title: Two axes\nrecipe: llama3_8b", "write model_recipe_name under request"),
        ("title: Two axes", "title: Two axes\nnum_gpus: 8", "write it under request"),
        ("  model_recipe_name:", "  recipe:", "did you mean 'model_recipe_name'?"),
    ],
)
def test_a_fault_is_reported_at_its_line(read, old, new, message):
    assert message in refused(read, (old, new))


def test_a_file_is_found_by_its_name(tmp_path):
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(GOOD)
    assert read_sweep_file("mine", tmp_path).title == "Two axes"
    with pytest.raises(HarnessError, match="no such sweep file") as raised:
        read_sweep_file("mime", tmp_path)
    assert "did you mean 'mine'?" in str(raised.value)


def test_a_file_that_is_no_yaml_and_a_folder_are_distinguished_from_one_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text(GOOD)
    for name, message in (
        ("bad.txt", "no such sweep file"),
        (str(tmp_path), "a folder, not a sweep file"),
    ):
        with pytest.raises(HarnessError, match=message):
            read_sweep_file(name)
    assert read_sweep_file("./bad.txt").title == "Two axes"
