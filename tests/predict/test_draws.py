"""Sizes that vary: what a plan reads, what it draws, and that requests go by tokens."""

import json
from dataclasses import replace
from statistics import fmean

import pytest

from harness.errors import ManyProblemsError
from harness.experiment.recompute import NoRecompute
from harness.launch.environment import this_host
from harness.predict.draws import LENGTHS, NUM_DRAWS, ROUTING, Draw, Tokens, Varied, read_tokens, read_varied
from harness.predict.rank_events import _Memory
from harness.predict.rank_parts import Unit
from harness.predict.trace_cases import CaseMaker
from harness.predict.tracer_processes import TracerProcess
from harness.records.events import EventsFile
from harness.records.trace import TraceRequest
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from tests.commands import refused

LLAMA = Request(model_recipe_name="llama3_8b", gpu="h100", compute_dtype="bf16", num_gpus=8, seq_length=4096)


def test_two_numbers_or_a_file_of_lengths_are_read(tmp_path):
    assert read_tokens(LENGTHS, "1800,700") == Tokens(mean=1800, spread=700)
    file = tmp_path / "lengths.csv"
    file.write_text("512,3\n1024, 1\n4096,1\n\n")
    assert read_tokens(LENGTHS, str(file)) == Tokens(mean=1331.2, counts=((512, 3), (1024, 1), (4096, 1)))


@pytest.mark.parametrize("text", ["1800", "0,7", "7,0", "nan,7", "lengths.csv", "/dev/null"])
def test_what_are_no_lengths_is_refused(text):
    refused(lambda: read_tokens(LENGTHS, text), f"{LENGTHS} {text}: ")


@pytest.mark.parametrize("option", [LENGTHS, ROUTING])
def test_a_wrong_file_is_refused_with_its_first_wrong_line(mbr_perf, tmp_path, option):
    file = tmp_path / "lengths.csv"
    file.write_text("5,1\n7 1\n8,0\n")
    answer = mbr_perf("plan", "-mr", "llama3_8b", "-g", "h100", option, str(file))
    assert (answer.code, answer.out) == (2, "")
    assert all(word in answer.err for word in (f"{option} {file}:2: '7 1'", "TOKENS,COUNT", "2048,310"))


def test_lengths_beyond_the_sequence_are_refused_with_their_line(mbr_perf, tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("8192,3\n9000,1\n16384,2\n")
    job = ("plan", "-mr", "llama3_8b", "-g", "h100", "-ng", "8", "-c", "bf16", "-sl", "8192", "--lengths")
    for value, words in ((file, f"{file}:3: 16384 "), ("9000,10", "9000,10: 9000 ")):
        answer = mbr_perf(*job, str(value))
        assert answer.code == 2
        assert all(word in answer.err for word in (words, "8192"))


def test_wrong_lengths_and_wrong_routing_are_named_together():
    assert read_varied("5,1", None) == Varied(lengths=Tokens(mean=5, spread=1))
    with pytest.raises(ManyProblemsError) as caught:
        read_varied("0,7", "x")
    assert [str(problem).partition(":")[0] for problem in caught.value.problems] == [f"{LENGTHS} 0,7", f"{ROUTING} x"]


def test_draws_are_the_same_each_time_and_differ_from_each_other():
    spec = resolve(LLAMA).spec
    first, again = (Varied(Tokens(mean=2000, spread=900)).draws(spec) for _ in range(2))
    of_draws, same = (
        [[draw.length(step, n) for step in range(2) for n in range(64)] for draw in each] for each in (first, again)
    )
    assert of_draws == same and len(first) == NUM_DRAWS
    assert len({tuple(shares) for shares in of_draws}) == NUM_DRAWS
    shares = [share for each in of_draws for share in each]
    assert 0 < min(shares) < max(shares) <= 1
    assert sum(shares) / len(shares) == pytest.approx(2000 / 4096, rel=0.05)
    assert all(share * 4096 % 16 == 0 for share in shares)


def test_what_a_spread_has_beyond_is_cut_and_a_micro_batch_is_as_long_as_its_longest():
    spec = resolve(LLAMA).spec
    assert {Draw(0, spec, Tokens(mean=4096.0, spread=1.0)).length(0, n) for n in range(64)} == {1.0}
    file = Tokens(mean=2560.0, counts=((1024, 1), (4096, 1)))
    pairs = spec.model_copy(update={"batch": spec.batch.model_copy(update={"micro_batch_size": 2})})
    single, longest = ([Draw(1, each, file).length(0, n) for n in range(512)] for each in (spec, pairs))
    assert set(single) == set(longest) == {0.25, 1.0}
    assert single.count(0.25) == pytest.approx(0.5 * len(single), rel=0.2)
    assert longest.count(0.25) == pytest.approx(0.25 * len(longest), rel=0.3)
    spread = [Draw(1, spec, Tokens(mean=2048.0, spread=900.0)).length(0, n) for n in range(512)]
    assert fmean(spread) == pytest.approx(0.5, rel=0.05)


def test_a_rank_gets_the_mean_of_its_experts_and_a_capacity_drops_the_rest():
    spec = resolve(Request(model_recipe_name="deepseek_v3", gpu="h100", compute_dtype="bf16", num_gpus=1024)).spec
    draw = Draw(0, spec, routing=Tokens(200.0, counts=((100, 1), (300, 1))))  # four experts on each rank
    loads = {draw.load(1, n, layer) for n in range(64) for layer in range(4)}
    assert loads == {0.5, 0.75, 1.0, 1.25, 1.5}
    # requests go by tokens, those of experts by their load too, and fixed ones by neither
    half = spec.batch.seq_length // 2
    memory = _Memory(replace(draw, lengths=Tokens(half, counts=((half, 1),))))
    memory.enter(Unit((), label=("",), fixed=frozenset({100}), routed=frozenset({800}), layer=2), 0)
    assert [memory.scaled(size) for size in (100, 400, 800)] == [100, 200, 400 * draw.load(0, 0, 2)]
    assert draw.load(0, 0, 2) != 1
    capped = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"moe_expert_capacity_factor": 1.25})})
    assert max(Draw(0, capped, routing=draw.routing).load(1, n, 0) for n in range(64)) == 1.25


