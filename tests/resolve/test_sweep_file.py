"""Sweep files: read strictly, every fault at its line; found by name or by path."""

import pytest

from harness.resolve.sweep_file import read_sweep_file
from tests.commands import refused

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
    assert (sweep.title, sweep.source, sweep.grid) == ("Two axes", "a test", True)
    assert (sweep.repeats, sweep.control) == (3, None)
    assert sweep.request.given == {
        "model_recipe_name": "llama3_8b", "gpu": "cpu", "num_layers": 4, "memory_limit": 1.0, "env": ("A=1",),
    }  # fmt: skip
    assert sweep.over == {
        "recompute": ("none", "mlp,core_attn", "full:uniform:1"), "mb": ("1", "2"), "vp": ("none",), "env.A": ("1", "2"),
    }  # fmt: skip


def test_recompute_may_be_left_to_the_planner(read):
    assert read(('[none, "mlp,core_attn", "full:uniform:1"]', "auto")).over["recompute"] == ("auto",)


@pytest.mark.parametrize(
    "row",
    [
        ("  num_layers: 4", "  num_layer: 4", ":6: request.num_layer: ", "'num_layers'"),
        ('env: ["A=1"]', "env: {A: 1}", ":8: request.env: ", "list", "mapping"),
        ("  gpu: cpu", "  gpu: h101", ":5: request.gpu: ", "'h101'", "'h100'"),
        ("  model_recipe_name: llama3_8b\n", "", "request.model_recipe_name: missing"),
        ("  mb: [1, 2]", "  mb: []", ":11: over.mb: "),
        ("title: Two axes", "title: Two axes\nnum_gpus: 8", ":2: num_gpus: ", "request"),
    ],
)
def test_a_fault_is_reported_at_its_line(read, row):
    old, new, *names = row
    refused(lambda: read((old, new)), *names, num=None)


def test_a_file_is_found_by_its_name_or_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    for path in (tmp_path / "sweeps" / "mine.yaml", tmp_path / "bad.txt"):
        path.write_text(GOOD)
    assert read_sweep_file("mine", tmp_path).title == read_sweep_file("./bad.txt").title == "Two axes"
    refused(lambda: read_sweep_file("mime", tmp_path), "mime", "'mine'")
    refused(lambda: read_sweep_file("bad.txt"), "bad.txt: no such")
    refused(lambda: read_sweep_file(str(tmp_path)), f"{tmp_path}: no such file")
