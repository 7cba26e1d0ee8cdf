"""The worker as torchrun starts it: it leaves a record on every way out. One rank each, without torchrun."""

from functools import partial

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.records.collect import read_heartbeats
from harness.records.rank import RankRecord
from tests.engine.conftest import ROOT, run_forked, run_python, run_worker

MODEL = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 128}


def spec_of(**changes):
    fields = {
        "recipe": "tiny", "family": "test", "gpu": "cpu", "num_gpus": 1, "gpus_per_node": 8, "compute_dtype": "fp32",
        "model": MODEL, "batch": {"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 32},
        "kernels": {"transformer_impl": "local", "gradient_accumulation_fusion": False}, "measure": {"max_steps": 3},
    }  # fmt: skip
    return ExperimentSpec(**fields | changes)


def trained(folder, spec, start=run_forked, **environment):
    """Run one rank to its end; its record and its process."""
    done = run_worker(folder, spec, start, **environment)
    return RankRecord.model_validate_json((folder / "ranks" / "rank_000.json").read_text()), done


@pytest.fixture
def worker(tmp_path):
    return partial(trained, tmp_path)


@pytest.fixture(name="good", scope="module")
def _good(tmp_path_factory):
    """A rank that trains: its folder, its record, its process."""
    folder = tmp_path_factory.mktemp("good")
    return folder, *trained(folder, spec_of(recompute={"granularity": "selective", "modules": ("mlp",)}), run_python)


@pytest.mark.train
def test_a_good_rank_leaves_its_steps_its_memory_and_its_layers(good):
    _, record, done = good
    assert (done.returncode, record.finished, record.failure) == (0, True, None)
    assert [step.step for step in record.steps] == [0, 1, 2]
    assert record.recompute.modules == {"mlp": 2}
    assert record.memory.max_allocated_bytes > record.memory.static_bytes > record.memory.after_setup_bytes > 0
    assert record.counted_flops_per_step > 0
    assert record.versions["transformer-engine"] is None or record.device.kind == "cpu"
    assert set(record.seconds) >= {"import", "init_process_group", "build_model", "build_optimizer", "step", "probe"}


SGD = {"optimizer": "sgd", "use_distributed_optimizer": False}
SINKHORN = {"num_moe_experts": 4, "moe_router_topk": 1, "moe_ffn_hidden_size": 64, "moe_grouped_gemm": False,
            "moe_router_load_balancing_type": "sinkhorn"}  # fmt: skip


@pytest.mark.train
@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"compute_dtype": "fp16", "optimizer": {"loss_scale": 4096.0}}, 8 / (2 + 4 + 4)),
        ({"optimizer": SGD}, 4 / (4 + 4)),
        ({"optimizer": SGD | {"sgd_momentum": 0.0}}, 0),
        ({"model": {**MODEL, "gated_linear_unit": False, "activation_func": "squared_relu"}}, 8 / (4 + 4)),
        ({"model": {**MODEL, "moe": SINKHORN}}, 8 / (4 + 4)),
    ],
    ids=["fp16", "sgd", "sgd without momentum", "squared_relu", "sinkhorn"],
)
def test_other_optimizers_and_precisions_train(worker, changes, states):
    """``states``: bytes that steps leave beside those of weights, gradients and master weights, per parameter."""
    record, done = worker(spec_of(**changes))
    assert (done.returncode, record.failure) == (0, None)
    losses = [step.loss for step in record.steps]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
    before, after = record.memory.after_setup_bytes, record.memory.static_bytes
    assert (after - before) / before == pytest.approx(states, abs=0.01)


@pytest.mark.train
def test_it_says_where_it_is_as_it_goes_and_prints_into_its_own_log(good):
    folder, record, done = good
    assert (done.stdout, done.stderr) == ("", "")
    assert (folder / "logs" / "rank_000.log").is_file()
    beats, bad = read_heartbeats(folder / "ranks" / "rank_000.progress.jsonl")
    assert bad == 0
    phases = list(dict.fromkeys(beat.phase for beat in beats))
    expected = "start import init_process_group build_model build_optimizer step probe finish"
    assert phases == expected.split()
    reported = [(beat.step, beat.seconds, beat.loss) for beat in beats if beat.seconds is not None]
    assert reported == [(step.step, step.seconds, step.loss) for step in record.steps]


@pytest.mark.train
def test_a_model_that_cannot_be_built_leaves_a_record(worker, tmp_path):
    record, done = worker(spec_of(recompute={"granularity": "selective", "modules": ("moe_act",)}))
    assert done.returncode == 1
    assert (record.finished, record.failure.kind, record.failure.phase) == (False, "error", "build_model")
    assert "moe_act" in record.failure.message
    assert record.failure.message in (tmp_path / "logs" / "rank_000.log").read_text()
    assert "in transformer_config" in record.failure.traceback
    assert record.steps == ()


@pytest.mark.train
def test_a_process_group_that_does_not_form_leaves_a_record(worker):
    record, done = worker(spec_of(), GLOO_SOCKET_IFNAME="no_such_interface")
    assert done.returncode == 1
    assert (record.failure.kind, record.failure.phase) == ("error", "init_process_group")


def test_a_stack_that_cannot_be_imported_leaves_a_record(worker, tmp_path):
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    record, done = worker(spec_of(), run_python, PYTHONPATH=f"{broken.parent}:{ROOT}")
    assert done.returncode == 1
    assert (record.failure.kind, record.failure.phase) == ("error", "import")
    assert record.failure.message == "OSError: libcudart.so.12: cannot open shared object file"


@pytest.mark.train
def test_memory_that_runs_out_is_reported_with_what_was_asked_for(worker):
    """An embedding of 364 TiB: more than a process can address, whatever the machine promises."""
    huge = spec_of(model={**MODEL, "vocab_size": 10**7, "hidden_size": 10**7}, measure={"max_steps": 1})
    record, _ = worker(huge)
    assert (record.failure.kind, record.failure.phase) == ("oom", "build_model")
    assert record.failure.request_bytes == 10**7 * 10**7 * 4
