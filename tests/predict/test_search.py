"""Which settings a search tries, which it recommends, and what it advises a job that ran out of memory."""

import re
from dataclasses import replace

import pytest

from harness.experiment.experiment import CudaGraphSpec
from harness.experiment.recompute import parse_recompute, runs_again
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.plan.show import plan_page
from harness.predict.advice import (
    advice,
    asked_text,
    module_worths,
    riskier_text,
    safe_instead,
    same_time_text,
    unmodelled,
    why_none,
)
from harness.predict.device import DeviceNeeds
from harness.predict.limits import Limits
from harness.predict.prediction import verdict
from harness.predict.ranges import cost_error
from harness.predict.search import Traces, candidates, plan, recommended, required_cases
from harness.show.page import plain
from harness.units import format_bytes, format_percent
from tests.predict.conftest import row_of

TE = "transformer_engine"
SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")


@pytest.fixture
def planned(spec_of, by_hand):
    def make(spec=None, **limits):
        spec = spec or spec_of()
        found = candidates(spec, SOFTWARE, TE)
        traces = by_hand(required_cases(found, TE, SOFTWARE))
        return plan(spec, found, traces, Limits(**{"capacity_bytes": 80 * 1024**3} | limits), TE, SOFTWARE)

    return make


def tight(planned, text: str, slack: int = 10, **limits):
    """A plan whose memory fits the whole range of ``text`` with ``slack`` bytes to spare."""
    upper = row_of(planned(), text).prediction.fits[2]
    return planned(capacity_bytes=planned().limits.needs.outside_bytes + upper + slack, margin=0.0, **limits)


def without_tight_ones(made):
    """The plan as it is where settings either fit with their whole range or not at all."""
    rows = tuple(replace(row, verdict="OOM") if row.verdict == "TIGHT" else row for row in made.rows)
    return replace(made, rows=rows, recommended=recommended(rows, made.limits))


def test_the_cheapest_that_fits_is_recommended(planned):
    assert planned().recommended.text == "none"
    # every recomputed layer costs the same here: one of four is the least that helps
    assert tight(planned, "full:block:1").recommended.text == "full:block:1"


def test_a_limit_on_cost_leaves_dear_settings_out(planned):
    cost = row_of(planned(), "full:uniform:1").overhead
    made = tight(planned, "full:uniform:4", max_overhead=cost / 2)
    assert (made.recommended.text, made.recommended.verdict) == ("none", "TIGHT")
    assert without_tight_ones(made).recommended is None


def test_nothing_is_judged_where_the_memory_is_unknown(planned):
    made = planned(capacity_bytes=None)
    assert made.recommended is None
    assert {row.verdict for row in made.rows} == {None}


def test_a_setting_that_the_tracer_declined_is_a_row_with_the_reason(spec_of, by_hand):
    spec = spec_of()
    found = candidates(spec, SOFTWARE, TE)
    cases = required_cases(found, TE, SOFTWARE)
    traces = by_hand(case for case in cases if case.spec.recompute.text != "mlp")
    refused = {case.key: "a defect" for case in cases if case.spec.recompute.text == "mlp"}
    made = plan(spec, found, Traces(traces.even, None, refused), Limits(None), TE, SOFTWARE)
    assert row_of(made, "mlp").prediction is None
    assert row_of(made, "mlp").reason == "a defect"
    assert row_of(made, "core_attn").prediction is not None


@pytest.mark.parametrize(
    ("peak", "upper", "expected"), [(93, 94, "FITS"), (93, 95, "TIGHT"), (94, 99, "TIGHT"), (95, 99, "OOM")]
)
def test_a_setting_fits_with_its_whole_range_and_is_tight_with_its_peak_alone(peak, upper, expected):
    assert verdict((90, peak, upper), 94) == expected


