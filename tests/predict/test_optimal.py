"""The fastest plan by layer: equal to brute force, monotonic, legal, and predicted as every other setting."""

import ast
import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest

from harness.experiment.effective import settled_implementation
from harness.experiment.recompute import FullRecompute, parse_recompute, simplest
from harness.experiment.recompute_plan import PlannedRecompute, grouped_layers
from harness.experiment.software import Software
from harness.launch.environment import this_host
from harness.launch.environment_rows import STOPS
from harness.plan.optimal import with_optimal
from harness.plan.request import PlanRequest
from harness.plan.run import plan_request
from harness.predict import mixes
from harness.predict.fastest import _is_by_layer, mixer_of, optimal
from harness.predict.optimal import Planner
from harness.predict.prediction import BUILT_IN
from harness.predict.search import candidate_of, judged, row_of
from harness.predict.stage_search import Room, UnsolvedError
from harness.predict.stages import Composer
from harness.resolve.recipe import Request
from harness.show.page import Page, plain

SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11.0")
JOB = {"gpu": "h100", "compute_dtype": "bf16", "cuda_graph_impl": "none", "context_parallel_size": 1}
LLAMA = dict(JOB, model_recipe_name="llama3_70b", task="sft", num_gpus=32, tensor_model_parallel_size=4)
QWEN = dict(JOB, model_recipe_name="qwen3_235b_a22b", task="sft", num_gpus=64, variant="library")
# Layers, PP, VP, and the settings beside none.
INSTANCES = {
    "interleaved": (dict(LLAMA, num_layers=4, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2), ()),
    "one stage": (dict(LLAMA, num_layers=5, pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size="none", set_values=["ddp.align_param_gather=false", "parallelism.defer_embedding_wgrad_compute=false"]), ()),
    "two stages": (dict(LLAMA, num_layers=4, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size="none", set_values=["ddp.align_param_gather=false"]), ()),
    "equal chunks": (
        dict(LLAMA, num_layers=8, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=4),
        ("mlp", "full:uniform:1"),
    ),
    "experts": (
        dict(QWEN, num_layers=4, pipeline_model_parallel_size=2),
        ("layernorm", "moe_act", "moe", "full:uniform:1"),
    ),
    "dense first": (
        dict(JOB, model_recipe_name="kimi_k2", num_gpus=1024, num_layers=4, pipeline_model_parallel_size=2,
             virtual_pipeline_model_parallel_size=2, set_values=["parallelism.pipeline_model_parallel_layout=Et|t|t|tL"]),
        ("moe_act", "full:uniform:1"),
    ),
}  # fmt: skip


@cache
def planned(name):
    asked, only = INSTANCES[name]
    request = PlanRequest(asked=Request(**asked), only=only, assume="megatron-core=0.16.1")
    layout = plan_request(request, this_host()).layouts[0]  # of shipped traces
    assert layout.plan and layout.traces, layout.problem
    return layout.plan, layout.traces


def solved(plan, traces):
    return optimal(plan, traces, settled_implementation(plan.spec), SOFTWARE, mixes={})


def with_budget(plan, gib):
    limits = replace(plan.limits, capacity_bytes=int(gib * 2**30))
    rows = tuple(replace(row, verdict=judged(row.prediction, limits)[0]) for row in plan.rows)
    return replace(plan, limits=limits, rows=rows)


def replayed(made):
    """Return settings for all layers that fit: by their replay they may need less than plans are estimated to need."""
    return [row.prediction for row in made.rows if row.verdict == "FITS" and _is_by_layer(row.candidate.spec)]


def with_layout(parallelism, layout):
    uneven = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    asked = {"pipeline_model_parallel_layout": layout, **dict.fromkeys(uneven, False)}
    return parallelism.model_copy(update=asked if layout else {})


def is_chosen(way, kinds, order):
    """Return whether layers under full come first, and those of a kind in order: of equal plans one."""
    of_kinds = [[order.index(each) for each, own in zip(way, kinds, strict=True) if own == kind] for kind in {*kinds}]
    return all(each == sorted(each) for each in of_kinds) and "full" not in way[way.count("full") :]


