"""Requests of a rank, composed of recorded layers: beside the ledger, and beside ranks on torch's real allocator."""

import json
import runpy
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.predict.allocator_replay import Cycle, Event, replayed, sought
from harness.predict.allocator_settings import AllocatorSettings, asked_settings
from harness.predict.draws import Draw, Tokens, Varied
from harness.predict.ledger import stage_memory
from harness.predict.model_states import ModelStates, StateBytes, owned_parts
from harness.predict.rank_events import _Memory, _step
from harness.predict.rank_parts import MissingEventsError, chunk_parts
from harness.predict.reserved import first_steps, not_composed, ratios_of, replay
from harness.predict.shipped_traces import events_file, events_made_here, find_events, find_shipped, shipped_events
from harness.predict.stages import Composer
from harness.records.events import BEFORE, OWN, ChunkEvents, Part, freed, owner_of
from tests.commands import ROOT
from tests.predict.test_shipped_traces import ABOUT
from tests.real_te.shipped_points import IMPLEMENTATION, shipped_points

PACKING = runpy.run_path(str(ROOT / "scripts" / "accuracy.d" / "packing.py"))
event_cases = runpy.run_path(str(ROOT / "scripts" / "accuracy.d" / "cases.py"))["event_cases"]
RELEASE = "0.16.1"
EXPANDABLE, NATIVE = AllocatorSettings(expandable_segments=True), AllocatorSettings()
REGENERATE = "the recorder changed: run scripts/accuracy --traces, which takes half an hour, and commit results/traces"


@pytest.fixture(name="composed", scope="module")
def _composed():
    """The first steps of a stage: what the ledger says of it, and what each setting of the allocator takes."""
    shipped, events = find_shipped(RELEASE, Software())[0], find_events(RELEASE, Software())
    assert shipped and events, REGENERATE

    def compose(spec, stage=0, recompute="none", draws=(), **settings):
        spec = spec.model_copy(update={"recompute": parse_recompute(recompute)})
        composer = Composer(spec, IMPLEMENTATION, Software(apex=False))
        found = {case.key: shipped.read(case, 1.0).chunk for case in composer.cases()}
        costs = composer.chunk_costs(found)[stage]
        memory = stage_memory(spec, stage, costs)
        held = {
            name: replay(composer, memory, costs, each, events.read, draws=draws) for name, each in settings.items()
        }
        return memory, held

    return compose


@cache
def points():
    return [each.spec for each in shipped_points() if each.spec and not each.refused]


def point(recipe, num_gpus):
    """A shipped point of H100 in bf16."""
    asked = recipe, num_gpus, "h100", "bf16"
    return next(spec for spec in points() if (spec.recipe, spec.num_gpus, spec.gpu, spec.compute_dtype) == asked)


def most(held):
    """What is reserved where side streams are always behind."""
    return held.in_time[2] + held.behind()


def test_the_shipped_requests_are_those_of_this_recorder():
    assert find_events(RELEASE, Software()) is not None, REGENERATE
    assert events_file(RELEASE).stat().st_size < 1_500_000


def test_requests_of_another_recorder_are_not_read(tmp_path, monkeypatch):
    file = tmp_path / "requests.zip"
    about = ABOUT.model_copy(update={"tracer": "t-other"})
    file.write_bytes(PACKING["packed_events"](about, ()))
    monkeypatch.setattr("harness.predict.shipped_traces.events_file", lambda _: file)
    assert find_events(RELEASE, Software()) is None


def scripted(name):
    rows = json.loads((ROOT / "results" / "scripted_gpu" / f"{name}.json").read_text())["rows"]
    return [row for row in rows if row["stage"] == 0 and row["peak_reserved_bytes"]]


@pytest.mark.parametrize("row", [
    pytest.param(row, marks=[pytest.mark.slow] * (number % 3 > 0), id=row["setting"])
    for number, row in enumerate(scripted("llama3_8b_pretrain_bf16_8"))
])  # fmt: skip
def test_reserved_bytes_are_within_1_percent_of_torchs_allocator(composed, row):
    spec = point("llama3_8b", 8)
    held = composed(spec, recompute=row["setting"], found=EXPANDABLE)[1]["found"]
    assert held.source == "replayed"
    assert held.in_time[1] == pytest.approx(row["peak_reserved_bytes"], rel=0.01)
    assert held.fits[1] <= held.in_time[1] <= most(held)
    if late := row["peak_reserved_late_bytes"]:
        assert most(held) == pytest.approx(late, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "num_gpus"), [("kimi_k2", 1024), ("llama31_405b", 512)])