@pytest.mark.parametrize(
    ("capacity", "margin", "budget", "numbers"),
    [
        (100 * 10**9, 0.06, 93 * 10**9, ["86.61", "93.13", "0.93", "5.59", "6"]),
        (100 * 10**9, 0.0, 99 * 10**9, ["92.20", "93.13", "0.93"]),
        (None, 0.06, None, None),
    ],
)
def test_the_allocator_may_use_what_others_and_the_margin_leave(capacity, margin, budget, numbers):
    limits = Limits(capacity, margin, needs=DeviceNeeds(context_bytes=10**9))
    assert limits.budget_bytes == budget
    assert numbers is None or re.findall(r"[\d.]+", limits.text) == numbers


def test_no_advice_is_given_where_none_is_needed(planned):
    assert advice(planned()) == ()


def test_advice_goes_from_the_allocator_over_modules_to_layers(planned):
    steps = advice(tight(planned, "full:block:1"))
    assert [step.step for step in steps] == ["allocator", "modules", "layers"]
    assert steps[2].settles


def test_parallelism_is_the_last_resort_and_names_the_floor(planned):
    steps = advice(planned(capacity_bytes=1000))
    assert [step.step for step in steps] == ["allocator", "modules", "layers", "parallelism"]


def test_seconds_are_not_predicted_for_a_processor(spec_of, by_hand):
    spec = spec_of(gpu="cpu", compute_dtype="fp32", kernels={"transformer_impl": "local"})
    found = candidates(spec, SOFTWARE, "local")
    made = plan(spec, found, by_hand(required_cases(found, "local", SOFTWARE)), Limits(None), "local", SOFTWARE)
    assert made.control.prediction.time is None
    # a third of the layers' forward and backward FLOPs, a little less of all with the logits
    assert 0.30 < row_of(made, "full:uniform:1").overhead < 1 / 3


def test_what_fits_but_is_above_the_limit_of_cost_is_named_with_its_cost(planned):
    cheapest = tight(planned, "full:uniform:4").recommended
    made = without_tight_ones(tight(planned, "full:uniform:4", max_overhead=cheapest.overhead / 2))
    assert made.recommended is None
    assert made.too_dear.text == cheapest.text
    reason = why_none(made)
    assert f" {cheapest.overhead * 50:g} % of --max_overhead" in reason
    assert reason.endswith(f" {cheapest.text} at {format_percent(cheapest.overhead)}")


def test_what_fits_without_cuda_graphs_is_a_step_before_more_gpus(planned):
    made = planned(capacity_bytes=1000)
    assert advice(made)[-1].step == "parallelism"
    beside = replace(made, without_graphs=tight(planned, "full:block:1"))
    step = advice(beside)[-1]
    assert (step.step, step.settles) == ("graphs", True)
    for said in (step.text, why_none(beside)):
        assert "--cuda_graph_impl none" in said and "full:block:1" in said


def test_the_safe_setting_is_recommended_and_the_cheaper_one_that_may_not_fit_is_named(planned):
    none, block = (row_of(planned(), text).prediction for text in ("none", "full:block:1"))
    budget = (max(none.fits[1], block.fits[2]) + none.fits[2]) // 2
    made = planned(capacity_bytes=planned().limits.needs.outside_bytes + budget, margin=0.0)
    assert made.recommended.verdict == "FITS"
    assert made.recommended.prediction.fits[2] <= budget < none.fits[2]
    assert (made.riskier.text, made.riskier.verdict, made.riskier.is_certain) == ("none", "TIGHT", False)
    high, num = format_bytes(none.fits[2]), none.num_of_ten_within(budget)
    assert 5 <= num <= 9
    assert re.search(rf"none at \+0\.0 % .* {re.escape(high)}; .* {num} of 10 ", riskier_text(made))
    assert (riskier_text(planned()), safe_instead(made)) == ("", "")


