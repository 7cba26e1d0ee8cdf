"""Which of several layouts is recommended, the nearest golden of a plan, and points that rules refuse."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiment.software import Software
from harness.plan.nearest import nearest_blocks, nearest_golden, nearest_text
from harness.plan.rows import planned_document
from harness.plan.run import Planned
from harness.predict.device import device_needs
from harness.predict.limits import Limits
from harness.predict.ranges import cost_error, ratio_error
from harness.predict.search import Traces, candidates, plan, required_cases
from harness.recipes.rows import refusals
from harness.records.golden import GoldenMetric, GoldenRecord, MeasuredOn
from harness.records.trace import ChunkTrace, OpCost, TraceCase
from harness.resolve.find import all_recipe_files, open_recipe, recipes_dir
from harness.show.page import Page, plain
from tests.plan.test_plan_terminal import layout

TE = "transformer_engine"
SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")


def trace_of(case: TraceCase) -> ChunkTrace:
    return ChunkTrace(
        saved_bytes=10**9, forward_peak_bytes=10**9, backward_peak_bytes=10**8, persistent_bytes=0, hidden_bytes=10**6,
        num_parameters_dense=10**8, num_parameters_expert=0, parameter_bytes=2 * 10**8,
        ops=(OpCost(phase="forward", kind="gemm", dtype="bf16", flops=10**13),),
    )  # fmt: skip


@pytest.fixture
def planned(make_spec):
    spec = make_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE})
    found = candidates(spec, SOFTWARE, TE)
    traces = Traces({case.key: trace_of(case) for case in required_cases(found, TE, SOFTWARE)}, None, {})

    def made(verdict: str):
        first = plan(spec, found, traces, Limits(None), TE, SOFTWARE)
        peak = max(row.prediction.fits[1] for row in first.rows if row.prediction)
        capacity = peak * 2 if verdict == "FITS" else peak + 10
        return plan(spec, found, traces, Limits(device_needs(spec).outside_bytes + capacity, margin=0.0), TE, SOFTWARE)

    return made


def test_a_tight_layout_is_not_recommended_where_another_fits(planned):
    tight, fits = planned("TIGHT"), planned("FITS")
    assert (tight.recommended.verdict, fits.recommended.verdict) == ("TIGHT", "FITS")
    slower = replace(fits, spec=fits.spec.model_copy(update={"batch": fits.spec.batch.model_copy(update={
        "seq_length": fits.spec.batch.seq_length // 2})}))  # fmt: skip
    layouts = (layout("tight", tight), layout("fits", slower))
    assert Planned(layouts).best.name == "fits"
    assert Planned(layouts[:1]).best.name == "tight"


def test_layouts_whose_times_cannot_be_told_apart_are_one_group(planned):
    error, fits = ratio_error().share, planned("FITS")

    def longer(share: float, made=fits):
        """The same step for fewer tokens."""
        length = round(fits.spec.batch.seq_length / (1 + share))
        batch = fits.spec.batch.model_copy(update={"seq_length": length})
        return replace(made, spec=fits.spec.model_copy(update={"batch": batch}))

    layouts = (
        layout("slower", longer(2 * error)), layout("alike", longer(error / 2)), layout("best", fits),
        layout("tight", longer(error / 2, planned("TIGHT"))),
    )  # fmt: skip
    found = Planned(layouts)
    assert (found.best.name, [layout.name for layout in found.same_time]) == ("best", ["alike"])
    assert planned_document(found).same_time_layouts == ("alike",)
    assert Planned(layouts[:1]).same_time == Planned(()).same_time == ()
    row, found = fits.recommended, fits.recommended.prediction
    held = tuple(replace(each, fits=tuple(size // 2 for size in each.fits)) for each in found.held)
    small = replace(fits, recommended=replace(row, prediction=replace(found, held=held)))
    for share, best in ((0.9, "small"), (1.5, "first")):
        of_both = layout("first", fits), layout("small", longer(share * cost_error().least, small))
        assert Planned(of_both).best.name == best


@pytest.fixture
def golden_folder(tmp_path):
    """``golden_folder(plan, name="x", peak_allocated_bytes=5, **fields)``: a folder with goldens of the plan's labels."""

    def add(made, name: str, spec: dict, metrics: dict, **fields) -> Path:
        of = made.spec
        labels = {key: getattr(of, key) for key in ("recipe", "task", "gpu", "compute_dtype", "num_gpus")}
        golden = GoldenRecord(
            kind="external", **(labels | {"recompute": "none", "num_runs": 1, "promoted_at": "2026-01-03T00:00:00Z", "promoted_by": "", "reason": ""} | fields),
            spec=spec, metrics={key: GoldenMetric(value=value) for key, value in metrics.items()}, measured_on=MeasuredOn(gpu=of.gpu),
        )  # fmt: skip
        path = tmp_path / of.gpu / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(golden.model_dump_json())
        return tmp_path

    return add


