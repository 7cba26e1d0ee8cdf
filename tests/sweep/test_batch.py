"""What is to become of a cell: pruned when even the lower end does not fit, and what an OOM teaches."""

import re
from types import SimpleNamespace

import pytest

from harness.experiment.gpu import GPUS
from harness.launch.environment import this_host
from harness.records.rank import Failure
from harness.records.sweep import PlannedCell
from harness.sweep.batch import SweepBatch, lessons
from harness.units import GIB
from tests.sweep.conftest import predicted

OOM = Failure(kind="oom", message="not enough memory", phase="forward_backward", step=1)


def cell(index, spec, prediction):
    return PlannedCell(index=index, name=f"{index} {spec.recompute.text}", changes={}, recompute=spec.recompute.text,
                       fate="run", spec=spec, prediction=prediction)  # fmt: skip


@pytest.fixture(name="oom")
def _oom(make_spec, make_rank, make_record):
    """A cell of two stages that ran out of memory on the given ranks, and its record."""

    def make(*ranks, prediction):
        spec = make_spec(gpu="cpu", recompute="mlp", parallelism={"pipeline_model_parallel_size": 2})
        built = [make_rank(spec, rank) for rank in (0, 1)]
        for rank in ranks:
            built[rank] = built[rank].model_copy(update={"failure": OOM})
        return cell(0, spec, prediction), make_record(spec, status="oom", ranks=tuple(built))

    return make


def other(make_spec, index, recompute, prediction, **changes):
    spec = make_spec(gpu="cpu", recompute=recompute, parallelism={"pipeline_model_parallel_size": 2}, **changes)
    return cell(index, spec, prediction)


def test_an_oom_rules_out_what_needs_as_much_on_the_stage_that_ran_out(oom, make_spec):
    taught_by, record = oom(1, prediction=predicted(9 * GIB, 5 * GIB))
    larger = other(make_spec, 1, "none", predicted(9 * GIB, 6 * GIB))
    smaller_there = other(make_spec, 2, "core_attn", predicted(12 * GIB, 4 * GIB))
    ((ruled_out, why),) = lessons(taught_by, record, (taught_by, larger, smaller_there))
    assert ruled_out == larger
    assert re.search(r"\b6.00 GiB .*stage 1, .*0 mlp \(.* 5.00 GiB", why)


def test_a_lesson_closes_no_cell_that_ran_or_was_closed_before(oom, make_spec, tmp_path):
    taught_by, record = oom(1, prediction=predicted(9 * GIB, 5 * GIB))
    rows = [other(make_spec, n, "none", predicted(9 * GIB, 6 * GIB)) for n in (1, 2, 3)]
    plan = SimpleNamespace(planned=(taught_by, *rows), prune=True)
    batch = SweepBatch(tmp_path, this_host(), plan, {(0, 0): "oom", (1, 0): "ok"}, {rows[1].name})
    assert [name for name, _ in batch._learn(taught_by, record)] == [rows[2].name]
    assert batch._learn(taught_by, record.model_copy(update={"status": "ok"})) == ()


def test_an_oom_says_nothing_about_another_layout_or_an_unpredicted_cell(oom, make_spec):
    taught_by, record = oom(0, prediction=predicted(5 * GIB, 5 * GIB))
    batch = {"micro_batch_size": 2, "global_batch_size": 4, "seq_length": 32}
    others = (other(make_spec, 1, "none", predicted(9 * GIB, 9 * GIB), batch=batch), other(make_spec, 2, "none", None))
    assert not list(lessons(taught_by, record, others))


def test_the_memory_of_a_rank_is_the_less_of_limit_and_device(make_spec):
    assert make_spec().capacity_bytes == GPUS["h100"].usable_bytes < 80 * GIB
    assert make_spec(measure={"memory_limit_bytes": 7}).capacity_bytes == 7
    assert make_spec(gpu="cpu").capacity_bytes is None
    assert make_spec(gpu="cpu", measure={"memory_limit_bytes": 7}).capacity_bytes == 7
