"""A plan as people see it, at the widths they have."""

import io
from dataclasses import replace

import pytest

from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.plan.document import plan_document
from harness.plan.show import plan_page, size_unit
from harness.plan.show_layouts import layouts_page
from harness.predict.advice import advice
from harness.predict.prediction import Prediction
from harness.predict.search import Limits, Traces, candidates, plan, required_cases
from harness.records.trace import ChunkTrace, OpCost, TraceCase
from harness.show.terminal import Console, print_page
from tests.commands import json_of

SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")
TE = "transformer_engine"
GIGA = 10**9


def trace_of(case: TraceCase) -> ChunkTrace:
    """A layer keeps a quarter of a GB, or a tenth of that with any recompute, which runs its FLOPs again."""
    again = case.spec.recompute.text != "none"
    flops = 10**13 * case.num_layers
    phases = {"forward": flops, "backward": 2 * flops} | ({"recompute": flops} if again else {})
    return ChunkTrace(
        saved_bytes=GIGA // (40 if again else 4) * case.num_layers, forward_peak_bytes=GIGA * case.num_layers,
        backward_peak_bytes=GIGA // 10, persistent_bytes=0, hidden_bytes=10**6,
        num_parameters_dense=10**8 * case.num_layers, num_parameters_expert=0, parameter_bytes=2 * 10**8 * case.num_layers,
        ops=tuple(OpCost(phase=phase, kind="gemm", dtype="bf16", flops=n) for phase, n in phases.items()),
    )  # fmt: skip


def planned(spec: ExperimentSpec, capacity_bytes: int | None = 80 * 1024**3):
    found = candidates(spec, SOFTWARE, TE)
    traces = Traces({case.key: trace_of(case) for case in required_cases(found, TE)}, None, {})
    return plan(spec, found, traces, Limits(capacity_bytes), TE, SOFTWARE)


@pytest.fixture
def spec(make_spec):
    return make_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE})


def shown(width: int, page, *, terminal: bool) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=True, highlight=False, color_system=None)
    print_page(console, page())
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(spec, width):
    lines = shown(width, lambda: plan_page(planned(spec), ()), terminal=True)
    to_copy = [line for line in lines if line.startswith("    Megatron-")]  # never broken
    assert max(len(line) for line in lines if line not in to_copy) <= width
    assert not [line for line in lines if "…" in line]


def test_in_a_pipe_every_setting_has_its_parts_on_one_line(spec):
    lines = shown(40, lambda: plan_page(planned(spec), (), show_all=True), terminal=False)
    header = next(line for line in lines if line.startswith("Recompute "))
    assert header.split()[-7:] == [
        "Weights", "Gradients", "Optimizer", "Activations", "Logits", "Transient", "Overhead",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines if line.endswith((" FITS", " TIGHT", " OOM"))] == [
        "none", "core_attn", "mlp", "core_attn,mlp", "full:uniform:1", "full:uniform:2", "full:uniform:4",
        "full:block:1", "full:block:2", "full:block:3",
    ]  # fmt: skip


def test_the_answer_is_one_line_that_can_be_typed(spec):
    lines = shown(120, lambda: plan_page(planned(spec), ()), terminal=False)
    assert [line for line in lines if line.startswith("Use --recompute ")]


