"""A trace without data against the same trace on real tensors, and against other meters of memory."""

import json
from pathlib import Path

import pytest

from harness.experiment.experiment import PeftSpec
from harness.records.trace import TraceCase, TraceRequest
from tests.engine.conftest import answer_of, run_forked

pytestmark = [pytest.mark.train, pytest.mark.slow]

# With --slow also what differs from these by the attention alone, and settings of several modules.
DENSE = ("none", "core_attn", "layernorm", "mlp", "mlp,core_attn", "core_attn,layernorm,mlp", "full:uniform:1",
         "full:uniform:2", "full:block:1")  # fmt: skip
MOE = ("none", "layernorm", "moe", "full:uniform:1")
DEEPSEEK = ("none", "core_attn", "mla_up_proj", "shared_experts", "moe", "mla_up_proj,layernorm,shared_experts",
            "full:uniform:1")  # fmt: skip
ON_EVERY_CHANGE = {
    *(f"dense/auto/{recompute}" for recompute in ("none", "core_attn", "layernorm", "mlp", "full:uniform:1", "full:block:1")),
    "dense/unfused/core_attn", "gpt3/layernorm", "grouped/none", "grouped/moe", "grouped/moe_act", "dense/auto/full:block:2/6",
    "dense/distributed", "moe/two ranks", "deepseek/auto/none", "deepseek/core_attn", "deepseek/mla_up_proj", "deepseek/moe",
    "sinks/none", "window/none", "delta/none", "delta/full:uniform:1", "gated/none",
}  # fmt: skip
FIELDS = ("saved_bytes", "forward_peak_bytes", "backward_peak_bytes", "persistent_bytes", "lingering_bytes",
          "parameter_bytes", "num_parameters_dense", "num_parameters_expert")  # fmt: skip


def case(key, spec, kind="dense", **options):
    return TraceCase(key=key, spec=spec, layer_kind=kind, num_layers=options.pop("num_layers", 2), **options)


def cases_of(shapes):
    tp = {"tensor_model_parallel_size": 2, "num_gpus": 2}
    for recompute in DENSE:
        for attention in ("auto", "unfused"):
            spec = shapes.experiment(shapes.DENSE, recompute, attention=attention, **tp)
            yield case(f"dense/{attention}/{recompute}", spec)
    for recompute in ("none", "layernorm", "full:uniform:1"):
        spec = shapes.experiment(shapes.GPT3, recompute, attention="unfused", dropout=0.1)
        yield case(f"gpt3/{recompute}", spec, pre=True, post=True)
    for recompute in MOE:
        yield case(f"moe/{recompute}", shapes.experiment(shapes.MIXTRAL, recompute), "moe")
    for recompute in (*MOE, "moe_act"):
        yield case(f"grouped/{recompute}", shapes.experiment(shapes.GROUPED, recompute, dtype="bf16"), "moe")
    for recompute in ("full:uniform:3", "full:block:2"):
        yield case(f"dense/auto/{recompute}/6", shapes.experiment(shapes.DENSE, recompute, **tp), num_layers=6)
    whole = shapes.experiment(shapes.DENSE, "full:uniform:1:distributed", **tp, sequence_parallel=False)
    yield case("dense/distributed", whole)
    spec = shapes.experiment(shapes.MIXTRAL, "moe", num_gpus=2, expert_model_parallel_size=2)
    yield case("moe/two ranks", spec, "moe")
    spec = shapes.experiment(shapes.GPT_OSS, num_gpus=2, attention="unfused", expert_model_parallel_size=2)
    yield case("sinks/none", spec, "moe", pre=True)
    yield case("window/none", spec, "window_moe")
    for recompute in ("none", "full:uniform:1", "layernorm,shared_experts"):
        yield case(f"delta/{recompute}", shapes.experiment(shapes.QWEN3_NEXT, recompute), "delta_moe")
    yield case("gated/none", shapes.experiment(shapes.QWEN3_NEXT), "moe", post=True, mtp=True)
    yield case("deepseek/auto/none", shapes.experiment(shapes.DEEPSEEK), "moe", post=True, mtp=True)
    for recompute in DEEPSEEK:
        spec = shapes.experiment(shapes.DEEPSEEK, recompute, attention="unfused")
        yield case(f"deepseek/{recompute}", spec, "moe", post=True, mtp=True)


@pytest.fixture(scope="module")
def both(trace, shapes, pytestconfig):
    every = pytestconfig.getoption("--slow")
    cases = [case for case in cases_of(shapes) if every or case.key in ON_EVERY_CHANGE]
    assert every or len(cases) == len(ON_EVERY_CHANGE)
    return {device: trace(cases, "local", device=device) for device in ("meta", "cpu")}


def on_the_host(key):
    """Bytes that live on the host and that real CPU tensors therefore include.

    A core_attn checkpoint saves the mask's kind, an int32; the losses beside the main one have a scale; the fused gate of
    each of 2 local experts in 2 layers saves its offset.
    """
    if key.startswith(("sinks", "window")):
        return {"saved_bytes": 16, "forward_peak_bytes": 16, "persistent_bytes": 4}
    num_layers = 3 if key.startswith("deepseek") else 2  # one more inside the multi-token prediction layer
    mask_kinds = 4 * num_layers if "core_attn" in key else 0
    scale = 0 if key.startswith(("dense", "gpt3")) else 4
    return {"saved_bytes": mask_kinds, "forward_peak_bytes": mask_kinds, "persistent_bytes": scale}


def test_nothing_is_refused(both):
    assert both["meta"].refused == both["cpu"].refused == {}


def test_bytes_without_data_equal_those_of_real_tensors(both):
    def fields(device):
        return {key: {field: getattr(chunk, field) for field in FIELDS} for key, chunk in both[device].chunks.items()}

    expected = fields("meta")
    for key, chunk in expected.items():
        for field, num_bytes in on_the_host(key).items():
            chunk[field] += num_bytes
    assert expected == fields("cpu")


def test_flops_and_traffic_without_data_equal_those_of_real_tensors(both):
    def work(file):
        return {key: (sum(op.flops for op in chunk.ops), sum(op.comm_bytes for op in chunk.ops))
                for key, chunk in file.chunks.items()}  # fmt: skip

    assert work(both["meta"]) == work(both["cpu"])


@pytest.mark.parametrize("peft", [None, PeftSpec(dim=8), PeftSpec(dim=8, target_modules=("linear_qkv",))])
def test_the_peak_is_that_of_the_allocator_to_the_byte_and_what_a_rank_s_meter_reads(tmp_path, shapes, peft):
    settings = ["none", "core_attn", "mlp", "full:uniform:1", "full:uniform:2", "full:block:2"]
    settings += ["layernorm"] * (peft is None)  # refused with adapters: rule LORA07
    cases = [case(r, shapes.experiment(shapes.DENSE, r, seq=256, peft=peft), num_layers=4) for r in settings]
    asked = tmp_path / "request.json"
    asked.write_text(TraceRequest(cases=tuple(cases), implementation="local", device="cpu").model_dump_json())
    found = json.loads(answer_of(Path(__file__).parent / "scripts" / "memory_oracles.py", asked, start=run_forked))
    # torch's autograd keeps the scale of each adapter as a number of 8 bytes that is no tensor of the program
    scales = 8 * 4 * len(peft.target_modules) if peft else 0
    beside = {key: row["allocator"] - row["tracer"] for key, row in found.items()}
    assert {key: row["watched"] for key, row in found.items()} == {key: row["tracer"] for key, row in found.items()}
    assert [*beside] == settings
    assert all(0 <= num_bytes <= scales for num_bytes in beside.values())
