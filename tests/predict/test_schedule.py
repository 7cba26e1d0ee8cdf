"""The order of passes and the hidden states beside them: by hand, in general, and against megatron-core's own schedules."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.predict.schedule import Event, Schedule, fullest_instants, instants, without_repeats


def order(schedule: Schedule) -> str:
    return " ".join(f"{event.direction[0].upper()}{event.chunk}" for event in schedule.events())


def most_in_flight(schedule: Schedule) -> int:
    return max(sum(instant.in_flight) for instant in instants(schedule))


def test_without_pipelining_each_micro_batch_goes_forward_and_straight_back_and_stages_run_ahead():
    assert order(Schedule(pp_size=1, pp_rank=0, num_microbatches=2)) == "F0 B0 F0 B0"
    assert order(Schedule(pp_size=3, pp_rank=0, num_microbatches=4)) == "F0 F0 F0 B0 F0 B0 B0 B0"


def test_interleaving_alternates_chunks_by_groups_and_warms_up_over_all_chunks_but_one():
    example = Schedule(pp_size=2, pp_rank=0, num_microbatches=5, vp_size=2, group_size=3)  # of megatron-core
    assert example.chunk_of == (0, 0, 0, 1, 1, 1, 0, 0, 1, 1)
    llama3_70b = [Schedule(pp_size=4, pp_rank=rank, num_microbatches=16, vp_size=5) for rank in (0, 3)]
    assert [schedule.num_warmup for schedule in llama3_70b] == [22, 16]
    assert most_in_flight(llama3_70b[0]) == 23  # chunks of 4 layers


def test_one_f_one_b_keeps_gradients_and_the_input_of_the_pass_before_alive():
    events = Schedule(pp_size=3, pp_rank=1, num_microbatches=3).events()
    assert events == (
        Event("forward", 0, 0),
        Event("forward", 0, 0),
        Event("backward", 0, 0),
        Event("forward", 0, 3),
        Event("backward", 0, 1),
        Event("backward", 0, 1),
    )


@st.composite
def schedules(draw) -> Schedule:
    pp = draw(st.integers(1, 5))
    vp = draw(st.integers(1, 4)) if pp > 1 else 1
    groups = draw(st.integers(1, 4))
    return Schedule(pp, draw(st.integers(0, pp - 1)), groups * pp if vp > 1 else draw(st.integers(1, 12)), vp)


@given(schedules())
def test_every_micro_batch_passes_every_chunk_once_each_way_forward_first_and_no_buffer_is_owed(schedule):
    passes = Counter((event.direction, event.chunk) for event in schedule.events())
    expected = {(d, c): schedule.num_microbatches for d in ("forward", "backward") for c in range(schedule.vp_size)}
    assert passes == expected
    backward = [each for each in instants(schedule) if each.event.direction == "backward"]
    assert all(each.in_flight[each.event.chunk] > 0 for each in backward)
    assert min(event.buffers for event in schedule.events()) >= 0


@given(schedules(), st.booleans(), st.data())
def test_no_instant_that_is_left_out_holds_more_than_the_fullest_of_its_kind(schedule, lingers, data):
    size, vp = st.integers(0, 9), schedule.vp_size
    sizes = st.lists(size, min_size=vp, max_size=vp)
    saved, left, more = data.draw(sizes), *(data.draw(sizes) if lingers else [0] * vp for _ in range(2))
    per_buffer, per_deferred = data.draw(size), data.draw(size)

    def total(instant):
        held = sum(n * each for n, each in zip(instant.in_flight, saved, strict=True))
        for chunk, ended in enumerate(instant.ended):
            if ended and chunk != instant.event.chunk:
                held += left[chunk] + more[chunk] * (instant.in_flight[chunk] == 0)
        return held + instant.event.buffers * per_buffer + instant.deferred * per_deferred

    def most(some):
        held = {}
        for instant in some:
            event = instant.event
            kind = event.direction, event.chunk, lingers and instant.ended[event.chunk]
            held[kind] = max(held.get(kind, 0), total(instant))
        return held

    assert most(fullest_instants(schedule, lingers=lingers)) == most(instants(schedule))


@given(schedules(), st.integers(7, 20), st.integers(0, 1))
def test_more_groups_of_micro_batches_only_repeat_the_steady_phase(schedule, num_groups, extra_warmup):
    num_microbatches = num_groups * schedule.pp_size + (schedule.num_microbatches if schedule.vp_size == 1 else 0)
    longer = replace(schedule, num_microbatches=num_microbatches, extra_warmup=extra_warmup)
    assert without_repeats(longer).num_microbatches < num_microbatches
    assert instants(without_repeats(longer)) == instants(longer)


def test_with_overlapped_expert_communication_a_backward_pass_goes_before_the_forward_pass_beside_it():
    plain = Schedule(pp_size=2, pp_rank=1, num_microbatches=4, vp_size=2)
    overlapped = Schedule(pp_size=2, pp_rank=1, num_microbatches=4, vp_size=2, extra_warmup=1)

    assert order(plain).split()[:6] == ["F0", "F0", "F1", "B1", "F1", "B1"]
    assert order(overlapped).split()[:7] == ["F0", "F0", "F1", "B1", "F1", "B1", "F0"]
    assert most_in_flight(overlapped) == most_in_flight(plain)


SCRIPT = Path(__file__).with_name("scripted_schedule.py")


SCHEDULES = (
    Schedule(pp_size=4, pp_rank=0, num_microbatches=6),
    Schedule(pp_size=4, pp_rank=1, num_microbatches=6),
    Schedule(pp_size=4, pp_rank=3, num_microbatches=3),
    Schedule(pp_size=2, pp_rank=1, num_microbatches=1),
    Schedule(pp_size=4, pp_rank=0, num_microbatches=16, vp_size=5, group_size=4),
    Schedule(pp_size=4, pp_rank=1, num_microbatches=16, vp_size=5, group_size=4),
    Schedule(pp_size=4, pp_rank=3, num_microbatches=8, vp_size=5, group_size=4),
    Schedule(pp_size=2, pp_rank=0, num_microbatches=6, vp_size=2, group_size=3),
    Schedule(pp_size=2, pp_rank=1, num_microbatches=5, vp_size=2, group_size=3),
    Schedule(pp_size=4, pp_rank=1, num_microbatches=4, vp_size=2, group_size=4),
    Schedule(pp_size=3, pp_rank=2, num_microbatches=12, vp_size=3, group_size=3),
)


@pytest.fixture(scope="module")
def megatron_core() -> dict[Schedule, list[tuple[str, int, int]]]:
    """Passes of all schedules, from one process."""
    sizes = [(s.pp_size, s.pp_rank, s.vp_size, s.num_microbatches, s.group_size) for s in SCHEDULES]
    command = [sys.executable, "-W", "ignore", str(SCRIPT), json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {
        schedule: [(direction, chunk, alive) for direction, chunk, alive in passes]
        for schedule, passes in zip(SCHEDULES, json.loads(done.stdout), strict=True)
    }


def passes_of_schedule(schedule: Schedule) -> list[tuple[str, int, int]]:
    """Hidden states alive in a pass: inputs of micro-batches in flight, what the pass itself got, and the buffers."""
    in_flight, rows = [0] * schedule.vp_size, []
    for event in schedule.events():
        starts = [chunk for chunk in range(schedule.vp_size) if not (schedule.is_first and chunk == 0)]
        alive = event.buffers + sum(in_flight[chunk] for chunk in starts)
        if event.direction == "forward":
            alive += event.chunk in starts
            in_flight[event.chunk] += 1
        else:
            alive += not (schedule.is_last and event.chunk == schedule.vp_size - 1)
            in_flight[event.chunk] -= 1
        rows.append((event.direction, event.chunk, alive))
    return rows


@pytest.mark.train
@pytest.mark.parametrize(
    "schedule",
    SCHEDULES,
    ids=lambda s: f"pp{s.pp_size}-rank{s.pp_rank}-vp{s.vp_size}-m{s.num_microbatches}-group{s.group_size}",
)
def test_passes_and_buffers_are_those_of_megatron_core(schedule, megatron_core):
    assert passes_of_schedule(schedule) == megatron_core[schedule]
