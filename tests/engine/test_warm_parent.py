"""Ranks forked from a warm parent train exactly as those of a fresh torchrun, and have nothing left to import."""

import json
import os
import sys
from dataclasses import replace

import pytest

from harness.launch.environment import Host
from harness.launch.plan import LaunchRequest, build_plan
from harness.launch.replay import execute
from harness.launch.warm import WarmParents
from harness.records.collect import AgentRecord
from harness.records.rank import RankRecord
from tests.engine import shapes
from tests.engine.conftest import ROOT, answer_of

DENSE, GROUPED = shapes.DENSE, shapes.GROUPED

FORK_SAFETY = """
import threading, time, torch
from harness.engine.process import why_not_forkable
print(why_not_forkable())
torch.cuda._initialized = True
print(why_not_forkable())
torch.cuda._initialized = False
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
print(why_not_forkable())
"""
HAND_OVER = (
    "from torch.distributed.elastic.multiprocessing import api; {}; "
    "from harness.engine.prepared_ranks import why_not_to_be_handed_over; print(why_not_to_be_handed_over())"
)
COLLECTIONS = (
    "import gc; before = gc.get_stats()[2]['collections']; {}; print(gc.get_stats()[2]['collections'] - before)"
)


@pytest.fixture(scope="module")
def parents():
    """Kept over the tests, as a sweep keeps them over its cells."""
    with WarmParents() as kept:
        yield kept


@pytest.fixture
def trained(tmp_path):
    """Launch a spec in a folder of its own; the records of its ranks, and the folder."""

    def run(spec, parents, name, worker=None, status="ok"):
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "spec.json").write_text(spec.model_dump_json())
        host = Host(sys.executable, hostname="here", num_cores=2, shell=os.environ | {"PYTHONPATH": str(ROOT)})
        plan = build_plan(LaunchRequest(spec, run_dir, host))
        if worker:
            plan = replace(plan, worker=(str(worker), *plan.worker[2:]))
        outcome = execute(plan, on_progress=lambda _: None, parents=parents)
        assert (outcome.status, outcome.warm) == (status, parents is not None), plan.launcher_log.read_text()
        records = sorted((run_dir / "ranks").glob("rank_*.json"))
        return [RankRecord.model_validate_json(path.read_text()) for path in records], run_dir

    return run


def shape(model, recompute):
    spec = shapes.experiment(model, recompute, num_gpus=2, dtype="bf16", dropout=0.1, pipeline_model_parallel_size=2)
    return spec.model_copy(update={"measure": spec.measure.model_copy(update={"max_steps": 4})})


def numbers(records):
    """All that a step computes, bit for bit, and the memory that torch counts."""
    return [
        ([(step.loss, step.grad_norm) for step in r.steps], r.memory.max_allocated_bytes, r.memory.static_bytes,
         r.counted_flops_per_step)
        for r in records
    ]  # fmt: skip


@pytest.mark.train
@pytest.mark.slow
def test_a_warm_launch_trains_what_a_fresh_one_trains_bit_for_bit(trained, parents):
    """With dropout, so that the random generators take part; after another model that left its state behind."""
    dense, other = shape(DENSE, "core_attn,mlp"), shape(GROUPED, "moe_act")
    fresh, _ = trained(dense, None, "fresh")
    first, _ = trained(dense, parents, "first")
    trained(other, parents, "between")
    again, _ = trained(dense, parents, "again")
    assert numbers(first) == numbers(fresh)
    assert numbers(again) == numbers(fresh)
    assert [loss for loss, _ in numbers(fresh)[1][0]] != [None] * 4
    for fact in ("versions", "config", "recompute"):
        assert getattr(fresh[0], fact) == getattr(again[0], fact)


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_runs_out_of_memory_leaves_what_a_fresh_one_leaves(trained, parents):
    small = shape(DENSE, "none")
    small = small.model_copy(update={"measure": small.measure.model_copy(update={"memory_limit_bytes": 3_000_000})})

    def left(kept, name):
        ranks, run_dir = trained(small, kept, name, status="failed")
        agent = AgentRecord.model_validate_json((run_dir / "ranks" / "launch.json").read_text())
        oom = next(rank for rank in ranks if rank.failure.kind == "oom")
        assert oom.failure.message in (run_dir / "logs" / f"rank_{oom.rank:03d}.log").read_text()
        # the other rank lost its peer, or was ended before it noticed
        own = next((end.exit_code, end.signal, end.message) for end in agent.failures if end.rank == oom.rank)
        return oom.rank, oom.failure.message, oom.failure.phase, oom.failure.step, oom.failure.request_bytes, own

    assert left(parents, "warm") == left(None, "fresh")


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(DENSE, marks=pytest.mark.long, id="dense"), pytest.param(GROUPED, id="moe")]
)
def test_a_rank_imports_nothing_that_its_parent_could_have_imported_once(trained, parents, model, tmp_path):
    script = tmp_path / "listing.py"
    script.write_text(
        "import json, os, pathlib, runpy, sys\n"
        "before, end = set(sys.modules), os._exit\n"
        "def listed(code):\n"
        "    folder = pathlib.Path(sys.argv[-1]) / 'ranks'\n"
        "    (folder / f\"imported_{os.environ['RANK']}\").write_text(json.dumps(sorted(set(sys.modules) - before)))\n"
        "    end(code)\n"
        "os._exit = listed\n"
        "runpy.run_module('harness.engine.worker', run_name='__main__', alter_sys=True)\n"
    )
    _, run_dir = trained(shape(model, "none"), parents, "run", worker=script)
    for rank in (0, 1):
        imported = json.loads((run_dir / "ranks" / f"imported_{rank}").read_text())
        small = "torch.profiler._"  # private, and imported by a function
        assert [name for name in imported if not name.startswith(small)] == []
        assert "RuntimeWarning" not in (run_dir / "logs" / f"rank_{rank:03d}.log").read_text()
        assert "RuntimeWarning" not in (run_dir / "logs" / "launcher.log").read_text()


@pytest.mark.train
def test_a_process_with_a_thread_or_with_cuda_is_not_forked():
    nothing, cuda, thread = answer_of("-c", FORK_SAFETY).splitlines()
    assert nothing == ""
    assert "CUDA" in cuda
    assert thread.startswith("other threads ")


@pytest.mark.train
@pytest.mark.long
def test_a_torch_that_starts_ranks_in_another_way_is_not_handed_any():
    missing = refusal("del api.get_subprocess_handler", HAND_OVER)
    assert missing == refusal("api.get_subprocess_handler = lambda entrypoint, cgroup: None", HAND_OVER) != ""
    assert refusal("pass", HAND_OVER) == ""


@pytest.mark.train
@pytest.mark.long
def test_garbage_of_imports_is_collected_before_a_step_is_measured():
    warm = "from harness.engine.warm_parent import import_everything; import_everything('cpu')"
    spec = shape(DENSE, "none").model_dump_json()
    fresh = "from harness.engine.worker import ExperimentSpec, _training_function; "
    fresh += f"_training_function(ExperimentSpec.model_validate_json({spec!r}), None)"
    assert (refusal(warm, COLLECTIONS), refusal(fresh, COLLECTIONS)) == ("1", "1")


def refusal(before, code):
    return answer_of("-c", code.format(before)).strip()