def test_the_nearest_golden_says_how_far_the_prediction_is_from_it(planned, golden_folder):
    made = planned("FITS")
    found = next(row.prediction for row in made.rows if row.text == "none")
    values = {"peak_allocated_bytes": found.peak_bytes * 2, "tflops_per_gpu": found.tflops_per_gpu / 1.1}
    folder = golden_folder(made, "near", {}, values)
    golden_folder(made, "a_further", {"train": {"manual_gc": not made.spec.train.manual_gc}}, values)
    nearest = nearest_golden(made, {}, folder)
    assert (nearest.name, nearest.recompute, nearest.differences) == ("near", "none", ())
    assert (nearest.peak_error, nearest.throughput_error) == (pytest.approx(-0.5), pytest.approx(0.1))
    assert nearest_text(nearest) == ("Nearest golden: near: predicted peak -50.0 %, predicted TFLOP/s/GPU +10.0 %")
    assert shown(nearest) == ([nearest_text(nearest)], 0)


def shown(golden):
    """The lines that a reader gets, and how many notes are left out."""
    blocks = nearest_blocks(golden)
    return [plain(line.words) for line in Page(tuple(blocks)).brief.blocks], blocks[-1].num


def test_where_no_golden_is_near_a_note_says_so():
    assert shown(None) == ([], 1)


def test_a_setting_that_a_golden_does_not_state_is_named_and_another_layout_is_no_neighbour(planned, golden_folder):
    made = planned("FITS")
    folder = golden_folder(made, "other", {}, {"peak_allocated_bytes": 5}, num_gpus=made.spec.num_gpus * 2)
    assert nearest_golden(made, {}, folder) is None
    folder = golden_folder(made, "own", {}, {"peak_allocated_bytes": 5})
    nearest = nearest_golden(made, {"cuda_graph.impl": "--cuda_graph_impl"}, folder)
    assert [text.partition(":")[0] for text in nearest.differences] == ["cuda_graph.impl"]
    assert nearest.throughput_error is None


REFUSED = ("-mr", "deepseek_v3", "-g", "gb200", "-c", "fp8_mx")


def points():
    """Yield the options of every refused point of Blackwell."""
    for file in all_recipe_files(recipes_dir()):
        recipe = open_recipe(file.name)
        for point in recipe.points:
            key = point.key
            if "b" in key.gpu and refusals(recipe, point):
                variant = ("-cv", key.variant) if key.variant else ()
                yield "-mr", file.name, "-g", key.gpu, "-c", key.compute_dtype, "-ng", str(key.num_gpus), *variant


def named(answer):
    """Return the arguments of the command that a refusal ends with."""
    assert answer.code == 2
    return shlex.split(answer.err.splitlines()[-1])[1:]


def test_one_command_avoids_all_rules_that_refuse_a_point(mbr_perf):
    refused = mbr_perf("plan", *REFUSED)
    assert [line[7:10] for line in refused.err.splitlines() if line.startswith("error: ")] == ["G18", "G27"]
    cure = json.loads(mbr_perf("check", *REFUSED, "--no_megatron", "--json").out)["legal_with"]
    assert named(refused) == ["plan", *REFUSED, *cure]
    assert json.loads(mbr_perf("plan", *REFUSED, "--json").out)["legal_with"] == cure
    assert named(mbr_perf("plan", *REFUSED, "--search")) == ["plan", *REFUSED, "--search", *cure]
    assert mbr_perf("check", *REFUSED, "--no_megatron", *cure).code == 0
    typed = ("plan", "-mr", "moonlight_16b", "-g", "h100", "--cuda_graph_impl", "transformer_engine")
    assert named(mbr_perf(*typed)) == [*typed, "--cuda_graph_scope", "attn,moe_router,moe_preprocess"]


@pytest.mark.parametrize(("options", "broken"), [
    (("deepseek_v3", "-pp", "32", "-vp", "2"), {"P08": "use another -pp, or set pipeline_model_parallel_layout", "A03": "use a multiple of 2048 GPUs"}),
    (("llama3_70b", "-pp", "3"), {"P08": "use -pp 2, 4 or 8, or ", "A01": "use a multiple of 24 GPUs"}),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_is_told_with_all_other_problems(mbr_perf, options, broken):
    errors = json.loads(mbr_perf("plan", "-g", "h100", "-mr", *options, "--json").out)["errors"]
    assert [each["error"][:3] for each in errors] == [*broken]
    assert [each["remedy"].startswith(fix) for each, fix in zip(errors, broken.values(), strict=True)] == [True, True]


def test_a_layout_is_named_where_layers_do_not_divide(mbr_perf):
    command = named(mbr_perf("plan", "-mr", "llama3_70b", "-g", "h100", "-vp", "9"))
    assert command[-1].startswith("parallelism.pipeline_model_parallel_layout=Ett|")
    assert mbr_perf("check", *command[1:], "--no_megatron").code == 0


def test_other_modules_are_named_where_one_of_them_hangs(mbr_perf):
    command = named(mbr_perf("run", "-mr", "gpt3_175b", "-g", "a100", "--dryrun"))
    assert command[-2:] == ["--recompute", "core_attn"]
    assert mbr_perf(*command).code == 0
    typed = mbr_perf("run", "-mr", "gpt3_175b", "-g", "a100", "--recompute_modules", "core_attn,mlp", "--dryrun")
    assert (typed.code, "mbr-perf run" in typed.err) == (2, False)


@pytest.mark.slow
def test_the_command_that_a_refused_point_names_plans_it(mbr_perf):
    found = [*points()]
    assert len(found) > 15
    for options in found:
        answer = mbr_perf(*named(mbr_perf("plan", *options)))
        assert (answer.code, answer.out[:4]) == (0, "Use "), options
