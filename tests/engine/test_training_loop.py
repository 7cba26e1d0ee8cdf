"""What surrounds the training step: aligned collectives of the pipeline stages, and garbage collected by hand."""

import gc
import json
from types import SimpleNamespace

import pytest

from harness.experiment.experiment import DdpSpec, TrainSpec
from tests.engine import shapes
from tests.engine.conftest import RANKS, answer_of, run_forked

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def step_hooks():
    from harness.engine import training

    return training


def hooks(step_hooks, num_chunks, **ddp):
    """The functions that the schedule would call, for chunks that name their methods."""
    spec = shapes.experiment(shapes.DENSE).model_copy(update={"ddp": DdpSpec(**ddp)})
    chunks = [
        SimpleNamespace(no_sync=f"no_sync {i}", start_grad_sync=f"grads {i}", start_param_sync=f"params {i}")
        for i in range(num_chunks)
    ]
    config = SimpleNamespace(grad_sync_func=None, param_sync_func=None)
    step_hooks.set_gradient_hooks(spec, config, chunks)
    return config


def test_aligned_collectives_are_started_by_the_schedule_for_every_chunk(step_hooks):
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    config = hooks(step_hooks, 2, **overlap, align_grad_reduce=True, align_param_gather=True)
    assert (config.grad_sync_func, config.param_sync_func) == (["grads 0", "grads 1"], ["params 0", "params 1"])
    single = hooks(step_hooks, 1, **overlap, align_grad_reduce=True)
    assert (single.no_sync_func, single.grad_sync_func, single.param_sync_func) == ("no_sync 0", "grads 0", None)
    for part in (overlap, {"align_grad_reduce": True, "align_param_gather": True}):  # both are needed
        config = hooks(step_hooks, 2, **part)
        assert (config.grad_sync_func, config.param_sync_func) == (None, None)


def test_every_step_has_the_same_micro_batches_when_they_outnumber_the_pool():
    """A loss that moves while the weights do not would hide a run that does not train."""
    import torch

    from harness.engine.training import LARGEST_POOL, batches_of_chunks

    per_step = LARGEST_POOL + 1
    spec = shapes.experiment(shapes.DENSE, seq=4)
    spec = spec.model_copy(update={"batch": spec.batch.model_copy(update={"global_batch_size": per_step})})
    ends = SimpleNamespace(pre_process=True, post_process=True, mtp_process=False)
    (batches,) = batches_of_chunks(spec, torch.device("cpu"), [ends])
    first, second = ([next(batches)["tokens"] for _ in range(per_step)] for _step in range(2))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


@pytest.fixture
def collections():
    """The steps before which Python collected all generations; its own collector is given back afterwards."""
    seen = []

    def note(phase, info):
        if phase == "stop" and info["generation"] == 2:
            seen.append(True)

    gc.collect()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.enable()


def collected_before(step_hooks, train, seen, steps):
    found = []
    for index in range(steps):
        seen.clear()
        step_hooks.collect_garbage(train, index)
        if seen:
            found.append(index)
    return found


@pytest.mark.parametrize(("interval", "steps"), [(3, [0, 3, 6]), (0, [0])])
def test_garbage_is_collected_at_the_same_steps_and_never_between(step_hooks, collections, interval, steps):
    train = TrainSpec(manual_gc=True, manual_gc_interval=interval)
    assert collected_before(step_hooks, train, collections, 8) == steps
    assert not gc.isenabled()


def test_python_collects_by_itself_unless_asked_otherwise(step_hooks, collections):
    assert collected_before(step_hooks, TrainSpec(), collections, 8) == []
    assert gc.isenabled()


def test_weights_that_are_gathered_through_the_gradient_buffer_keep_training(tmp_path):
    """MXFP8 with overlap_param_gather: without the copy of the master weights every weight is zero after step 1."""
    out = tmp_path / "steps.json"
    answer_of(RANKS / "mxfp8_gather.py", out, start=run_forked)
    steps = json.loads(out.read_text())
    assert [step["zero"] for step in steps] == [0, 0, 0, 0]
    losses = [step["loss"] for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 4