def test_where_nothing_fits_with_its_whole_range_a_tight_setting_is_recommended_as_tight(planned):
    smallest = min((row.prediction for row in planned().rows), key=lambda found: found.peak_bytes)
    budget = (smallest.fits[1] + smallest.fits[2]) // 2
    made = planned(capacity_bytes=planned().limits.needs.outside_bytes + budget, margin=0.0)
    assert (made.recommended.verdict, made.safe) == ("TIGHT", None)
    assert safe_instead(made) != ""


def with_costs(made, costs: dict[str, tuple[float, int]]):
    """The plan with only these settings: their costs, and needs that differ in the number of GB; all fit."""
    rows = []
    for text, (cost, gigabytes) in costs.items():
        row = row_of(made, text)
        held = (replace(row.prediction.held[0], fits=3 * (gigabytes * 10**9,)),) * len(row.prediction.stages)
        rows.append(replace(row, overhead=cost, verdict="FITS", prediction=replace(row.prediction, held=held)))
    return replace(made, rows=tuple(rows), recommended=recommended(tuple(rows), made.limits))


def test_settings_whose_times_cannot_be_told_apart_are_one_group_and_memory_decides(planned):
    made = with_costs(planned(), {"mlp": (0.200, 50), "full:block:2": (0.210, 40), "full:uniform:1": (0.300, 10)})
    assert made.recommended.text == "full:block:2"
    assert [row.text for row in made.same_time] == ["mlp"]
    error, page = cost_error(), plan_page(made, ())
    said = same_time_text(made)
    assert "as fast: mlp" in plain(page.answer.words)
    assert [plain(name) for name, *_ in page.blocks[0].rows if "=" in plain(name)] == ["mlp ="]
    for named in ("mlp at +20.0 %", f"{error.num_rows} measured", f"{error.share * 100:.0f} %"):
        assert named in said


def test_a_difference_beyond_the_error_of_both_costs_is_advice(planned):
    made = with_costs(planned(), {"mlp": (0.227, 41), "full:block:3": (0.263, 40)})  # 11 % of 26.3 %: 3.0 points
    assert (made.recommended.text, made.same_time, same_time_text(made)) == ("mlp", (), "")


def test_with_cuda_graphs_a_module_is_priced_by_the_need_that_falls(planned):
    made = with_costs(planned(), {"none": (0.0, 50), "mlp": (0.2, 40)})
    made = replace(made, spec=made.spec.model_copy(update={"cuda_graph": CudaGraphSpec(impl="local")}))
    assert [worth.saved_bytes for worth in module_worths(made)] == [10 * 10**9]


def test_more_of_the_same_recompute_is_certainly_slower(planned):
    made = with_costs(planned(), {"full:block:1": (0.200, 50), "full:block:2": (0.202, 40)})
    assert (made.recommended.text, made.same_time) == ("full:block:1", ())
    made = with_costs(planned(), {"none": (0.0, 50), "mlp": (0.002, 40)})
    assert made.recommended.text == "none"


def test_of_equally_fast_settings_that_fit_none_recomputes_more_than_another(planned):
    made = with_costs(planned(), {"none": (0.0, 50), "mlp": (0.0, 40)})
    assert (made.recommended.text, [row.text for row in made.same_time]) == ("none", ["mlp"])
    tight = tuple(replace(row, verdict="TIGHT") for row in made.rows)
    assert recommended(tight, made.limits).text == "mlp"


@pytest.mark.parametrize(("more", "fewer", "expected"), [
    ("full:uniform:4", "mlp,moe", True), ("mlp,layernorm", "mlp", True), ("moe", "moe_act", True), ("mlp", "mlp,layernorm", False),
    ("full:block:2", "full:block:1", True), ("full:block:1", "full:block:2", False), ("full:block:2", "mlp", False), ("none", "mlp", False),
])  # fmt: skip
def test_a_setting_that_runs_everything_again_that_another_does(more, fewer, expected):
    assert runs_again(parse_recompute(more), parse_recompute(fewer)) is expected


