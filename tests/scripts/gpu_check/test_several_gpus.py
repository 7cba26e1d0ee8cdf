"""The parallel stage on a machine with one, two and four scripted GPUs."""

import pytest
from several_gpus import LAYOUTS, compare_layouts
from shapes import Shape

from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

NAMES = [f"parallel.{layout.name}" for layout in LAYOUTS]


def compared(runs):
    return {case.name: case for case in compare_layouts(runs, runs.programs)}


@pytest.mark.slow
def test_every_layout_is_run_without_and_with_its_overlap_and_passes(machine):
    cases = compared(machine(num_gpus=2, te="2.11.0"))
    assert sorted(cases) == sorted([*NAMES, *(f"{name}.plain" for name in NAMES)])
    assert {case.verdict for case in cases.values()} == {"pass"}
    assert [check.name for check in cases["parallel.user_buffers"].checks] == [
        "trained", "not_suspect", "memory_measured", "memory_in_order", "same_device", "recompute_acts", "clean_end",
        "same_losses",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_gpus", "te", "why"),
    [(1, "2.11.0", " 2 GPUs, "), (2, None, "transformer-engine ")],
)
def test_what_this_machine_cannot_do_is_skipped_by_name_and_nothing_is_started(machine, tmp_path, num_gpus, te, why):
    cases = compared(machine(num_gpus=num_gpus, te=te))
    assert {name: (case.verdict, why in case.checks[0].found) for name, case in cases.items()} == dict.fromkeys(
        NAMES, ("skipped", True)
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "name", "check"),
    [
        ("other_loss", "parallel.user_buffers", "same_losses"),
        ("slow_end", "parallel.user_buffers", "clean_end"),
        ("no_end", "parallel.user_buffers", "clean_end"),
        ("throttled", "parallel.te_graphs", "not_suspect"),
    ],
)
def test_what_goes_wrong_with_several_gpus_fails_its_own_check_only(machine, fault, name, check):
    runs = machine(fault, num_gpus=2, te="2.11.0")
    case = next(case for case in compare_layouts(runs, runs.programs) if case.name == name)
    assert [each.name for each in case.checks if each.verdict == "fail"] == [check]


HAS = {
    "user_buffers": lambda spec: spec.kernels.tp_comm_overlap and spec.parallelism.sequence_parallel,
    "distributed_optimizer": lambda spec: spec.ddp.overlap_grad_reduce and spec.ddp.overlap_param_gather,
    "te_graphs": lambda spec: spec.cuda_graph.impl == "transformer_engine",
    "interleaved": lambda spec: spec.ddp.overlap_grad_reduce and spec.parallelism.num_virtual_stages == 2,
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("num_gpus", [2, 4])
def test_each_layout_is_legal_and_has_on_a_gpu_what_its_name_says_and_its_control_has_not(machine, layout, num_gpus):
    runs = machine(num_gpus=num_gpus)
    shape = Shape("parallel", runs.programs / "parallel.yaml")
    software = Software(megatron_core="0.16.1", transformer_engine="2.11.0", torch="2.11.0")

    def built(*set_values):
        asked = shape.asked(runs.target, **layout.asked(runs.target), set_values=set_values)
        spec = resolve(Request(**asked)).spec
        kernels = spec.kernels.model_copy(update={"transformer_impl": "transformer_engine"})
        spec = spec.model_copy(update={"kernels": kernels})
        findings = check(spec, software)
        assert [finding.id for finding in findings if finding.blocks] == []
        return HAS[layout.name](spec)

    assert built()
    assert not built(*layout.plain)