@cache
def every_plan(name, layout=None):
    """Return the prediction of every plan of an instance; of each kind of layer in a chunk, how many have which setting."""
    plan, traces = planned(name)
    implementation = settled_implementation(plan.spec)
    asked = plan.spec.model_copy(update={"parallelism": with_layout(plan.spec.parallelism, layout)})
    composer, found = Composer(asked, implementation), []
    texts = [row.text for row in plan.rows if row.prediction and not row.text.startswith("full")]
    texts = ["full", *texts] if any(row.text.startswith("full") and row.prediction for row in plan.rows) else texts
    by_peak = {row.text: row.prediction.peak_bytes for row in plan.rows if row.prediction} | {"full": 0}
    order = sorted(texts, key=by_peak.__getitem__)
    chunks = [tuple(composer.layer_kinds[i] for i in chunk.layers) for stage in composer.stages for chunk in stage]
    ways = {
        kinds: [way for way in product(order, repeat=len(kinds)) if is_chosen(way, kinds, order)] for kinds in chunks
    }
    assert prod(len(ways[kinds]) for kinds in chunks) <= 2**16
    vp = len(composer.stages[0])
    for chosen in product(*(ways[kinds] for kinds in chunks)):
        stages = tuple(tuple(map(grouped_layers, chosen[i : i + vp])) for i in range(0, len(chosen), vp))
        spec = asked.model_copy(update={"recompute": simplest(PlannedRecompute(stages=stages))})
        row = row_of(candidate_of(spec, SOFTWARE, implementation), composer, traces, SOFTWARE, BUILT_IN, plan.limits)
        if row.prediction:
            found.append(row.prediction)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * name.startswith(("dense", "eq", "ex", "inter")))
        for name in INSTANCES
    ],
)
def test_the_plan_equals_brute_force_at_every_budget(name):
    plan, traces = planned(name)
    every = every_plan(name)
    needs = sorted(found.fits[2] for found in every)
    outside = plan.limits.outside_bytes
    for share in (0.0, 0.03, 0.1, 0.25, 0.4, 0.6, 0.8, 0.95, 1.0):
        need = needs[int(share * (len(needs) - 1))]
        made = with_budget(plan, (need + outside + 2**20) / (1 - plan.limits.margin) / 2**30)
        budget = made.limits.budget_bytes
        fitting = [*(found for found in every if found.fits[2] <= budget), *replayed(made)]
        best = min(found.time.likely_s for found in fitting)
        smallest = min(found.peak_bytes for found in fitting if found.time.likely_s <= best * (1 + 1e-9))
        answer = solved(made, traces)
        assert answer.row and answer.row.prediction, answer.reason
        assert answer.row.prediction.time.likely_s == pytest.approx(best, rel=1e-9)
        assert answer.row.prediction.peak_bytes == smallest
        assert answer.seconds == pytest.approx(best, rel=1e-9)
        assert answer.is_proven


@pytest.mark.parametrize("name", ["interleaved", "experts"])
def test_less_memory_is_never_faster_and_never_a_higher_peak(name):
    plan, traces = planned(name)
    control = plan.control.prediction
    low, high = min(row.prediction.fits[2] for row in plan.rows if row.prediction), control.fits[2]
    answers = []
    for step in range(5):
        gib = (low + (high - low) * step / 4 + plan.limits.outside_bytes + 2**20) / (1 - plan.limits.margin) / 2**30
        found = solved(with_budget(plan, gib), traces)
        assert found.row and found.row.verdict == "FITS"
        answers.append(found.row.prediction)
    times, peaks = [each.time.likely_s for each in answers], [each.peak_bytes for each in answers]
    assert times == sorted(times, reverse=True)
    assert peaks == sorted(peaks)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["none", "core_attn"])
def test_a_setting_for_all_layers_that_fits_is_never_faster_than_the_plan(text):
    plan, traces = planned("interleaved")
    need = min(found.fits[2] for found in every_plan("interleaved")) + plan.limits.outside_bytes + 2**20
    for share, is_found in ((1.001, True), (0.5, False)):
        made = with_budget(plan, share * need / (1 - plan.limits.margin) / 2**30)
        own = solved(made, traces)
        assert bool(own.row) == is_found
        # As where a replay of this setting shows that it needs less than what plans by layer are estimated to need.
        rows = tuple(replace(row, verdict="FITS" if row.text == text else row.verdict) for row in made.rows)
        answer = solved(replace(made, rows=rows), traces)
        assert answer.row.text == answer.best_uniform.text == text
        assert (answer.gain, answer.reason, answer.is_proven) == (0, "", True)
        assert answer.bound == answer.seconds == answer.row.prediction.time.likely_s < own.seconds_or_inf
        assert {setting for chunks in answer.stages for chunk in chunks for setting in chunk} == {text}


