"""What a rank of a GPU job asks of torch, in which order: streams, graphs, process groups."""

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from harness.experiment.recompute import parse_recompute
from harness.units import parse_version
from tests.conftest import TINY, build_spec
from tests.engine.conftest import ALONE, RANKS, answer_of

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture(scope="module")
def calls_of(tmp_path_factory):
    """Calls of one rank that trains three steps with these graphs."""

    def run(graph):
        folder = tmp_path_factory.mktemp("recorded")
        spec = build_spec(
            gpu="h100", num_gpus=1, compute_dtype="bf16", model=TINY, recompute=parse_recompute("none"), parallelism={},
            batch={"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 32}, cuda_graph={**graph, "warmup_steps": 1},
            kernels={"transformer_impl": "local", "gradient_accumulation_fusion": False}, measure={"max_steps": 3},
        )  # fmt: skip
        (folder / "spec.json").write_text(spec.model_dump_json())
        answer_of(RANKS / "recorded_gpu.py", folder / "spec.json", folder, **ALONE)
        assert json.loads((folder / "ranks" / "rank_000.json").read_text())["finished"]
        return json.loads((folder / "calls.json").read_text())

    return run


@pytest.fixture(scope="module")
def whole_step(calls_of):
    return calls_of({"impl": "local", "scope": ("full_iteration",)})


@pytest.fixture(scope="module")
def layers(calls_of):
    return calls_of({"impl": "transformer_engine"})


def in_order(calls, *wanted):
    """Whether ``wanted`` is in ``calls`` in this order, with others between."""
    rest = iter(calls)
    return all(call in rest for call in wanted)


def ddp_stream(calls):
    return calls[calls.index("build DDP") - 1].removeprefix("enter ")


def test_process_groups_are_made_as_megatron_makes_them_without_a_device(whole_step):
    assert in_order(whole_step, "set_device 0", "init_process_group nccl ['timeout']", "barrier [0]", "build DDP")


def test_ddp_is_built_on_a_side_stream_in_order_with_the_current_one(whole_step):
    built, side = whole_step.index("build DDP"), ddp_stream(whole_step)
    waiting, current = whole_step[built - 2].split(" waits for ")
    assert waiting == side != current
    assert whole_step[built + 1 : built + 3] == [f"leave {side}", f"{current} waits for {side}"]


def test_transformer_engine_graphs_leave_the_default_stream_and_correct_the_amax_history_before_ddp_is_built(layers):
    assert in_order(layers, "make stream 1", "set stream 1", "init_process_group nccl ['timeout']", "build DDP")
    assert in_order(layers, "correct the amax history of 1", "build DDP")


def test_a_whole_step_is_captured_on_the_stream_that_ddp_was_built_on_where_megatron_core_has_one(whole_step):
    (capture,) = [call for call in whole_step if call.startswith("capture on ")]
    if parse_version(metadata.version("megatron-core")) < parse_version("0.18"):
        assert capture.endswith(" with ['capture_error_mode']")
        return
    assert capture == f"capture on {ddp_stream(whole_step)} with ['capture_error_mode', 'pool']"


def test_batches_are_copied_after_the_work_that_made_them(whole_step):
    began = whole_step.index("build DDP")
    entered = [at for at, call in enumerate(whole_step) if call.startswith("enter ") and at > began]
    assert len(entered) == 2 * 3  # micro-batches, steps
    assert all(" waits for " in whole_step[at - 1] for at in entered)


def test_graphs_are_gone_before_communication_ends(whole_step, layers):
    assert in_order(whole_step, "replay graph", "barrier [0]", "graph is gone", "synchronize", "destroy_process_group")
    assert in_order(
        layers, "create TE graphs", "barrier [0]", "delete TE graphs", "synchronize", "destroy_process_group"
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fsdp", "calls"), [(False, ["disable", "enable"]), (True, [])])
def test_te_graphs_are_captured_with_the_hooks_of_ddp_off_and_fsdp_has_none(monkeypatch, fsdp, calls):
    from harness.engine import training

    made, seen = [], []
    helper = SimpleNamespace(create_cudagraphs=lambda: made.append("graphs"), cuda_graph_set_manual_hooks=lambda: None)
    monkeypatch.setattr(training.cuda_graphs, "TECudaGraphHelper", lambda **_: helper)
    chunk = SimpleNamespace(
        disable_forward_pre_hook=lambda **_: seen.append("disable"),
        enable_forward_pre_hook=lambda: seen.append("enable"),
    )
    spec = build_spec(ddp={"overlap_param_gather": True, "use_megatron_fsdp": fsdp}, cuda_graph={"warmup_steps": 1})
    graphs = training.TeGraphs(SimpleNamespace(spec=spec, chunks=[chunk], config=None, optimizer=None))
    graphs.before_step(1)
    assert (made, seen) == (["graphs"], calls)
