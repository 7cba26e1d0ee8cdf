"""A plan as people see it, at the widths they have."""

import io
import re
from dataclasses import replace

import pytest

from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.launch.environment_rows import STOPS
from harness.measure.prediction import limits_for
from harness.measure.understanding import Settled
from harness.plan.answer import size_unit
from harness.plan.request import PlanRequest
from harness.plan.rows import planned_document
from harness.plan.run import Layout, Planned, Unplanned
from harness.plan.show import plan_page, with_columns
from harness.plan.show_layouts import layouts_page
from harness.predict.advice import advice
from harness.predict.device import DeviceNeeds
from harness.predict.limits import Limits
from harness.predict.prediction import Prediction, verdict
from harness.predict.search import Traces, candidates, plan, required_cases
from harness.records.trace import ChunkTrace, OpCost, TraceCase
from harness.resolve.recipe import Request
from harness.show.page import Table, plain
from harness.show.terminal import Console, print_page
from harness.units import format_bytes
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
    traces = Traces({case.key: trace_of(case) for case in required_cases(found, TE, SOFTWARE)}, None, {})
    return plan(spec, found, traces, Limits(capacity_bytes), TE, SOFTWARE)


def layout(name: str, made) -> Layout:
    return Layout(name, Settled(made.spec, {}, (), SOFTWARE), made)


def layouts(**plans) -> Planned:
    """Layouts by name, each with its plan or with why it has none."""
    return Planned(
        tuple(Unplanned(name, made) if isinstance(made, str) else layout(name, made) for name, made in plans.items())
    )


@pytest.fixture
def spec(make_spec):
    return make_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE})


def shown(page, width: int = 200, *, terminal: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=True, highlight=False, color_system=None)
    print_page(console, page)
    return out.getvalue().splitlines()


def begun(lines: list[str], *starts: str) -> bool:
    return all(any(line.startswith(start) for line in lines) for start in starts)


def test_in_a_pipe_every_setting_has_its_parts_on_one_line(spec):
    lines = shown(with_columns(plan_page(planned(spec), ()), ["reserved", "peak"]), 40)
    assert lines[2].split() == ["Recompute", "Reserved", "GiB", "Peak", "GiB"]
    lines = shown(plan_page(planned(spec), (), show_all=True), 40)
    assert [line.split()[0] for line in lines if re.search(r" \d+ % (FITS|TIGHT|OOM)", line)] == [
        "none", "core_attn", "mlp", "core_attn,mlp", "full:uniform:1", "full:uniform:2", "full:uniform:4",
        "full:block:1", "full:block:2", "full:block:3",
    ]  # fmt: skip
    assert begun(lines[:1], "Use none: ")
    assert not begun(shown(plan_page(planned(spec), ())), "full:uniform:4 ")  # another one beats it


