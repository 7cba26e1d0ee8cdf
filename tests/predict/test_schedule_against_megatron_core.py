"""The order of passes and the hidden states beside them, against megatron-core's own schedules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.predict.schedule import Schedule

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