def tight_budget(spec):
    """A memory that the predicted peak without recompute fits into, and the upper end of its range does not."""
    made = planned(spec)
    found = made.control.prediction
    return made.limits.needs.device_bytes((found.peak_bytes + found.range_bytes[1]) // 2)


def pasted(lines):
    """The settings that a page shows for other programs, in order, as (Megatron-Bridge, Megatron-LM)."""
    bridge, megatron_lm = (
        [line.removeprefix(f"    {name}").removeprefix(": ") for line in lines if line.startswith(f"    {name}")]
        for name in ("Megatron-Bridge", "Megatron-LM")
    )
    return list(zip(bridge, megatron_lm, strict=True))


def test_every_recommended_setting_can_be_pasted_into_other_programs(spec):
    asked = spec.model_copy(update={"recompute": parse_recompute("full:uniform:1")})
    made = planned(asked, tight_budget(asked))
    assert (made.recommended.text, made.riskier.text) == ("full:block:1", "none")
    lines = shown(80, lambda: plan_page(made, ()), terminal=True)
    use, riskier = pasted(lines)
    assert "Use --recompute full:block:1" in lines[lines.index(f"    Megatron-Bridge: {use[0]}") - 2]
    assert use == (
        "model.recompute_granularity=full model.recompute_method=block model.recompute_num_layers=1 'model.recompute_modules=[]' model.distribute_saved_activations=false",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
    )
    assert riskier[1] == "without --recompute-granularity, --recompute-method, --recompute-num-layers"
    (layout,) = json_of(plan_document([("", made, "")], ""))["layouts"]
    assert [(row["bridge"], row["megatron_lm"]) for row in layout["to_paste"]] == [use, (riskier[0], "")]
    assert layout["to_paste"][1]["without"] == [
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
    ]
    assert [row["recompute"] for row in layout["to_paste"]] == ["full:block:1", "none"]


def test_what_fits_only_without_graphs_turns_them_off_in_other_programs_too(spec):
    graphs = spec.model_copy(update={"cuda_graph": CudaGraphSpec(impl=TE, scope=("attn",))})
    made = replace(planned(graphs, 10**9), without_graphs=planned(spec))
    ((bridge, megatron_lm),) = pasted(shown(120, lambda: plan_page(made, ()), terminal=False))
    assert {"model.cuda_graph_impl=none", "model.recompute_granularity=null"} <= set(bridge.split())
    assert megatron_lm == "without --cuda-graph-impl, --cuda-graph-scope"


def test_a_layout_is_pasted_with_its_sizes(spec):
    wide = spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update={
        "tensor_model_parallel_size": 8, "virtual_pipeline_model_parallel_size": None})})  # fmt: skip
    layouts = [("tp=4 vp=5", planned(spec), ""), ("tp=8 vp=none", planned(wide), "")]
    ((bridge, megatron_lm),) = pasted(shown(120, lambda: layouts_page(layouts, "tp=8 vp=none"), terminal=False))
    assert {"model.tensor_model_parallel_size=8", "model.virtual_pipeline_model_parallel_size=null"} <= set(
        bridge.split()
    )
    assert (
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --context-parallel-size 1 --sequence-parallel"
        in megatron_lm
    )
    assert megatron_lm.startswith(
        " (without --num-virtual-stages-per-pipeline-rank, --num-layers-per-virtual-pipeline-stage): "
    )
    document = json_of(plan_document(layouts, "tp=8 vp=none"))
    assert document["layouts"][1]["to_paste"][0]["megatron_lm"] == megatron_lm.partition(": ")[2]


def test_where_nothing_fits_the_ladder_ends_at_parallelism(spec):
    lines = shown(120, lambda: plan_page(planned(spec, 10**9), ()), terminal=False)
    assert [line[:2] for line in lines if line[1:3] == ". "] == ["1.", "2.", "3.", "4."]
    assert [line for line in lines if line.startswith("Nothing fits into 953.67 MiB")]


def test_without_a_known_memory_nothing_is_judged(spec):
    lines = shown(120, lambda: plan_page(planned(spec, None), ()), terminal=False)
    assert [line for line in lines if line.startswith("mbr-perf does not know what fits")]


def test_layouts_stand_side_by_side_and_an_illegal_one_says_why(spec):
    layouts = [("tp=4", planned(spec), ""), ("tp=3", None, "A01: does not divide")]
    lines = shown(120, lambda: layouts_page(layouts, "tp=4"), terminal=False)
    assert [line for line in lines if line.startswith("tp=3") and "A01: does not divide" in line]
    assert [line for line in lines if line.startswith("Use tp=4")]