@pytest.mark.parametrize("text", ["none", "mlp", "full:block:1"])
def test_a_plan_of_one_setting_is_predicted_as_that_setting(text):
    plan, traces = planned("interleaved")
    policy, implementation = parse_recompute(text), settled_implementation(plan.spec)
    setting = "full" if isinstance(policy, FullRecompute) else text
    stages = tuple(tuple(grouped_layers((setting,) * len(chunk.layers)) for chunk in stage)
                   for stage in Composer(plan.spec, implementation).stages)  # fmt: skip
    spec = plan.spec.model_copy(update={"recompute": PlannedRecompute(stages=stages)})
    row = row_of(candidate_of(plan.spec.model_copy(update={"recompute": policy}), SOFTWARE, implementation),
                 Composer(plan.spec, implementation), traces, SOFTWARE, BUILT_IN, plan.limits)  # fmt: skip
    own = row_of(replace(candidate_of(spec, SOFTWARE, implementation), findings=()), Composer(plan.spec, implementation),
                 traces, SOFTWARE, BUILT_IN, plan.limits).prediction  # fmt: skip
    assert [stage.total for stage in own.stages] == [stage.total for stage in row.prediction.stages]
    assert own.time.likely_s == row.prediction.time.likely_s
    assert own.recompute_flops == row.prediction.recompute_flops


def test_a_setting_that_another_beats_is_not_in_the_space():
    plan, traces = planned("two stages")
    implementation = settled_implementation(plan.spec)
    texts = tuple(row.text for row in plan.rows if row.prediction and "full" not in row.text)
    mixer = mixes.Mixer(Composer(plan.spec, implementation), None, texts, traces.even, traces.uneven)
    assert "core_attn" in texts and "core_attn" not in mixer.allowed["dense"]


def test_only_a_program_without_a_solution_means_that_nothing_fits():
    plan, traces = planned("two stages")
    mixer = mixer_of(plan, traces, settled_implementation(plan.spec), SOFTWARE, BUILT_IN, {})
    adam = plan.control.prediction.adam
    assert Planner(mixer, Room(2**20, 1.0, 0.0), adam).solve() is None
    with pytest.raises(UnsolvedError):  # HiGHS does not accept so large a number
        Planner(mixer, Room(2**40, 1e16, 0.0), adam).solve()


def test_plans_are_not_offered_where_layers_are_captured_or_moved():
    plan, traces = planned("two stages")
    for update in ({"cuda_graph": plan.spec.cuda_graph.model_copy(update={"impl": "local"})},
                   {"ddp": plan.spec.ddp.model_copy(update={"use_megatron_fsdp": True})},
                   {"offload": plan.spec.offload.model_copy(update={"cpu_offloading_num_layers": 1})}):  # fmt: skip
        found = solved(replace(plan, spec=plan.spec.model_copy(update=update)), traces)
        assert found.row is None and found.reason


@pytest.mark.slow
def test_line_1_has_what_the_plan_needs_with_its_range():
    plan, _ = planned("interleaved")
    gib = (plan.control.prediction.fits[0] + plan.limits.outside_bytes) / (1 - plan.limits.margin) / 2**30
    asked = Request(**INSTANCES["interleaved"][0])
    request = PlanRequest(asked=asked, assume="megatron-core=0.16.1", optimal=True, fit_into_gib=gib)
    made = plan_request(request, this_host())
    found, answer = made.optimal.row.prediction, with_optimal(Page(()), made).answer
    assert made.optimal.is_faster and found.fits[1] > found.peak_bytes
    need, *ends = re.search(r"([\d.]+) GiB .*?\(([\d.]+)-([\d.]+)\)", plain(answer.words)).groups()
    assert [float(ends[0]), float(need), float(ends[1])] == [round(size / 2**30, 1) for size in found.fits]
    stopped = replace(made.judged, settled=replace(made.judged.settled, notes=(f"{STOPS}: V01: no connections",)))
    line = plain(with_optimal(Page(()), replace(made, layouts=(stopped,))).answer.words)
    assert (line.endswith(f"; {STOPS}: V01."), len(line) <= 160) == (True, True)


@pytest.mark.slow
def test_the_plan_file_is_read_as_the_plan_and_runs_in_its_layout(mbr_perf, tmp_path):
    job = ("-mr", "llama3_8b", "-g", "cpu", "-ng", "2", "-pp", "2", "--num_layers", "4")
    files = [tmp_path / "plan.yaml", tmp_path / "plan.py"]
    for file in files:
        done = mbr_perf("plan", *job, "--fit_into", "0.075", "--optimal", "--plan_file", str(file), "--json")
        assert done.code == 0, done.err
    stages = json.loads(done.out)["optimal"]["stages"]
    assert len({row["setting"] for row in stages}) > 1
    checked = mbr_perf("check", *job, "--recompute", str(files[0]), "--json")
    assert checked.code == 0
    assert {finding["severity"] for finding in json.loads(checked.out)["findings"]} <= {"note"}
    plan = ast.literal_eval(files[1].read_text().partition("PLAN: Plan = ")[2].partition("\n\n")[0])
    of_script = [
        {"stage": stage, "chunk": chunk, "layers": layers, "setting": setting}
        for stage, chunks in enumerate(plan)
        for chunk, groups in enumerate(chunks)
        for layers, setting in groups
    ]
    assert of_script == stages
