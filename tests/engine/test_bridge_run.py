"""Megatron-Bridge's own loop in ranks, under torchrun: a scripted `megatron.bridge` around real megatron-core."""

import json
from functools import partial

import pytest
import yaml

from harness.experiment.experiment import BridgeEngine, ExperimentSpec
from harness.records.launch import BRIDGE_CONFIG
from harness.records.rank import RankRecord
from tests.engine.conftest import ROOT, run_forked, run_worker, torchrun
from tests.scripted_bridge import PACKAGE
from tests.scripted_bridge import container as config

pytestmark = [pytest.mark.train, pytest.mark.slow]
FULL = {"model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1}


def spec_of(*, overrides=None, version="0.3.1", measure=None, stages=1):
    cut = {"model.pipeline_model_parallel_size": stages}
    return ExperimentSpec(
        recipe="tiny", family="bridge", gpu="cpu", num_gpus=stages, gpus_per_node=8, compute_dtype="fp32",
        model={"num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64},
        parallelism={"pipeline_model_parallel_size": stages},
        batch={"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 16},
        kernels={"transformer_impl": "local"}, measure={"max_steps": 4} | (measure or {}),
        engine=BridgeEngine(version=version, forward_step="megatron.bridge.training.gpt_step:forward_step", rest="",
                            overrides=cut | (overrides or {})),
    )  # fmt: skip


def trained(folder, spec, container):
    """Run the ranks of ``spec`` to their end; return their records and the exit code. Two ranks need torchrun."""
    (folder / BRIDGE_CONFIG).write_text(yaml.safe_dump(container))
    start = run_forked if spec.num_gpus == 1 else partial(torchrun, spec.num_gpus)
    done = run_worker(folder, spec, start, PYTHONPATH=f"{PACKAGE}:{ROOT}")
    found = [json.loads((folder / "ranks" / f"rank_{rank:03d}.json").read_text()) for rank in range(spec.num_gpus)]
    return [RankRecord.model_validate(record, strict=False) for record in found], done.returncode


@pytest.fixture(name="good", scope="module")
def _good(tmp_path_factory):
    records, code = trained(tmp_path_factory.mktemp("good"), spec_of(stages=2, overrides=FULL), config())
    assert code == 0, records[0].failure
    return records


def test_every_rank_leaves_its_steps_and_the_last_stage_its_losses(good):
    assert [[step.step for step in record.steps] for record in good] == [[0, 1, 2, 3]] * 2
    assert all(record.finished and step.seconds > 0 for record in good for step in record.steps)
    assert all(step.loss is None for step in good[0].steps)
    losses = [step.loss for step in good[1].steps]
    assert losses[0] > losses[-1] > 0
    assert all(step.grad_norm > 0 for step in good[1].steps)


def test_every_rank_leaves_its_memory_its_recompute_its_place_and_its_bridge(good):
    for place, record in enumerate(good):
        memory = record.memory
        assert memory.max_allocated_bytes > memory.static_bytes > memory.after_setup_bytes > 0
        assert record.counted_flops_per_step > 0
        assert (record.coordinates.pp, record.versions["megatron-bridge"]) == (place, "0.3.1")
        assert (record.recompute.full_layers, record.config["recompute_granularity"]) == (1, "full")


def test_what_is_not_training_is_switched_off_and_said(good):
    (note,) = [note for note in good[0].notes if "switched off" in note]
    assert note.endswith("checkpoint.save, train.eval_iters, logger.tensorboard_dir")


def test_an_error_inside_a_step_names_the_step(tmp_path):
    container = config(fails_at_step=2, fails_with="CUDA out of memory. Tried to allocate 2.00 GiB.")
    records, code = trained(tmp_path, spec_of(), container)
    failure = records[0].failure
    assert code == 1
    assert (failure.kind, failure.phase, failure.step, failure.request_bytes) == ("oom", "train_step", 2, 2 * 2**30)
    assert failure.when == "in train_step of step 2"
    assert len(records[0].steps) == 2


def test_a_memory_limit_ends_the_rank_as_out_of_memory(tmp_path):
    records, _ = trained(tmp_path, spec_of(measure={"memory_limit_bytes": 300_000}), config())
    failed = [record.failure for record in records if record.failure and record.failure.kind == "oom"]
    assert failed
    assert "--memory_limit" in failed[0].message


def test_a_loop_that_bridge_leaves_early_is_no_success(tmp_path):
    records, code = trained(tmp_path, spec_of(), config(exit_interval=2))
    assert code == 1
    assert records[0].failure.message == "RuntimeError: Megatron-Bridge called sys.exit(0) after 2 of 4 steps"


def test_a_step_that_bridge_skipped_has_no_loss(tmp_path):
    records, code = trained(tmp_path, spec_of(), config(skips_step=0))
    assert code == 0
    assert [step.loss is None for step in records[0].steps] == [True, False, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "0.4.0"}, " 0.4.0, "),
        ({"overrides": {"model.no_such_setting": 1}}, "model.no_such_setting"),
    ],
)
def test_a_bridge_other_than_the_planned_one_trains_nothing(tmp_path, changes, message):
    records, code = trained(tmp_path, spec_of(**changes), config())
    assert code == 1
    assert message in records[0].failure.message and "0.3.1" in records[0].failure.message
    assert records[0].steps == ()