def test_layouts_that_are_as_fast_are_marked_and_the_smallest_is_named(spec):
    made, smaller = planned(spec), planned(spec.model_copy(update={"num_gpus": 2 * spec.num_gpus}))
    layouts = [("tp=4", made, ""), ("tp=2", smaller, "")]
    alike = shown(300, lambda: layouts_page(layouts, "tp=4", same=["tp=2"]), terminal=False)
    assert [line.split()[:2] for line in alike if line.startswith(("tp=2", "tp=4"))] == [["tp=4", "*"], ["tp=2", "="]]
    text = next(line for line in alike if line.startswith("=: as fast as the recommended layout"))
    assert " Of these layouts tp=2 (" in text
    assert not [
        line for line in shown(300, lambda: layouts_page(layouts, "tp=4"), terminal=False) if "as fast as" in line
    ]


def test_advice_of_layouts_names_no_faster_one_inside_the_error(spec):
    made = planned(spec)
    peak, (_, high) = made.control.prediction.peak_bytes, made.control.prediction.range_bytes
    tight = planned(spec, made.limits.needs.device_bytes((peak + high) // 2))
    shorter = spec.batch.model_copy(update={"seq_length": round(spec.batch.seq_length * 0.95)})
    slower = replace(made, spec=spec.model_copy(update={"batch": shorter}))
    lines = shown(200, lambda: layouts_page([("tight", tight, ""), ("fits", slower, "")], "fits"), terminal=False)
    assert not [line for line in lines if line.startswith("Faster, but")]


def test_json_names_the_layout_of_every_setting(spec):
    document = json_of(plan_document([("tp=4", planned(spec), ""), ("tp=3", None, "A01")], "tp=4"))
    assert {setting["layout"] for setting in document["settings"]} == {"tp=4"}
    assert [layout["problem"] for layout in document["layouts"]] == [None, "A01"]


def test_a_peak_that_is_not_fully_modelled_is_no_point(spec):
    overlapping = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"tp_comm_overlap": True})})
    known, unsure = (shown(200, lambda s=s: plan_page(planned(s), ()), terminal=False) for s in (spec, overlapping))
    assert not [line for line in known if "~" in line]
    assert next(line for line in unsure if line.startswith("none * ")).split()[3].startswith("~")
    assert "~: the prediction does not model everything; rely on the range" in unsure


def test_a_range_that_reaches_beyond_the_memory_is_reported(spec):
    made = planned(spec)
    peak, (_, high) = made.control.prediction.peak_bytes, made.control.prediction.range_bytes
    tight, roomy = (
        shown(200, lambda c=c: plan_page(planned(spec, made.limits.needs.device_bytes(int(c))), ()), terminal=False)
        for c in ((peak + high) / 2, high * 1.01)
    )
    assert "Cheaper, but it may not fit: none at +0.0 %" in " ".join(tight)
    assert "it may not fit" not in " ".join(roomy)


def test_the_hardware_utilization_counts_what_runs_again(spec):
    rows = {row["recompute"]: row for row in json_of(plan_document([("", planned(spec), "")], None))["settings"]}
    assert rows["none"]["hfu"] == rows["none"]["mfu"] > 0
    again = rows["full:uniform:1"]
    assert again["hfu"] / again["mfu"] == pytest.approx(
        1 + again["recompute_flops_per_step"] / again["model_flops_per_step"]
    )