def test_the_upper_end_reaches_ddps_stream_that_is_always_behind(composed, recipe, num_gpus):
    """It reads the gradients of the embedding and of routers, of one micro-batch after the other until the step ends."""
    spec = point(recipe, num_gpus)
    (row,) = (row for row in scripted(f"{recipe}_pretrain_bf16_{num_gpus}") if row["setting"] == spec.recompute.text)
    held = composed(spec, recompute=row["setting"], found=EXPANDABLE)[1]["found"]
    late = row["peak_reserved_late_bytes"]
    assert held.in_time[1] == pytest.approx(row["peak_reserved_bytes"], rel=0.01)
    assert late <= most(held) < 1.12 * late


@pytest.mark.parametrize(
    ("stage", "recompute", "lost", "gained"),  # of native segments beyond the ledger, and by expandable ones
    [
        *[(0, "none", 10**9, 5 * 10**8), (1, "full:uniform:2", 0, 0), (2, "mlp", 0, 0), (3, "full:block:1", 0, 0)],
        *(
            pytest.param(*pair, 0, 0, marks=pytest.mark.slow)
            for pair in product(range(4), ("none", "mlp", "full:uniform:2", "full:block:1"))
        ),
    ],
)
def test_a_composed_stage_holds_what_the_ledger_says(composed, stage, recompute, lost, gained):
    memory, held = composed(point("llama3_70b", 32), stage, recompute, native=NATIVE, expandable=EXPANDABLE)
    for each in held.values():
        assert memory.total <= each.fits[1] + 1 <= each.in_time[1] + 1
        assert each.in_time[1] < 1.2 * memory.total
    assert held["expandable"].in_time[1] < held["native"].in_time[1]
    assert memory.total + lost <= held["native"].fits[1]
    assert held["expandable"].fits[1] <= held["native"].fits[1] - gained


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["layernorm,moe,mla_up_proj", "full:uniform:1"])
def test_mtp_layers_run_under_the_setting_of_the_others(composed, recompute):
    memory, held = composed(point("deepseek_v3", 1024), 7, recompute, found=EXPANDABLE)
    assert held["found"].fits[1] < 1.04 * memory.total


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full:uniform:1"])
def test_repeated_micro_batches_are_skipped_without_a_difference(composed, monkeypatch, recompute):
    spec = point("llama3_8b", 8)
    assert spec.num_microbatches == 32
    skipped = composed(spec, recompute=recompute, native=NATIVE, expandable=EXPANDABLE)
    monkeypatch.setattr("harness.predict.rank_events.ROUNDS", 3)
    more = composed(spec, recompute=recompute, native=NATIVE, expandable=EXPANDABLE)
    monkeypatch.setattr("harness.predict.rank_events.ROUNDS", 32)
    whole = composed(spec, recompute=recompute, native=NATIVE, expandable=EXPANDABLE)
    assert skipped == more == whole


def test_what_the_left_out_micro_batches_may_add_widens_the_range(composed, monkeypatch):
    spec, classed = point("deepseek_v3", 1024), ratios_of
    shares = (0.9, 1.5, 0.8, 1.25)
    plain = composed(spec, found=EXPANDABLE)[1]["found"]
    monkeypatch.setattr("harness.predict.reserved.ratios_of", lambda *job: replace(classed(*job), cut=shares))
    wide = composed(spec, found=EXPANDABLE)[1]["found"]
    assert (wide.in_time[1], wide.fits[1]) == (plain.in_time[1], plain.fits[1])
    assert wide.in_time[0] < 0.95 * plain.in_time[0]
    assert most(wide) > 1.3 * most(plain)
    assert (wide.fits[0] < 0.85 * plain.fits[0], wide.fits[2] > 1.2 * plain.fits[2]) == (True, True)
    # Without a pipeline, blocks come back to their places: nothing is left out.
    exact = composed(point("llama3_8b", 8), found=EXPANDABLE)[1]["found"]
    assert exact.fits[0] == exact.fits[1] == exact.fits[2]
    assert exact.in_time[1] + 2**20 < most(exact)  # of side streams that are behind


def drifting(sizes):
    """Requests of cycles: each frees what the cycle before it asked for; ``sizes`` of each one's, in MiB."""
    key, events, edges = 0, [], []
    for wanted in sizes:
        edges.append(len(events))
        before = range(key - len(wanted) + 1, key + 1) if key else ()
        events += [Event(key + n, num << 20) for n, num in enumerate(wanted, 1)]
        events += [Event(each, None) for each in before]
        key += len(wanted)
    return events, edges


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
@pytest.mark.parametrize("wanted", [(30, 50), (7, 90, 3), (64, 5, 64, 200, 2)])
@pytest.mark.parametrize("times", [0, 1, 2, 7, 40])
def test_cycles_take_what_all_their_requests_do(settings, wanted, times):
    short, edges = drifting([wanted] * 4)
    cycle = Cycle(edges[2], edges[3], len(wanted) + 1, len(wanted), times)
    assert [(k + len(wanted), *rest) for k, *rest in short[edges[1] : edges[2]]] == short[edges[2] : edges[3]]
    found, whole = replayed(short, settings, cycles=(cycle,)), replayed(drifting([wanted] * (4 + times))[0], settings)
    assert found.is_exact
    assert found == whole