def tight_budget(spec):
    """A memory that the likely need without recompute fits into, and its upper end does not."""
    made = planned(spec)
    found = made.control.prediction
    return round((made.limits.needs.outside_bytes + (found.fits[1] + found.fits[2]) // 2) / (1 - made.limits.margin))


def pasted(lines):
    """The settings that a page shows for other programs, in order, as (Megatron-Bridge, Megatron-LM)."""
    bridge, megatron_lm = (
        [line.removeprefix(name).removeprefix(": ") for line in lines if line.startswith(name)]
        for name in ("Megatron-Bridge", "Megatron-LM")
    )
    return list(zip(bridge, megatron_lm, strict=True))


def test_every_recommended_setting_can_be_pasted_into_other_programs(spec):
    asked = spec.model_copy(update={"recompute": parse_recompute("full:uniform:1")})
    made = planned(asked, tight_budget(asked))
    assert (made.recommended.text, made.riskier.text) == ("full:block:1", "none")
    use, riskier = pasted(shown(plan_page(made, ()), 80, terminal=True))
    gone = ["--recompute-granularity", "--recompute-method", "--recompute-num-layers"]
    assert use == (
        "model.recompute_granularity=full model.recompute_method=block model.recompute_num_layers=1 "
        "'model.recompute_modules=[]' model.distribute_saved_activations=false",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
    )
    assert riskier[1] == f"leave out {', '.join(gone)}"
    (layout,) = json_of(planned_document(layouts(tp4=made)))["layouts"]
    assert [(row["bridge"], row["megatron_lm"]) for row in layout["to_paste"]] == [use, (riskier[0], "")]
    assert layout["to_paste"][1]["without"] == gone
    assert [row["recompute"] for row in layout["to_paste"]] == ["full:block:1", "none"]


def test_what_fits_only_without_graphs_turns_them_off_in_other_programs_too(spec):
    graphs = spec.model_copy(update={"cuda_graph": CudaGraphSpec(impl=TE, scope=("attn",))})
    made = replace(planned(graphs, 10**9), without_graphs=planned(spec))
    ((bridge, megatron_lm),) = pasted(shown(plan_page(made, ())))
    assert {"model.cuda_graph_impl=none", "model.recompute_granularity=null"} <= set(bridge.split())
    assert megatron_lm == "leave out --cuda-graph-impl, --cuda-graph-scope"


def test_a_layout_is_pasted_with_its_sizes(spec):
    wide = spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update={
        "tensor_model_parallel_size": 8, "virtual_pipeline_model_parallel_size": None})})  # fmt: skip
    both = layouts(large=planned(spec, 10**9), wide=planned(wide))
    ((bridge, megatron_lm),) = pasted(shown(layouts_page(both)))
    sizes = {"model.tensor_model_parallel_size=8", "model.virtual_pipeline_model_parallel_size=null"}
    assert sizes <= set(bridge.split())
    without, _, options = megatron_lm.partition(": ")
    assert "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --context-parallel-size 1" in options
    assert "--num-virtual-stages-per-pipeline-rank" in without
    assert json_of(planned_document(both))["layouts"][1]["to_paste"][0]["megatron_lm"] == options


@pytest.mark.parametrize(("capacity", "starts"), [(10**9, ("Nothing fits ", "1. ")), (None, ("The memory ",))])
def test_where_nothing_fits_the_ladder_ends_at_parallelism_and_without_a_memory_nothing_is_judged(
    spec, capacity, starts
):
    made = planned(spec, capacity)
    assert made.recommended is None
    lines = shown(plan_page(made, ()))
    assert begun(lines, *starts)
    assert not begun(lines, "2. ")


def test_layouts_stand_side_by_side_and_an_illegal_one_says_why(spec):
    both = layouts(tp4=planned(spec), tp3="A01: x")
    lines = shown(layouts_page(both), 120)
    assert begun(lines, "Recipe", f"Usable: {both.layouts[0].plan.limits.text}", "Use tp4 with recompute none: ")
    assert "tp3: A01: x" in lines
    document = json_of(planned_document(both))
    assert {setting["layout"] for setting in document["settings"]} == {"tp4"}
    assert [layout["problem"] for layout in document["layouts"]] == [None, "A01: x"]


def test_layouts_that_are_as_fast_are_marked_and_the_smallest_is_named(spec):
    made, smaller = planned(spec), planned(spec)
    smaller = replace(smaller, recommended=replace(smaller.recommended, prediction=smaller.control.prediction))
    lines = shown(layouts_page(layouts(tp4=made, tp2=smaller)), 300)
    assert [line.split()[:2] for line in lines if line.startswith(("tp2", "tp4"))] == [["tp4", "*"], ["tp2", "="]]
    assert begun(lines, "=: ")
    assert not begun(shown(layouts_page(layouts(tp4=made)), 300), "=: ")


def unsure(spec):
    """A plan in which the peak without recompute fits, and the upper end of its range does not."""
    return planned(spec, tight_budget(spec))


def test_advice_of_layouts_names_no_faster_one_inside_the_error(spec):
    shorter = spec.batch.model_copy(update={"seq_length": round(spec.batch.seq_length * 0.95)})
    slower = replace(planned(spec), spec=spec.model_copy(update={"batch": shorter}))
    assert not begun(shown(layouts_page(layouts(tight=unsure(spec), fits=slower))), "Faster, but")


def test_a_peak_that_is_not_fully_modelled_is_no_point(spec):
    overlapping = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"tp_comm_overlap": True})})
    known, about = (shown(plan_page(planned(each), ())) for each in (spec, overlapping))
    assert not [line for line in known if "~" in line]
    assert next(line for line in about if line.startswith("none * ")).split()[3].startswith("~")


