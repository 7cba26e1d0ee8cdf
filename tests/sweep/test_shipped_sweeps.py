"""Every shipped sweep file resolves into the cells that its title promises, legal, inert and illegal ones."""

import pytest

from harness.launch.environment import this_host
from harness.resolve.find import recipes_dir
from harness.resolve.recipe import Request
from harness.resolve.sweep_file import read_sweep_file
from harness.sweep.axes import name_of, values_of
from harness.sweep.plan import draft
from harness.sweep.request import SweepRequest, read_axes

# Cells by name: empty for one that may run, the cell that it equals, or the rules that refuse it.
EXPECTED = {
    "llama3_70b_modules": {
        "control": "", "core_attn": "", "mlp": "", "mlp,core_attn": "", "core_attn,layernorm": "core_attn",
    },
    "llama3_70b_layouts": {
        "control": "", "tp=8": "", "pp=8": "", "vp=10": "", "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": "",
    },
    "llama3_70b_offload": {
        "control": "", **{f"activation_offload_layers={n}": "R18" for n in (2, 4, 6)},
    },
    "cpu_dense": {
        "control": "", **dict.fromkeys(("core_attn", "mlp", "full:uniform:1", "mb=2", "mb=4"), ""),
        **{f"{text} mb={n}": "" for text in ("core_attn", "mlp", "full:uniform:1") for n in (2, 4)},
    },
    "cpu_moe": {
        "control": "", "core_attn": "", "layernorm": "", "moe": "", "moe,mlp": "moe", "moe,layernorm": "",
        "full:uniform:1": "", "full:block:2": "",
    },
    "cpu_layouts": {
        "control": "", "tp=2": "", "pp=4": "", "vp=2": "", "env.MALLOC_ARENA_MAX=1": "",
    },
    "cpu_offload": {
        "control": "", **{f"activation_offload_layers={n}": "CPU06 R18" for n in (1, 2, 3)},
    },
}  # fmt: skip


@pytest.fixture(name="drafts", scope="module")
def _drafts():
    """The checked cells of a sweep file by name, as `mbr-perf sweep --file` makes them."""

    def drafted(name):
        sweep = read_sweep_file(name)
        request = SweepRequest(
            asked=Request(**{"gpu": "", **sweep.request.given}),
            over=sweep.axes,
            grid=sweep.grid,
            control=sweep.control or "",
        )
        axes = read_axes(request.over)
        found = draft(request, axes, this_host())
        changes = [values_of(axes, draft.asked, draft.spec) for draft in found]
        names = ["control", *(name_of(own, changes[0]) for own in changes[1:])]
        return dict(zip(names, found, strict=True))

    return drafted


def test_every_shipped_file_is_accounted_for():
    assert {path.stem for path in (recipes_dir() / "sweeps").glob("*.yaml")} == set(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_cells_run_or_do_not_as_documented(drafts, name):
    found = drafts(name)
    names = list(found)
    fates = {
        cell: names[draft.twin]
        if draft.twin is not None
        else " ".join(sorted(finding.id for finding in draft.blocking))
        for cell, draft in found.items()
    }
    assert fates == EXPECTED[name]


@pytest.mark.slow
def test_the_layouts_of_the_published_table_have_its_data_parallel_sizes(drafts):
    found = {name: draft.spec for name, draft in drafts("llama3_70b_layouts").items()}
    sizes = {name: found[name].data_parallel_size for name in ("control", "tp=8", "pp=8", "vp=10")}
    assert sizes == {"control": 2, "tp=8": 1, "pp=8": 1, "vp=10": 2}
    assert {spec.batch.global_batch_size for spec in found.values()} == {32}