@pytest.mark.train
@pytest.mark.slow
def test_half_the_tokens_ask_for_half_the_bytes_but_for_the_gradients_of_the_ends():
    cases = []
    for tokens in (4096, 2048):
        spec = resolve(LLAMA).spec
        spec = spec.model_copy(update={"batch": spec.batch.model_copy(update={"seq_length": tokens})})
        make = CaseMaker(spec, "transformer_engine")
        cases.append(make.last(spec.model.layer_kinds[0], NoRecompute(), pre=True, mtp=False))
    request = TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json()
    found = EventsFile.model_validate_json(TracerProcess(this_host(), 600.0).answer(request, "--events")).chunks
    whole, half = (found[case.key] for case in cases)
    for part, other in zip(
        (whole.before, whole.layer, whole.behind), (half.before, half.layer, half.behind), strict=True
    ):
        large = [row for row in (*part.forward, *part.backward) if row >= 2**17]
        small = [row for row in (*other.forward, *other.backward) if row >= 2**16]
        ends = (whole.before, whole.behind)
        expected = [row if part in ends and row in part.parameters else row // 2 for row in large]
        assert expected == small
    assert whole.shared == half.shared


@pytest.mark.slow
def test_a_plan_with_lengths_has_what_each_distribution_takes(mbr_perf):
    job = ("plan", "-mr", "llama3_70b", "-g", "h100", "-ng", "32", "-c", "bf16", "--only", "none", "--json")
    more = ((), ("--lengths", "4000,1400"), ("--lengths", "6000,60"))
    plain, short, long = (json.loads(mbr_perf(*job, *each).out)["settings"][0] for each in more)
    assert plain["drawn"] is None
    assert all(each["peak_bytes"] == plain["peak_bytes"] for each in (short, long))
    for each in (short, long):
        drawn = each["drawn"]
        assert drawn["peak_bytes"][0] <= drawn["fits_bytes"][0] <= drawn["reserved_bytes"][0]
        for name in ("fits", "reserved"):  # of every stage, not only of the fullest
            assert each[f"{name}_range_bytes"][0] < drawn[f"{name}_bytes"][0] < drawn[f"{name}_bytes"][1]
            assert drawn[f"{name}_bytes"][1] < each[f"{name}_bytes"]
    assert short["drawn"]["fits_bytes"][1] < long["drawn"]["fits_bytes"][0] < plain["fits_range_bytes"][0]


@pytest.mark.slow
def test_a_plan_with_routing_replaces_the_assumed_load_and_native_segments_fragment(mbr_perf):
    job = ("plan", "-mr", "qwen3_30b_a3b", "-g", "h100", "-ng", "8", "-cv", "library", "--only", "none", "--json")
    conf = ("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")
    plain, uneven = (
        json.loads(mbr_perf(*job, *conf, *more).out)["settings"][0] for more in ((), ("--routing", "4096,800"))
    )
    assert uneven["reserved_source"] == "replayed"
    assert uneven["reserved_bytes"] > plain["reserved_bytes"]
    assert uneven["fits_range_bytes"][1] < plain["fits_range_bytes"][1]  # without: 1.8 times the tokens of a rank
    assert uneven["peak_range_bytes"] == plain["peak_range_bytes"]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (("--cuda_graph_impl", "local", "--only", "mlp"), "--lengths"),
        (("--search",), "--lengths"),
        (("--search",), "--routing"),
        ((), "--routing"),
    ],
    ids=["graphs", "search", "search routing", "no experts"],
)
def test_what_has_no_effect_is_refused(mbr_perf, options, option):
    answer = mbr_perf("plan", "-mr", "llama3_8b", "-g", "h100", "-c", "bf16", *options, option, "2000,900")
    assert (answer.code, option in answer.err) == (2, True)