def test_a_verdict_that_the_range_does_not_bear_out_is_marked_also_among_layouts(spec):
    made = unsure(spec)
    alone = shown(plan_page(made, ()))
    assert " TIGHT " in next(line for line in alone if line.startswith("none "))
    assert ": none at +0.0 %" in " ".join(alone)
    both = layouts(tp4=made, tp2=replace(made))
    assert begun(shown(layouts_page(both)), "Faster, but ")
    row = next(row for row in json_of(planned_document(both))["settings"] if row["recompute"] == "none")
    assert (row["verdict"], row["verdict_is_certain"]) == ("TIGHT", False)


def test_on_a_processor_sizes_are_mib_cost_is_flops_and_no_cuda_allocator_is_advised(spec):
    peaks = [row.prediction.peak_bytes for row in planned(spec).rows if row.prediction]
    made = planned(spec, int((peaks[0] + min(peaks)) / 2 / 0.94))
    assert "allocator" in [step.step for step in advice(made)]
    assert size_unit(made.rows) == "GiB"
    rows = tuple(replace(row, prediction=without_seconds(row.prediction)) for row in made.rows if row.prediction)
    best = next(row for row in rows if row.text == made.recommended.text)
    on_cpu = replace(made, spec=spec.model_copy(update={"gpu": "cpu"}), rows=rows, recommended=best)
    assert "allocator" not in [step.step for step in advice(on_cpu)]
    assert size_unit(rows) == "MiB"
    assert " % FLOPs" in shown(plan_page(on_cpu, ()))[0]


