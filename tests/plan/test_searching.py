"""`plan --search`: what it finds, leaves out and says. Sizes are pinned to those whose traces mbr-perf brings."""

import io
import json
import re
import shlex
from collections import Counter
from dataclasses import replace

import pytest

from harness.experiment.effective import settled_implementation
from harness.experiment.rules.rule import Finding
from harness.launch.environment import this_host
from harness.measure import checking
from harness.measure.checking import Question, megatron_findings
from harness.plan import searching
from harness.plan.request import PlanRequest
from harness.plan.searched import NUM_BEST, command, search_document, settled_for_search
from harness.plan.searching import search
from harness.plan.show_layouts import search_page
from harness.predict.layouts import Sizes
from harness.predict.prediction import predict
from harness.predict.ranges import cost_error, ratio_error
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve
from harness.show.page import plain
from harness.show.terminal import Console, print_page

SFT = Request(model_recipe_name="llama3_70b", task="sft", gpu="h100", compute_dtype="bf16", num_gpus=64, global_batch_size=64,
              tensor_model_parallel_size=4, context_parallel_size=1, micro_batch_size=1, cuda_graph_impl="none")  # fmt: skip
OPTIONS = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "bf16", "-ng", "64", "-gb", "64", "-tp", "4", "-cp", "1", "-mb", "1",
           "--cuda_graph_impl", "none")  # fmt: skip


@pytest.fixture(name="found", scope="module")
def _found():
    return search(PlanRequest(asked=SFT), this_host())


@pytest.mark.slow
def test_every_layout_is_accounted_for(found):
    assert sum(found.counts.values()) == found.num_layouts > 20
    assert found.counts["predicted"] > 5


def test_the_best_are_the_fastest_that_fit_and_none_is_faster(found):
    best = found.best
    assert 1 < len(best) <= NUM_BEST
    assert [each.computing for each in best] == [each.plan.control.prediction.time.compute_s for each in best]
    safe = [each.seconds for each in best if each.row.verdict == "FITS"]
    assert safe[1:] == sorted(safe[1:])
    shapes = [each.sizes._replace(vp=None) for each in best]
    assert len({*shapes}) == len(shapes)
    others = [row.prediction.time.likely_s for each in found.tried.values() if each.sizes._replace(vp=None) not in shapes
              for row in each.plan.rows if row.verdict == "FITS"]  # fmt: skip
    assert len(safe) < NUM_BEST or min(others, default=1e9) >= safe[-1]


def test_of_layouts_that_differ_in_vp_alone_the_one_that_needs_the_least_is_shown(found):
    def again(vp: int, share: float, slower: float):
        prediction, held = best.row.prediction, best.row.prediction.held
        held = tuple(replace(each, fits=tuple(round(size * share) for size in each.fits)) for each in held)
        time = replace(prediction.time, compute_s=prediction.time.compute_s + slower * best.seconds)
        row = replace(best.row, prediction=replace(prediction, held=held, time=time))
        return replace(best, plan=replace(best.plan, recommended=row), sizes=best.sizes._replace(vp=vp))

    (best, other), least = found.best[:2], cost_error().least
    others = again(98, 0.9, 0.9 * least), again(99, 0.8, 2 * least), again(97, 1.1, 0.5 * least)
    known = replace(found, tried={each.sizes: each for each in (best, *others)})
    assert known.best == [others[0], best, *others[:0:-1]]
    known.tried[other.sizes] = other
    assert known.best == [others[0], other]


def test_layouts_that_share_stages_cost_what_each_costs_alone(found):
    software = found.base.software
    assert len(found.tried) > 10
    for tried in found.tried.values():
        for row in tried.plan.predicted:
            traces, spec = tried.traces, row.candidate.spec
            alone = predict(spec, settled_implementation(spec), traces.even, traces.uneven, software)
            assert (row.prediction.stages, row.prediction.time) == (alone.stages, alone.time)