def test_a_verdict_that_the_range_does_not_bear_out_is_marked_also_among_layouts(spec):
    made = planned(spec)
    peak, (_, high) = made.control.prediction.peak_bytes, made.control.prediction.range_bytes
    unsure = planned(spec, made.limits.needs.device_bytes((peak + high) // 2))
    alone = shown(200, lambda: plan_page(unsure, ()), terminal=False)
    assert next(line for line in alone if line.startswith("none ")).endswith("TIGHT")
    layouts = [("tp=4", unsure, ""), ("tp=2", made, "")]
    several = shown(200, lambda: layouts_page(layouts, "tp=4"), terminal=False)
    assert [line for line in several if "Faster, but the upper end of its range does not fit: tp=4" in line]
    row = next(row for row in json_of(plan_document(layouts, "tp=4"))["settings"] if row["recompute"] == "none")
    assert (row["verdict"], row["verdict_is_certain"]) == ("TIGHT", False)


def test_settings_that_another_beats_are_hidden_however_few_there_are(spec):
    lines = shown(200, lambda: plan_page(planned(spec), ()), terminal=False)
    assert not [line for line in lines if line.startswith("full:uniform:4 ")]
    assert [line for line in lines if line.startswith("Not shown: ")]


def test_a_table_says_when_the_peak_is_and_what_its_marks_mean(spec):
    lines = shown(200, lambda: plan_page(planned(spec), ()), terminal=False)
    header = next(line for line in lines if line.startswith("Recompute "))
    none = next(line for line in lines if line.startswith("none *"))
    assert none[header.index("Peak at") :].startswith(planned(spec).control.prediction.worst.peak)
    assert [line for line in lines if line.startswith("*: recommended; asked: the setting of the request;")]


def test_on_a_processor_sizes_are_mib_cost_is_flops_and_no_cuda_allocator_is_advised(spec):
    peaks = [row.prediction.peak_bytes for row in planned(spec).rows if row.prediction]
    made = planned(spec, int((peaks[0] + min(peaks)) / 2 / 0.94))
    assert "allocator" in [step.step for step in advice(made)]
    assert size_unit(made.rows) == "GiB"
    rows = tuple(replace(row, prediction=without_seconds(row.prediction)) for row in made.rows if row.prediction)
    best = next(row for row in rows if row.text == made.recommended.text)
    on_cpu = replace(made, spec=spec.model_copy(update={"gpu": "cpu"}), rows=rows, recommended=best)
    assert "allocator" not in [step.step for step in advice(on_cpu)]
    lines = shown(200, lambda: plan_page(on_cpu, ()), terminal=False)
    assert " % FLOPs" in next(line for line in lines if line.startswith("Use "))
    assert [line for line in lines if line.startswith("Recompute ") and "Peak MiB" in line]


def without_seconds(prediction: Prediction) -> Prediction:
    """As on a processor: no step time, and a model of a thousandth of the size."""
    stages = tuple(replace(stage, total=stage.total // 1000) for stage in prediction.stages)
    return replace(prediction, stages=stages, time=None)


def test_layouts_are_headed_by_what_they_share(spec):
    layouts = [("tp=4", planned(spec), ""), ("tp=3", None, "A01: does not divide")]
    lines = shown(200, lambda: layouts_page(layouts, "tp=4"), terminal=False)
    assert lines[0].startswith("Recipe")
    assert f"Limit        80.00 GiB {layouts[0][1].limits.free_text}" in lines


def test_a_layout_that_the_tracer_cannot_trace_is_named_beside_the_others(spec):
    found = candidates(spec, SOFTWARE, TE)
    refused = {case.key: "the tracer failed (exit 1): KeyError: 'x'" for case in required_cases(found, TE)}
    lost = plan(spec, found, Traces({}, None, refused), Limits(80 * GIGA), TE, SOFTWARE)
    layouts = [("tp=2", lost, ""), ("tp=4", planned(spec), "")]
    lines = shown(200, lambda: layouts_page(layouts, "tp=4"), terminal=False)
    assert any("tp=2" in line and "not predicted: the tracer failed (exit 1): KeyError: 'x'" in line for line in lines)
    text = "\n".join(shown(200, lambda: plan_page(lost, ()), terminal=False))
    assert "No setting could be predicted" in text
    assert "nothing fits" not in text
