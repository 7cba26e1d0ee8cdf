"""Every shipped sweep file resolves into the cells that its title promises, legal and illegal ones."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.launch.environment import this_host
from harness.launch.rendezvous import Nodes
from harness.recipes.axes import SHORT_NAMES
from harness.recipes.request import Request
from harness.recipes.sweep_file import read_sweep_file, sweep_files
from harness.runner.request import RunRequest
from harness.runner.understanding import understand
from harness.spec.effective import computation
from harness.spec.software import Software

# Names of the rules that refuse a cell; absent: it may run.
REFUSED = {
    "llama3_70b_offload": {f"activation_offload_layers={n}": {"R18"} for n in (2, 4, 6)},
    "cpu_offload": {f"activation_offload_layers={n}": {"R18", "CPU06"} for n in (1, 2, 3)},
}
NUM_CELLS = {
    "llama3_70b_modules": 5,
    "llama3_70b_layouts": 8,
    "llama3_70b_offload": 4,
    "cpu_dense": 12,
    "cpu_moe": 8,
    "cpu_layouts": 8,
    "cpu_offload": 4,
}


def cells(sweep):
    """Requests by name: every combination of a grid, else every value of every axis alone."""
    axes = sweep.over
    if sweep.grid:
        changes = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    else:
        changes = [{axis: value} for axis, values in axes.items() for value in values]
    base = Request(**{"gpu": "", **sweep.request})
    return {" ".join(f"{axis}={value}" for axis, value in change.items()): applied(base, change) for change in changes}


def applied(request, change):
    for axis, value in change.items():
        name = SHORT_NAMES.get(axis, axis)
        if axis.startswith("env."):
            others = tuple(text for text in request.env if not text.startswith(f"{axis[4:]}="))
            request = replace(request, env=(*others, f"{axis[4:]}={value}"))
        else:
            request = replace(request, **{name: int(value) if value.isdecimal() else value})
    return request


def understood(request):
    nodes = Nodes(request.num_gpus // 8, 0, "node0") if (request.num_gpus or 2) > 8 else Nodes()
    return understand(RunRequest(asked=request, nodes=nodes, run_dir=Path("RUN")), this_host(), Path("RUN"))


def rules(request):
    """Ids of the rules that refuse it."""
    try:
        understood(request)
    except BadRequestError as error:
        return set(re.findall(r"^([A-Z]+\d+[a-z]?): ", str(error), re.MULTILINE)) or {str(error)}
    return set()


def test_every_shipped_file_is_accounted_for():
    assert {path.stem for path in sweep_files()} == set(NUM_CELLS)


@pytest.mark.parametrize("name", NUM_CELLS)
def test_cells_are_legal_or_refused_as_documented(name):
    found = cells(read_sweep_file(name))
    assert len(found) == NUM_CELLS[name]
    refused = {cell: ids for cell, request in found.items() if (ids := rules(request))}
    assert refused == REFUSED.get(name, {})


def test_the_layouts_of_the_published_table_have_its_data_parallel_sizes():
    found = {name: understood(request).spec for name, request in cells(read_sweep_file("llama3_70b_layouts")).items()}
    assert {name: found[name].data_parallel_size for name in ("tp=4", "tp=8", "pp=8", "vp=10")} == {
        "tp=4": 2, "tp=8": 1, "pp=8": 1, "vp=10": 2,
    }  # fmt: skip
    assert found["tp=4"].batch.global_batch_size == found["pp=8"].batch.global_batch_size == 32


def test_layernorm_beside_core_attn_changes_nothing_in_the_published_table():
    found = {name: understood(request).spec for name, request in cells(read_sweep_file("llama3_70b_modules")).items()}
    software = Software(transformer_engine="2.11")
    same = [computation(found[f"recompute={text}"], software) for text in ("core_attn", "core_attn,layernorm")]
    assert same[0] == same[1] != computation(found["recompute=mlp"], software)