def test_layouts_as_fast_as_the_best_are_marked(found):
    out = io.StringIO()
    page = search_page(found, PlanRequest(asked=SFT), show_all=True)
    print_page(Console(file=out, width=300, color_system=None), page)
    text = out.getvalue()
    fastest, (shared, *_) = found.best[0].seconds, re.findall(r"^All rows: (.*)", text, re.M)
    alike = [each.name for each in found.best[1:] if each.seconds <= fastest * (1 + ratio_error().share)]
    marked = re.findall(r"^(\S.*?) = ", text[: text.index("All rows: ")], re.M)
    named = [{*name.split(), *shared.split()} - {"vp=none"} for name in marked]
    assert named == [set(name.split()) for name in alike] != []
    assert "\n=: " in text


def test_the_micro_batch_that_the_search_chose_is_not_assumed(found):
    base = replace(found.base, notes=("assumed: bf16, micro 1; change with -c -mb",))
    page = search_page(replace(found, base=base), PlanRequest(asked=SFT))
    assert "Assumed: bf16; change with -c'" in str(page.blocks)


@pytest.mark.slow
def test_less_memory_leaves_slower_settings(found):
    tight = search(PlanRequest(asked=SFT, fit_into_gib=34.0), this_host())
    assert tight.best[0].seconds > found.best[0].seconds
    assert all(each.row.prediction.peak_bytes < 34 * 2**30 for each in tight.best)
    assert any(each.row.text != "none" for each in tight.best) or tight.counts["too large even with full recompute"]


def test_that_nothing_fits_is_an_answer():
    nothing = search(PlanRequest(asked=SFT, fit_into_gib=20.0), this_host())
    assert nothing.best == []
    assert sum(nothing.counts.values()) == nothing.num_layouts
    assert "not legal" not in nothing.counts
    request = PlanRequest(asked=SFT, fit_into_gib=20.0)
    assert "closest: tp=4 pp=" in plain(search_page(nothing, request).answer.words)
    closest, near = search_document(nothing, request).closest, nothing.nearest
    assert (closest.layout[:5], closest.needs_bytes > 20 * 2**30) == ("tp=4 ", True)
    assert closest.recompute == near.smallest.text


def test_the_page_of_a_search_says_how_far_it_came(found):
    request = PlanRequest(asked=SFT, over=(("ng", (64, 128)),))
    early = replace(found, interrupted=True, is_time_up=True, counts=Counter({"predicted": 3}))
    page = search_page(early, request)
    assert f"best of 3 of {found.num_layouts} layouts (time is up) of 64 GPUs" in plain(page.answer.words)
    assert f"{found.num_layouts - 3} layouts not seen" in plain(page.blocks[0].words)
    assert plain(search_page(found, request).answer.words).startswith("Use 64 GPUs: tp=4 ")


@pytest.mark.parametrize("num_gpus", [2, 16, 48, 64, 128])
@pytest.mark.parametrize("pinned", [{}, {"tensor_model_parallel_size": 8}, {"pipeline_model_parallel_size": 1}])
def test_the_batch_of_a_search_depends_on_the_number_of_gpus_alone(num_gpus, pinned):
    """The point has 256 samples on 64 GPUs, TP 4, PP 4, VP 5 and CP 2, of which some do not fit what is given."""
    asked = Request(model_recipe_name="llama3_70b", gpu="h100", num_gpus=num_gpus, **pinned)
    base = settled_for_search(PlanRequest(asked=asked), this_host()).spec
    assert (base.num_gpus, base.batch.global_batch_size) == (num_gpus, 4 * num_gpus)
    assert {name: getattr(base.parallelism, name) for name in pinned} == pinned


def test_no_setting_of_any_layout_beats_one_of_the_pareto_set(found):
    every = [
        (row.prediction.peak_bytes, row.prediction.time.likely_s)
        for each in found.tried.values()
        for row in each.plan.rows
        if row.prediction and row.verdict != "OOM"
    ]
    front = [(row.prediction.peak_bytes, row.prediction.time.likely_s) for _, row in found.pareto]
    assert len(front) > 2
    assert front == sorted(front)
    for peak, seconds in front:
        assert [each for each in every if each != (peak, seconds) and each[0] <= peak and each[1] <= seconds] == []