def test_cycles_that_never_come_to_rest_are_not_skipped():
    grows = [Event(1, 30 << 20), Event(2, 30 << 20)]
    found = replayed(grows, NATIVE, cycles=(Cycle(1, 2, 1, 1, 50),))
    assert not found.is_exact
    assert found.peak_reserved_bytes < 50 * (30 << 20)


@pytest.mark.slow
def test_a_draw_of_whole_micro_batches_changes_nothing_and_one_of_half_of_them_takes_less(composed):
    spec = point("llama3_70b", 32)
    memory, whole = composed(spec, found=NATIVE)
    tokens = spec.batch.seq_length
    alike, halves = (Draw(0, spec, Tokens(float(each), 1e-9)) for each in (tokens, tokens // 2))
    same = composed(spec, found=NATIVE, draws=(alike,))[1]["found"]
    assert (same.in_time, most(same)) == (whole["found"].in_time, most(whole["found"]))
    assert same.fits == pytest.approx(whole["found"].fits, rel=0.002)  # no micro-batch of a draw is left out
    assert same.drawn.reserved_bytes == (same.in_time[1],) * 2
    half = composed(spec, found=NATIVE, draws=(halves,))[1]["found"]
    # The rank also has micro-batches of all tokens in its range: the likely value is theirs.
    assert (half.in_time[1], most(half)) == (whole["found"].in_time[1], most(whole["found"]))
    assert memory.weights + memory.gradients + memory.optimizer < half.fits[0] < 0.9 * half.fits[1]


@pytest.mark.slow
def test_tokens_that_vary_fragment_torchs_own_way_of_segments_more_than_expandable_ones(composed):
    spec = point("llama3_8b", 8)
    draws = Varied(Tokens(mean=8000.0, spread=150.0)).draws(spec)
    held = composed(spec, found=NATIVE, other=EXPANDABLE, draws=draws)[1]
    constant = composed(spec, found=NATIVE, other=EXPANDABLE)[1]
    more = {name: most(held[name]) / most(constant[name]) for name in held}
    assert more["found"] > more["other"] >= 1


@pytest.mark.slow
def test_shared_experts_beside_the_dispatch_keep_segments_of_a_stream_each(composed):
    spec = next(each for each in points() if each.recipe == "moonlight_16b" and each.num_gpus == 8)
    (row,) = scripted("moonlight_16b_pretrain_bf16_8_library")
    held = composed(spec, recompute=row["setting"], found=EXPANDABLE)[1]["found"]
    assert held.in_time[1] == pytest.approx(row["peak_reserved_bytes"], rel=0.005)
    assert held.in_time[1] > 1.15 * row["peak_allocated_bytes"]


def test_the_smallest_device_is_sought_where_the_fullest_moment_would_need_more(composed):
    """Natively cached segments that are in part used count at the fullest moment, but need not be there."""
    spec = point("llama3_70b", 32)
    shipped, events = find_shipped(RELEASE, Software())[0], find_events(RELEASE, Software())
    composer = Composer(spec, IMPLEMENTATION, Software(apex=False))
    costs = composer.chunk_costs({case.key: shipped.read(case, 1.0).chunk for case in composer.cases()})[0]
    steps = first_steps(composer, stage_memory(spec, 0, costs), costs, events.read)
    assert composed(spec, found=NATIVE)[1]["found"].fits[1] == sought(steps.events, NATIVE)[1]
    events = steps.events[1:]  # without what the ledger has beside them
    free, found = sought(events, NATIVE)
    assert free == replayed(events, NATIVE)
    assert free.peak_allocated_bytes < found < free.least_bytes < free.peak_reserved_bytes
    enough, short = (replayed(events, NATIVE, found - less) for less in (0, 2**20))
    assert (enough.failed, short.failed is None) == (None, False)


def test_what_is_not_composed_says_so():
    spec = point("llama3_70b", 32)
    graphs = spec.model_copy(update={"cuda_graph": spec.cuda_graph.model_copy(update={"impl": "transformer_engine"})})
    assert (not_composed(spec), not_composed(graphs)) == ("", "CUDA graphs")
    composer = Composer(spec, IMPLEMENTATION)
    with pytest.raises(MissingEventsError):
        chunk_parts(composer, composer.stages[0][0], lambda _: None)


@pytest.mark.parametrize(
    ("sizes", "shards", "has_buckets", "owned"),
    [
        ([10, 20, 30], 1, False, [30, 20, 10]),
        ([10, 20, 30], 2, False, [30]),
        ([10, 20, 30], 4, False, [15]),
        ([30e6, 20e6, 50e6, 10e6], 2, True, [10e6, 20e6, 20e6, 5e6]),
    ],
)  # fmt: skip
def test_a_rank_has_the_first_part_of_every_bucket_from_the_last_parameter_on(sizes, shards, has_buckets, owned):
    assert owned_parts(sizes, shards, has_buckets=has_buckets) == owned


def test_an_optimizer_step_keeps_its_states_and_widens_one_optimizers_at_a_time():
    memory, million = _Memory(None), 2**20
    states = ModelStates(0, 0, 0, step_transient=8 * 2 * million)
    _step(memory, states, [[2 * million], [1 * million]], (4.0,), StateBytes(2, 8, 0, 8))
    asked = [num_bytes // million for _, num_bytes, _ in memory.steps().events if num_bytes]
    assert asked == [8, 8, 8, 4, 4, 4]  # a state and two widened copies of each
    assert sorted(memory.alive.values()) == [4 * million, 8 * million]


def test_rows_name_their_owner():
    assert [owner_of(freed(owner, 7)) for owner in (OWN, BEFORE)] == [(OWN, 7), (BEFORE, 7)]
    assert freed(OWN, 0) < 0


def test_small_requests_are_left_out_and_the_others_numbered_anew(tmp_path):
    large = PACKING["LEAST_BYTES"]
    part = Part(
        forward=(16, large, freed(OWN, 0), 2 * large),
        backward=(freed(OWN, 1), freed(BEFORE, 16), freed(OWN, 2)),
        stay=(3, large),
    )
    kept = PACKING["without_small"](ChunkEvents(before=Part(), layer=part, behind=part, shared=(8, large)))
    assert kept.layer == Part(forward=(large, 2 * large), backward=(freed(OWN, 0), freed(OWN, 1)), stay=(large,))
    assert (kept.behind, kept.shared) == (kept.layer, (large,))


def test_a_written_chunk_is_read_again(tmp_path):
    case = next(iter(Composer(point("llama3_8b", 8), IMPLEMENTATION).cases()))
    chunk = ChunkEvents(
        before=Part(forward=(1 << 20,)), layer=Part(backward=(1 << 21, freed(OWN, 0))), behind=Part(), shared=(1 << 20,)
    )
    file = tmp_path / "requests.zip"
    file.write_bytes(PACKING["packed_events"](ABOUT, [(case, chunk)]))
    assert shipped_events(file).read(case) == chunk


def test_the_launchers_setting_is_assumed_and_an_option_replaces_it(make_spec):
    spec = make_spec(gpu="h100", compute_dtype="bf16")
    assert asked_settings(spec)[0].expandable_segments
    given = spec.model_copy(update={"env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}})
    assert asked_settings(given) == (AllocatorSettings(max_split_bytes=128 << 20), "max_split_size_mb:128")
    assert ratios_of(spec, 10**10, NATIVE).reserved[2] > ratios_of(spec, 10**10, EXPANDABLE).reserved[2]


@pytest.mark.train
def test_recording_again_gives_the_shipped_requests(tmp_path):
    from harness.launch.environment import this_host
    from harness.predict.tracer_processes import TracerProcess
    from harness.records.events import EventsFile
    from harness.records.trace import TraceRequest

    here, shipped = events_made_here(), find_events(RELEASE, Software())
    if here.megatron_core != RELEASE:
        pytest.skip("another release is installed")
    cases = tuple({case.key: case for case in event_cases(point("llama3_8b", 8), IMPLEMENTATION)}.values())[:3]
    request = TraceRequest(cases=cases, implementation=IMPLEMENTATION).model_dump_json()
    answer = TracerProcess(this_host(), 300.0).answer(request, "--events")
    found = EventsFile.model_validate_json(answer).chunks
    assert {case.key: PACKING["without_small"](found[case.key]) for case in cases} == {
        case.key: shipped.read(case) for case in cases
    }


def test_a_replay_says_what_the_fullest_moment_needs(composed):
    mib = 1 << 20
    events = [Event(1, 40 * mib), Event(2, 60 * mib), Event(1, None), Event(3, 50 * mib)]
    found = replayed(events, NATIVE)
    assert (found.peak_reserved_bytes // mib, found.least_bytes // mib) == (150, 110)


@pytest.mark.parametrize(("recompute", "measured_gib"), [("none", 60.10), ("full:uniform:2", 45.88)])
def test_native_reserves_what_a_rank_without_expandable_segments_does(composed, recompute, measured_gib):
    """Measured with tests/scripted_cuda/one_rank.py: 58.84 and 42.32 GiB of tensors at most in a step."""
    held = composed(point("llama3_8b", 8), recompute=recompute, found=NATIVE)[1]["found"]
    assert held.in_time[1] / 2**30 == pytest.approx(measured_gib, rel=0.01)