def test_the_setting_of_the_request_stands_beside_another_one_that_is_recommended(planned):
    made = tight(planned, "full:block:1")
    row = row_of(made, made.spec.recompute.text)
    assert row is not made.recommended
    text = asked_text(made)
    assert f"{row.text}: {row.verdict}, " in text
    amounts = (*map(format_bytes, row.prediction.fits[1:]), format_percent(row.overhead))
    assert [amount for amount in amounts if amount not in text] == []
    assert asked_text(replace(made, recommended=row)) == ""


def test_what_is_not_modelled_has_its_bound_in_bytes(planned, spec_of):
    spec = spec_of()
    made = planned(spec.model_copy(update={"ddp": spec.ddp.model_copy(update={"nccl_ub": True})}))
    (bound,) = (bound for name, bound in unmodelled(made).items() if name.startswith("nccl_ub: "))
    assert bound == f"+{format_bytes(0.02 * made.recommended.prediction.peak_bytes)}"
    assert not any(name.startswith("nccl_ub: ") for name in unmodelled(planned()))


def texts(spec) -> list[str]:
    return [row.text for row in candidates(spec, SOFTWARE, TE).rows]


def test_llama_has_ten_settings_that_differ_and_the_asked_one_in_its_own_spelling(spec_of):
    # chunks of four layers; full:block:4 is full:uniform:1, layernorm and the expert modules do nothing
    ten = ["none", "core_attn", "mlp", "core_attn,mlp", "full:uniform:1", "full:uniform:2", "full:uniform:4",
           "full:block:1", "full:block:2", "full:block:3"]  # fmt: skip
    assert texts(spec_of()) == ten
    asked = texts(spec_of(recompute=parse_recompute("mlp,core_attn")))
    assert ("mlp,core_attn" in asked, "core_attn,mlp" in asked) == (True, False)


@pytest.mark.parametrize("text", ["layernorm", "moe_act", "mlp,moe_act"])
def test_an_asked_setting_that_rules_refuse_hides_no_other_one(spec_of, text):
    """``layernorm`` has no effect here, so it computes what ``none`` computes, but it may not run."""
    rows = {row.text: row.is_legal for row in candidates(spec_of(recompute=parse_recompute(text)), SOFTWARE, TE).rows}
    assert rows.pop(text) is False
    assert list(rows) == texts(spec_of())


def test_parts_of_moe_are_never_combined_with_it(moe_spec):
    assert "moe" in texts(moe_spec)
    assert "moe_act" in texts(moe_spec)
    assert not [text for text in texts(moe_spec) if "moe," in f"{text}," and "moe_act" in text]


def test_a_setting_that_a_rule_forbids_is_kept_with_its_rule(spec_of):
    graphs = spec_of(cuda_graph={"impl": "transformer_engine", "scope": ("mlp",)})
    rows = {row.text: row for row in candidates(graphs, SOFTWARE, TE).rows}
    assert rows["none"].is_legal
    assert not rows["full:uniform:1"].is_legal
    assert rows["full:uniform:1"].rules == ("R20",)


def test_uniform_units_must_fit_every_chunk(spec_of):
    uneven = spec_of(parallelism={
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 8,
    })  # fmt: skip
    legal = [row.text for row in candidates(uneven, SOFTWARE, TE).rows if row.is_legal]
    assert [text for text in legal if "uniform" in text] == [
        "full:uniform:1", "full:uniform:2", "full:uniform:4", "full:uniform:8",
    ]  # fmt: skip


def test_which_steps_a_run_would_measure_forbids_no_setting(make_spec):
    limited = make_spec(gpu="cpu", measure={"max_steps": 6, "eval_time_start_step": 0, "memory_limit_bytes": 2**27})
    assert "CPU17" in [finding.id for finding in check(limited, SOFTWARE)]
    assert candidates(limited, SOFTWARE, "local").rows[0].is_legal