@pytest.mark.slow
def test_check_allows_each_of_the_best_layouts(found, mbr_perf, monkeypatch):
    """megatron-core gets the question of each `check`, but all of them at once: it takes seconds to load."""
    asked = {}

    def ask_later(spec, software, _host, env):
        asked[len(asked)] = Question(spec, software, env)
        return Finding(id="MCORE", severity="note", message="asked later", fix="")

    monkeypatch.setattr(checking, "megatron_finding", ask_later)
    for each in found.best:
        answer = mbr_perf("check", *command(each, each.row, PlanRequest(asked=SFT)).split()[2:])
        assert answer.code == 0, answer.err + answer.out
    findings = megatron_findings(asked, this_host())
    assert len(findings) == len(found.best) > 3
    assert [each for each in findings.values() if each.blocks or each.fix] == []


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_command_asks_for_the_layout_that_was_found(found, mbr_perf, place):
    each = found.best[place]
    words = command(each, each.row, PlanRequest(asked=SFT)).split()
    assert words[:2] == ["mbr-perf", "run"]
    assert words[words.index("--cuda_graph_impl") + 1] == "none"
    answer = mbr_perf("plan", *words[2:], "--json")
    layout = json.loads(answer.out)["layouts"][0]["spec"]["parallelism"]
    assert answer.code == 0, answer.err
    wanted = each.settled.spec.parallelism.model_dump(mode="json")
    assert layout == wanted
    row = next(row for row in json.loads(answer.out)["settings"] if row["recompute"] == each.row.text)
    known = each.row.prediction
    assert (row["verdict"], row["fits_bytes"], tuple(row["fits_range_bytes"])) == (
        each.row.verdict,
        known.fits[1],
        known.fits[::2],
    )
    assert (row["peak_bytes"], row["step_time_s"]) == (known.peak_bytes, known.time.likely_s)


def test_a_command_asks_for_the_recompute_that_was_found_alone(found):
    asked = replace(SFT, recompute_modules="mlp", distribute_saved_activations=False)
    words = command(found.best[0], found.best[0].row, PlanRequest(asked=asked)).split()
    assert words[-2:] == ["--recompute", found.best[0].row.text]
    assert [word for word in words if word in ("--recompute_modules", "--distribute_saved_activations", "False")] == []


def test_a_layout_is_halved_only_where_it_is_split():
    assert list(Sizes(1, 2, None, 1, None, None, 1).halves()) == []
    both = Sizes(4, 2, None, 2, 8, 4, 1)
    assert list(both.halves()) == [both._replace(tp=2, et=2), both._replace(cp=1)]
    for recipe, ep in (("qwen3_30b_a3b", 16), ("llama3_8b", None)):
        assert Sizes.of(resolve(Request(model_recipe_name=recipe, gpu="h100")).spec).ep == ep


def test_a_command_names_the_file_of_ones_own_job(found):
    asked = replace(SFT, model_recipe_name="", source=ForeignSource("bridge_config", "my job.yaml"))
    words = shlex.split(command(found.best[0], found.best[0].row, PlanRequest(asked=asked)))
    assert words[2:4] == ["--bridge_config", "my job.yaml"]
    assert "--source" not in words and "-mr" not in words


@pytest.mark.train
@pytest.mark.slow
def test_an_interrupted_search_keeps_what_it_knows():
    seen = []

    def interrupt(known):
        seen.append(known)
        raise KeyboardInterrupt

    found = search(PlanRequest(asked=replace(SFT, task="pretrain", micro_batch_size=None)), this_host(), interrupt)
    assert found.interrupted
    assert len(seen) == 1
    assert 0 < len(found.tried) < found.num_layouts