def without_seconds(prediction: Prediction) -> Prediction:
    """As on a processor: no step time, and a model of a thousandth of the size."""
    stages = tuple(replace(stage, total=stage.total // 1000) for stage in prediction.stages)
    return replace(prediction, stages=stages, time=None)


def test_a_layout_that_the_tracer_cannot_trace_is_named_beside_the_others(spec):
    found = candidates(spec, SOFTWARE, TE)
    refused = {case.key: "exit 1: KeyError: 'x'" for case in required_cases(found, TE, SOFTWARE)}
    lost = plan(spec, found, Traces({}, None, refused), Limits(80 * GIGA), TE, SOFTWARE)
    lines = shown(layouts_page(layouts(tp2=lost, tp4=planned(spec))))
    assert any("tp2" in line and ": exit 1: KeyError: 'x'" in line for line in lines)
    assert shown(plan_page(lost, ()))[0].startswith("No setting ")


def test_a_terminal_gets_at_most_24_lines_and_six_settings(spec):
    for capacity in (80 * GIGA, tight_budget(spec), 30 * GIGA):
        page = plan_page(planned(spec, capacity), ["a note"] * 5)
        table = next(block for block in page.brief.blocks if isinstance(block, Table))
        assert len(table.rows) <= 6
        assert [column.title for column in table.columns] == ["Recompute", "Peak GiB", "Usable", "Step", "Cost"]
        names = {row[0].split()[0] for row in table.rows}
        made = planned(spec, capacity)
        assert {"none", made.spec.recompute.text} <= names
        assert made.recommended is None or made.recommended.text in names
        if made.recommended:
            lines = shown(page.brief, 80, terminal=True)
            assert sum(len(line) // 81 + 1 for line in lines) <= 24


@pytest.mark.parametrize(("margin", "outside"), [(0.02, 10**9), (0.0, 10**9), (0.37, 123_456_789), (0.02, 0)])
def test_the_sum_of_the_usable_memory_adds_up(margin, outside):
    for capacity in (79 * 2**30, 12_345_678_901, 123_456_789):
        text = Limits(capacity, margin, needs=DeviceNeeds(context_bytes=outside)).text
        usable, whole, *less = [float(number) for number in re.findall(r"(?<![(\d.])-?\d+\.\d\d", text)]
        assert usable == pytest.approx(whole - sum(map(abs, less)), abs=1e-9)


POINTS = [
    {},
    {"parallelism": {"pipeline_model_parallel_size": 8}},
    {"measure": {"memory_limit_bytes": 60 * 2**30}},
    {"gpu": "h200"},
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_setting_has_one_budget_and_one_verdict_in_every_table(make_spec, point):
    spec = make_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE}, **point)
    asked = PlanRequest(asked=Request(model_recipe_name="llama3_70b", gpu=spec.gpu))
    found = candidates(spec, SOFTWARE, TE)
    traces = Traces({case.key: trace_of(case) for case in required_cases(found, TE, SOFTWARE)}, None, {})
    for shrunk in (1.0, 0.75, 0.6, 0.5):
        limits = replace(asked.limits(spec), capacity_bytes=int(spec.capacity_bytes * shrunk))
        made = plan(spec, found, traces, limits, TE, SOFTWARE)
        if shrunk == 1.0:  # sweeps, reports and diagnoses judge by these
            assert made.limits == limits_for(spec) == limits_for(spec, asked.margin)
            needs = made.limits.needs.outside_bytes  # what the limit leaves of the device has room for it
            assert made.limits.outside_bytes == (0 if "measure" in point else needs)
            assert needs > 0
        alone = usable_of(plan_page(made, (), show_all=True))
        for page in (layouts_page(layouts(one=made, two=made)), plan_page(made, ())):
            assert usable_of(page).items() <= alone.items()
        known = [row for row in made.rows if row.prediction]
        assert [row.verdict for row in known] == [
            verdict(row.prediction.fits, made.limits.budget_bytes) for row in known
        ]


def usable_of(page):
    """What the column Usable says of each setting."""
    found = next(block for block in page.blocks if isinstance(block, Table))
    titles = [column.title for column in found.columns]
    names, cells = titles.index("Recompute"), titles.index("Usable")
    return {plain(row[names]).split()[0]: plain(row[cells]) for row in found.rows}


def test_the_stage_of_a_row_is_the_one_that_needs_the_largest_device(make_spec):
    """Under CUDA graphs, what is reserved decides, and not the peak."""
    sizes = {"pipeline_model_parallel_size": 2}
    spec = make_spec(compute_dtype="bf16", recompute="none", num_gpus=2, kernels={"transformer_impl": TE},
                     parallelism=sizes)  # fmt: skip
    found = planned(spec).control.prediction
    lower = next(place for place, stage in enumerate(found.stages) if stage is not found.worst)
    needs = replace(found.held[lower], fits=(0, 2 * found.peak_bytes, 3 * found.peak_bytes))
    changed = replace(found, held=tuple(needs if at == lower else held for at, held in enumerate(found.held)))
    assert changed.fullest is found.stages[lower]
    assert (changed.worst, changed.peak_bytes) == (found.worst, found.peak_bytes)


def test_a_tight_setting_that_was_asked_for_says_how_much_it_may_need(spec):
    asked = spec.model_copy(update={"recompute": parse_recompute("core_attn")})
    made = planned(asked, tight_budget(asked))
    row = next(row for row in made.rows if row.text == "core_attn")
    made = replace(made, rows=tuple(replace(each, verdict="TIGHT") if each is row else each for each in made.rows))
    (line,) = (line for line in shown(plan_page(made, ())) if line.startswith("Your setting, core_attn: TIGHT"))
    assert format_bytes(row.prediction.fits[2]) in line


def test_beside_a_plan_by_layer_no_other_setting_is_recommended(spec):
    alone, beaten = (shown(plan_page(unsure(spec), (), is_beaten=beaten)) for beaten in (False, True))
    advises = ("full:block:1 * ", "Megatron-LM", "Cheaper, ", "Changes, ")
    assert [[begun(lines, start) for start in advises] for lines in (alone, beaten)] == [[True] * 4, [False] * 4]


@pytest.mark.parametrize("capacity", [80 * 2**30, 2**30])
def test_line_1_says_that_the_job_ends_at_its_start(spec, capacity):
    line = shown(plan_page(planned(spec, capacity), (f"{STOPS}: V01: no connections",)))[0]
    assert line.endswith(f"; {STOPS}: V01.")


def test_a_table_says_which_setting_the_request_has(spec):
    assert begun(shown(plan_page(planned(spec), ())), "none * (yours) ")


def test_the_odds_of_a_tight_setting_are_told_once(spec):
    made = unsure(spec)
    more = replace(made.control.prediction, held=made.recommended.prediction.held)
    tight = replace(made.control, otherwise=made.control.prediction, prediction=more)
    made = replace(made, rows=tuple(tight if row is made.control else row for row in made.rows))
    assert made.riskier is tight
    assert sum("measured jobs of its class" in line for line in shown(plan_page(made, ()))) == 1
