"""Modules whose activations go to the host: megatron-core's own manager at full width, bytes from closed formulas."""

import pytest

from harness.experiment.experiment import OffloadSpec
from harness.predict.stages import Composer

pytestmark = pytest.mark.train

# bf16. Llama3-70B on one of four tensor-parallel ranks: Q, K, V and the output of attention.
TOKENS, TP = 4096, 4
QKV, ATTENDED, HIDDEN = TOKENS * (2048 + 2 * 256) * 2, TOKENS * 2048 * 2, TOKENS * 8192 // TP * 2
# Mixtral on two: every token goes to two experts, and one rank has one of eight; half of its FFN.
ROWS = TOKENS * 2
EXPERT_INPUT, GATED = ROWS * 4096 * 2, ROWS * 14336 * 2

LLAMA = {
    ("core_attn",): QKV,
    ("core_attn", "attn_proj"): QKV + ATTENDED,
    ("qkv_linear",): 2 * HIDDEN,  # the input and the norm's output
}
MIXTRAL = {
    ("none", "expert_fc1"): EXPERT_INPUT,
    ("none", "moe_act"): GATED,
    ("moe_act", "moe_act"): GATED,
    ("layernorm", "mlp_norm"): TOKENS // 2 * 4096 * 2,
}


def away(spec, *modules):
    return spec.model_copy(update={"offload": OffloadSpec(offload_modules=modules)})


@pytest.fixture(scope="module")
def composer(models):
    """A middle stage of four layers."""
    spec = models.mixtral("moe_act", pipeline_model_parallel_size=8)
    return Composer(away(spec, "moe_act", "expert_fc1", "core_attn"), "transformer_engine")


@pytest.fixture(scope="module")
def chunks(trace, models, composer):
    case, pairs = models.case, []
    for n in (1, 2, 3):
        pairs += [case(f"llama/none/{n}", models.llama(), num_layers=n)]
        pairs += [case(f"llama/{'+'.join(m)}/{n}", away(models.llama(), *m), num_layers=n) for m in LLAMA]
        for recompute, module in MIXTRAL:
            spec = models.mixtral(recompute)
            pairs += [case(f"mixtral/{recompute}/{n}", spec, "moe", num_layers=n)]
            pairs += [case(f"mixtral/{recompute}/{module}/{n}", away(spec, module), "moe", num_layers=n)]
    moe = composer.spec.recompute
    whole = composer.make.offloaded("moe", moe, 4).model_copy(update={"key": "four"})
    cases = {c.key: c for c in (*pairs, *composer.cases(), whole)}
    file = trace(cases.values(), "transformer_engine")
    assert not file.refused
    return file.chunks


def freed(chunks, name, plain):
    """Bytes that a layer in the middle saves less."""
    slopes = [chunks[f"{key}/3"].saved_bytes - chunks[f"{key}/2"].saved_bytes for key in (plain, name)]
    return slopes[0] - slopes[1]


@pytest.mark.parametrize("modules", LLAMA)
def test_a_layer_saves_less_by_the_bytes_of_its_offloaded_tensors(chunks, modules):
    assert freed(chunks, f"llama/{'+'.join(modules)}", "llama/none") == LLAMA[modules]


@pytest.mark.parametrize(("recompute", "module"), MIXTRAL)
def test_parts_of_experts_go_to_the_host_beside_recompute(chunks, recompute, module):
    assert freed(chunks, f"mixtral/{recompute}/{module}", f"mixtral/{recompute}") == MIXTRAL[recompute, module]


def test_the_last_layer_stays_and_the_first_one_s_input_belongs_to_the_stage_that_received_it(chunks):
    assert chunks["llama/core_attn/1"].saved_bytes == chunks["llama/none/1"].saved_bytes  # the last stays on the device
    two_layers, one_layer = (chunks[f"llama/qkv_linear/{n}"].saved_bytes for n in (2, 1))
    assert chunks["llama/none/1"].hidden_bytes == HIDDEN
    assert two_layers - one_layer == chunks["llama/none/2"].saved_bytes - chunks["llama/none/1"].saved_bytes - HIDDEN


def test_offloading_modules_repeats_no_work(chunks):
    plain, gone = (
        sum(op.flops for op in chunks[name].ops if op.phase == "backward")
        for name in ("llama/none/2", "llama/core_attn/2")
    )
    assert plain == gone > 0


def test_four_layers_composed_are_four_layers_traced(chunks, composer):
    sizes, traced = composer.chunk_costs(chunks)[1][0].sizes, chunks["four"]
    awaited = EXPERT_INPUT + GATED + TOKENS * (2048 + 2 * 512) * 2  # the last layer's, in a trace saved with the rest
    assert sizes.saved == traced.saved_bytes - awaited
    # in the trace it is the chunk's own last layer that stays; in a middle stage another micro-batch's, and these go
    returned = traced.reloaded_bytes // 4
    assert traced.forward_peak_bytes <= sizes.forward_peak <= traced.forward_peak_bytes + returned
    assert sizes.backward_peak == traced.backward_peak_bytes + returned
    # a tensor that two operations save returns twice
    assert 0 <= returned - awaited < 0.1 * awaited