@pytest.mark.slow
def test_a_search_ends_when_its_time_is_up(mbr_perf):
    answer = mbr_perf("plan", *OPTIONS[:12], "--search", "--max_minutes", "0.01", "--json")
    seen = json.loads(answer.out)["search"]
    assert (answer.code, seen["interrupted"], seen["is_time_up"]) == (0, True, True)
    assert sum(seen["layouts"].values()) < seen["num_layouts"]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_time_is_up_only_where_it_ended_the_search(monkeypatch, found, is_stopped):
    def wait(run):
        assert run.tracing.stop.wait(60)
        if is_stopped:
            run._end_if_stopped()

    monkeypatch.setattr(searching._Run, "coarse", lambda run: (run.known.add(found.best[0]), run._ended("predicted")))
    monkeypatch.setattr(searching._Run, "fine", wait)
    answer = search(PlanRequest(asked=SFT, search=True, max_minutes=1e-4), this_host())
    assert (answer.interrupted, answer.is_time_up) == (is_stopped, is_stopped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max_minutes", "0"), "--max_minutes 0"),
        (("--over", "tp=2"), "excludes --over"),
        (("--only", "mlp"), "excludes --only"),
        (("--exact",), "excludes --exact"),
        (("--html", "plan.html"), "plan.html"),
        (("-pp", "3"), " 0 layouts of 64 GPUs with tp=4 pp=3 cp=1 mb=1 can be planned: A01: "),
        (("-tp", "3"), " can be planned: P03: "),
        (("--fit_into", "-1"), "--fit_into -1"),
    ],
)
def test_wrong_requests_start_nothing(options, message, mbr_perf):
    answer = mbr_perf("plan", *OPTIONS, "--search", *options)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


@pytest.mark.slow
def test_the_fewest_gpus_that_hold_the_job_are_searched_smallest_first(mbr_perf):
    without = OPTIONS[:8] + OPTIONS[10:]
    page = mbr_perf("plan", *without, "--search", "--over", "ng=64,4,16,8")
    document = json.loads(mbr_perf("plan", *without, "--search", "--over", "ng=64,4,16,8", "--json").out)
    assert (document["search"]["too_few"], document["layouts"][0]["spec"]["num_gpus"]) == ([4, 8], 16)
    assert page.out.startswith("Use 16 GPUs (too few: 4, 8): tp=4 pp=4 ")


@pytest.mark.slow
def test_the_page_and_the_document_tell_the_same(mbr_perf):
    page = mbr_perf("plan", *OPTIONS, "--search")
    document = mbr_perf("plan", *OPTIONS, "--search", "--json")
    searched = json.loads(document.out)["search"]
    assert (page.code, document.code) == (0, 0)
    assert searched["best"][0]["command"] in page.out
    assert f"\nMegatron-Bridge: {searched['best'][0]['bridge']}\n" in page.out
    assert f": {searched['best'][0]['megatron_lm']}\n" in page.out
    assert json.loads(document.out)["layouts"][0]["to_paste"][0]["megatron_lm"] == searched["best"][0]["megatron_lm"]
    assert f"{searched['num_layouts']} layouts" in page.out
    assert json.loads(document.out)["recommended_layout"] == searched["best"][0]["layout"]
    assert {row["layout"] for row in json.loads(document.out)["settings"]} == {
        row["layout"] for row in searched["best"]
    }


def test_a_release_without_requests_for_memory_is_said_once(mbr_perf, monkeypatch, tmp_path):
    monkeypatch.setattr("harness.predict.shipped_traces.events_file", lambda release: tmp_path / f"{release}.zip")
    options = (*OPTIONS, "--assume", "megatron-core=0.19.2", "-pp", "4", "--json")
    plain, found = (json.loads(mbr_perf("plan", *options, *more).out)["notes"] for more in ((), ("--search",)))
    assert sum("0.19.2: " in note for note in found) == 1
    assert {note for note in plain if "Reserved" in note} <= set(found)
