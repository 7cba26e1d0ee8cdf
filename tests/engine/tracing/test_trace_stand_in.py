"""Full-width layers under the stand-in for transformer-engine: bytes from closed formulas, and what each setting frees."""

from importlib.metadata import version

import pytest

from harness.experiment.experiment import OffloadSpec

pytestmark = pytest.mark.train

# Llama3-70B on one of four tensor-parallel ranks: tokens, hidden size, widths of Q, K or V, and FFN per rank.
TOKENS, HIDDEN, QUERY, KEY, FFN, TP = 4096, 8192, 2048, 256, 7168, 4
MB = 1e6
# What megatron-core leaves of an output that was sent to the next stage: one element.
SENT = 2

LLAMA = ("none", "layernorm", "core_attn", "mlp", "mlp,core_attn", "full:uniform:1")
MIXTRAL = ("none", "core_attn", "layernorm", "moe_act", "moe", "full:uniform:1")
DEEPSEEK = ("none", "core_attn", "layernorm", "mla_up_proj", "moe_act", "shared_experts", "moe",
            "mla_up_proj,moe_act,layernorm", "full:uniform:1")  # fmt: skip
PRECISIONS = (("bf16", "h100"), ("fp8_cs", "h100"), ("fp8_ds", "h100"), ("fp8_sc", "h100"), ("fp8_cs", "b200"),
              ("fp8_mx", "b200"), ("nvfp4", "b200"))  # fmt: skip


def cases_of(models):
    case = models.case
    for recompute in LLAMA:
        yield case(f"llama/{recompute}", models.llama(recompute))
    for num_layers in (2, 3):
        for recompute in ("none", "core_attn", "full:uniform:1"):
            yield case(f"llama/{recompute}/{num_layers}", models.llama(recompute), num_layers=num_layers)
    for dtype, gpu in PRECISIONS:
        yield case(f"{dtype}/{gpu}", models.llama(dtype=dtype, gpu=gpu))
    yield case("fp8_cs/mlp", models.llama("mlp", dtype="fp8_cs"))
    yield case("fp8_cs/full", models.llama("full:uniform:1", dtype="fp8_cs"))
    yield case("block", models.llama("full:block:1"), num_layers=2)
    yield case("uniform:2", models.llama("full:uniform:2"), num_layers=2)
    yield case("distributed", models.llama("full:uniform:1:distributed", sp=False))
    yield case("cp", models.llama(seq=2 * TOKENS, context_parallel_size=2))
    for recompute in ("none", "core_attn"):
        yield case(f"a2a/{recompute}", models.llama_by_heads(recompute, seq=2 * TOKENS))
    for num_layers in (1, 2):
        away = {"offload": OffloadSpec(cpu_offloading_num_layers=1)}
        yield case(f"offloaded/{num_layers}", models.llama().model_copy(update=away), num_layers=num_layers)
    yield case("embedding", models.llama(), num_layers=0, pre=True)
    yield case("loss", models.llama(), num_layers=0, post=True)
    native = {"cross_entropy_fusion_impl": "native"}
    yield case("loss/native", models.llama(changes=native), num_layers=0, post=True)
    yield case("flash", models.llama(mbs=2, changes={"attention_backend": "flash"}))
    yield case("fused", models.llama(mbs=2))
    for recompute in MIXTRAL:
        yield case(f"mixtral/{recompute}", models.mixtral(recompute), "moe")
    yield case("mixtral/allgather", models.mixtral(changes={"moe_token_dispatcher_type": "allgather"}), "moe")
    for recompute in DEEPSEEK:
        yield case(f"deepseek/{recompute}", models.deepseek(recompute), "moe")
    for fused in (False, True):
        yield case(
            f"deepseek/rope/{fused}", models.deepseek(mla={"rope_type": "yarn", "apply_rope_fusion": fused}), "moe"
        )
    yield from attention_variants(models)
    yield case("deepseek/mtp", models.deepseek(), "moe", post=True, mtp=True)
    yield case("deepseek/loss", models.deepseek(), "moe", post=True)


def attention_variants(models):
    yield models.case("window/none", models.gpt_oss(), "window_moe")
    yield models.case("sinks/none", models.gpt_oss(), "moe")
    for num_layers in (1, 2, 3):
        yield models.case(f"delta/none/{num_layers}", models.qwen3_next(), "delta_moe", num_layers=num_layers)
    yield models.case("gated/none", models.qwen3_next(), "moe")
    yield models.case("unfused", models.llama(changes={"attention_backend": "unfused"}))


@pytest.fixture(scope="module")
def file(trace, models):
    return trace(cases_of(models), "transformer_engine")


@pytest.fixture(scope="module")
def chunks(file):
    assert file.refused == {}
    return file.chunks


def saved_mb(chunks, key):
    return round(chunks[key].saved_bytes / MB, 2)


def freed_mb(chunks, model, settings):
    none = chunks[f"{model}/none"].saved_bytes
    return {s: round((none - chunks[f"{model}/{s}"].saved_bytes) / MB, 1) for s in settings if s != "none"}


def flops(chunk, phase, kind="gemm"):
    return sum(op.flops for op in chunk.ops if op.phase == phase and op.kind == kind)


def test_the_stand_in_names_the_release_it_stands_for(file):
    assert (file.stand_in, file.megatron_core) == ("2.11.0", version("megatron-core"))


def layer_bytes(norm_output, activation):
    """Bytes one dense layer saves, by the width in bytes of the two norm outputs and of the second GEMM's input."""
    rows = TOKENS // TP
    residuals = 2 * 2 * rows * HIDDEN
    norm_outputs = 2 * norm_output * rows * HIDDEN
    attention = 2 * TOKENS * (QUERY + 2 * KEY + QUERY) + 4 * TOKENS * 16 + 16  # Q, K, V, output; a statistic per row
    mlp = TOKENS * (2 * 2 * FFN + activation * FFN)
    return residuals + norm_outputs + attention + mlp + 2 * 4 * rows


@pytest.mark.parametrize(("precision", "width", "more"), [("bf16/h100", 2, 0), ("fp8_cs/h100", 1, 3 * 4)])
def test_a_layer_saves_what_its_tensors_add_up_to(chunks, precision, width, more):
    """FP8: inputs of GEMMs in one byte, the attention output once, and three scales."""
    assert chunks[precision].saved_bytes == layer_bytes(norm_output=width, activation=width) + more + SENT


def test_settings_of_a_dense_layer_leave_what_they_should(chunks):
    assert {s: saved_mb(chunks, f"llama/{s}") for s in LLAMA} == {
        "none": 281.29, "layernorm": 281.29, "core_attn": 299.90, "mlp": 88.35, "mlp,core_attn": 106.96,
        "full:uniform:1": 16.78,
    }  # fmt: skip


def test_core_attn_keeps_the_whole_qkv_projection_alive_next_to_rotated_copies(chunks):
    # V is a view of it; without recompute transformer-engine copies V and lets the projection go
    projection, value, statistics = 2 * TOKENS * (QUERY + 2 * KEY), 2 * TOKENS * KEY, 4 * TOKENS * 16 + 16
    grown = chunks["llama/core_attn"].saved_bytes - chunks["llama/none"].saved_bytes
    assert grown == projection - value - statistics


def test_settings_repeat_the_share_of_flops_that_they_cover(chunks):
    def share(key):
        chunk = chunks[key]
        work = {phase: sum(op.flops for op in chunk.ops if op.phase == phase)
                for phase in ("forward", "backward", "recompute")}  # fmt: skip
        return round(100 * work["recompute"] / (work["forward"] + work["backward"]), 2)

    assert {s: share(f"llama/{s}") for s in LLAMA} == {
        "none": 0.0, "layernorm": 0.0, "core_attn": 1.25, "mlp": 26.25, "mlp,core_attn": 27.5, "full:uniform:1": 33.12,
    }  # fmt: skip


def test_layernorm_is_inert_on_a_dense_layer(chunks):
    assert chunks["llama/layernorm"].inert_modules == ("layernorm",)
    assert chunks["llama/layernorm"].model_copy(update={"inert_modules": ()}) == chunks["llama/none"]


def test_flops_are_two_per_token_and_weight_and_those_of_the_causal_half_of_attention(chunks):
    """Backward: twice the work of GEMMs, and five products of attention for two."""
    chunk = chunks["llama/none"]
    forward = 2 * TOKENS * (chunk.num_parameters_dense - 2 * HIDDEN)  # without the weights of norms
    assert (flops(chunk, "forward"), flops(chunk, "backward")) == (forward, 2 * forward)
    forward = 2 * TOKENS * TOKENS * 2 * QUERY // 2
    assert (flops(chunk, "forward", "attention"), flops(chunk, "backward", "attention")) == (forward, forward * 5 // 2)


def test_tensor_parallel_traffic_is_three_quarters_of_each_gathered_buffer(chunks):
    sent = {}
    for op in chunks["llama/none"].ops:
        if op.kind == "comm":
            key = (op.phase, op.comm_group, op.overlapped)
            sent[key] = sent.get(key, 0) + op.comm_bytes
    buffer = 2 * TOKENS * HIDDEN * 3 // 4
    # forward: gather and scatter around attention and MLP; backward: gradients gathered, norm outputs gathered again and
    # input gradients scattered, the last two beside GEMMs
    assert sent == {("forward", "tp", False): 4 * buffer, ("backward", "tp", False): 2 * buffer,
                    ("backward", "tp", True): 4 * buffer}  # fmt: skip


@pytest.mark.parametrize("recompute", ["none", "core_attn", "full:uniform:1"])
def test_bytes_are_linear_in_layers_and_peaks_above_them_constant(chunks, recompute):
    one_layer, two_layers, three_layers = (chunks[f"llama/{recompute}{suffix}"] for suffix in ("", "/2", "/3"))
    assert (
        three_layers.saved_bytes - two_layers.saved_bytes
        == two_layers.saved_bytes - one_layer.saved_bytes
        == one_layer.saved_bytes - SENT
    )
    assert one_layer.backward_peak_bytes == two_layers.backward_peak_bytes == three_layers.backward_peak_bytes
    assert one_layer.persistent_bytes == two_layers.persistent_bytes == three_layers.persistent_bytes
    assert {c.forward_peak_bytes - c.saved_bytes for c in (one_layer, two_layers, three_layers)} == {
        one_layer.forward_peak_bytes - one_layer.saved_bytes
    }


def test_whole_layers_keep_what_their_method_says(chunks):
    recomputed, kept = chunks["llama/full:uniform:1"].saved_bytes, chunks["llama/none"].saved_bytes
    assert chunks["block"].saved_bytes == recomputed + kept - SENT  # a layer of each kind
    assert chunks["uniform:2"].saved_bytes == recomputed  # one input for two layers, paid for in backward
    assert chunks["uniform:2"].backward_peak_bytes > chunks["llama/full:uniform:1/2"].backward_peak_bytes
    assert chunks["distributed"].saved_bytes == 2 * TOKENS * HIDDEN // TP + SENT


def test_context_parallelism_halves_the_sequence(chunks):
    one_more_generator_state = 16
    assert chunks["cp"].saved_bytes == chunks["llama/none"].saved_bytes + one_more_generator_state


def test_all_to_all_keeps_the_output_as_computed_and_as_sent_back(chunks):
    assert chunks["a2a/none"].saved_bytes == chunks["llama/none"].saved_bytes + 2 * TOKENS * QUERY


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("core_attn", 3)])
def test_all_to_all_sends_queries_keys_values_and_output_in_every_pass_and_attention_waits(chunks, recompute, passes):
    ops = [op for op in chunks[f"a2a/{recompute}"].ops if op.comm_group == "cp"]
    assert len({op.phase for op in ops}) == passes and not any(op.overlapped for op in ops)
    halves = 2 * TOKENS * QUERY + 2 * TOKENS * KEY  # two tensors of each width, of which a rank keeps half
    assert sum(op.comm_bytes for op in ops) == passes * halves


def test_flash_attention_copies_its_output_where_the_batch_is_not_one(chunks):
    assert chunks["flash"].saved_bytes - chunks["fused"].saved_bytes == 2 * 2 * TOKENS * QUERY


def test_the_softmax_of_unfused_attention_writes_its_gradient_over_the_incoming_one(chunks):
    """transformer-engine 2.11 over torch's allocator: 2.28 GB above what the forward pass left, of scores of 2.15 GB."""
    scores = 2 * TOKENS**2 * QUERY // 128
    assert chunks["unfused"].backward_peak_bytes < scores  # the MLP's tensors are gone by then; two would be 881 MB


def test_parameters_are_stored_as_the_precision_says(chunks):
    parameters = chunks["bf16/h100"].num_parameters_dense
    per_parameter = {f"{d}/{g}": round(chunks[f"{d}/{g}"].parameter_bytes / parameters, 3) for d, g in PRECISIONS}
    # one byte and its transpose on Hopper, one byte on Blackwell, bf16 with two copies, and block scales
    assert per_parameter == {"bf16/h100": 2.0, "fp8_cs/h100": 2.0, "fp8_ds/h100": 2.0, "fp8_sc/h100": 4.0,
                             "fp8_cs/b200": 1.0, "fp8_mx/b200": 2.062, "nvfp4/b200": 1.125}  # fmt: skip


def test_quantised_layers_keep_save_and_repeat_what_their_precision_says(chunks):
    one_byte_copy = TOKENS * QUERY + 4  # of the attention output, under delayed scaling
    assert chunks["fp8_ds/h100"].saved_bytes == chunks["fp8_cs/h100"].saved_bytes + one_byte_copy
    bound_by = {key: {op.dtype for op in chunks[key].ops if op.kind == "gemm"} for key in ("fp8_sc/h100", "nvfp4/b200")}
    assert bound_by == {"fp8_sc/h100": {"fp8"}, "nvfp4/b200": {"fp4"}}
    assert flops(chunks["fp8_cs/full"], "recompute") == flops(chunks["llama/full:uniform:1"], "recompute")
    assert saved_mb(chunks, "fp8_cs/mlp") == 79.96


def test_the_loss_keeps_its_logits_once_and_the_embedding_only_tokens(chunks):
    logits = TOKENS * 128256 // TP
    native, te = chunks["loss/native"], chunks["loss"]
    assert te.saved_bytes == pytest.approx(2 * logits + 2 * 2 * TOKENS * HIDDEN // TP, rel=0.01)
    assert chunks["embedding"].saved_bytes == pytest.approx(8 * TOKENS, rel=0.2)
    # megatron-core's own fused loss keeps probabilities in fp32 and scatters into a copy
    assert native.saved_bytes - te.saved_bytes == pytest.approx((4 - 2) * logits, rel=0.01)
    assert native.backward_peak_bytes == pytest.approx((4 + 2) * logits, rel=0.05)


def test_settings_of_a_mixtral_layer_free_what_they_should(chunks):
    assert freed_mb(chunks, "mixtral", MIXTRAL) == pytest.approx({
        "core_attn": -20.7, "layernorm": 16.8, "moe_act": 117.4, "moe": 419.6, "full:uniform:1": 512.2,
    }, abs=0.1)  # fmt: skip


def test_settings_of_a_deepseek_layer_free_what_they_should(chunks):
    assert freed_mb(chunks, "deepseek", DEEPSEEK) == {
        "core_attn": 1.0, "layernorm": 58.7, "mla_up_proj": 278.2, "moe_act": 67.1, "shared_experts": 25.2, "moe": 466.0,
        "mla_up_proj,moe_act,layernorm": 404.0, "full:uniform:1": 909.6,
    }  # fmt: skip


def test_the_fused_rope_of_latent_attention_keeps_two_tables_and_moves_fewer_bytes(chunks):
    """Apart, queries and keys each save the cosines and sines of the layer's 64 rotated channels."""
    fused, apart = (chunks[f"deepseek/rope/{fused}"] for fused in (True, False))
    table = 2 * TOKENS * 64
    assert apart.saved_bytes - fused.saved_bytes == 4 * table
    assert fused.persistent_bytes - apart.persistent_bytes == 2 * table
    moved, moved_apart = (sum(op.bytes for op in chunk.ops if op.kind == "elementwise") for chunk in (fused, apart))
    assert moved < 0.95 * moved_apart


def test_both_dispatchers_save_nearly_the_same_and_keep_their_input_and_its_gradient(chunks):
    """Until the next forward pass."""
    alltoall, allgather = chunks["mixtral/none"], chunks["mixtral/allgather"]
    assert alltoall.lingering_bytes == pytest.approx(2 * alltoall.hidden_bytes, rel=0.01)
    assert chunks["llama/none"].lingering_bytes == 0
    assert allgather.saved_bytes == pytest.approx(alltoall.saved_bytes, rel=0.001)
    assert sum(op.comm_bytes for op in allgather.ops) > sum(op.comm_bytes for op in alltoall.ops)
    assert chunks["deepseek/none"].num_parameters_expert == 256 // 64 * 3 * 7168 * 2048


def test_multi_token_prediction_adds_a_layer_and_a_second_loss(chunks):
    extra = chunks["deepseek/mtp"].saved_bytes - chunks["deepseek/loss"].saved_bytes
    logits = 2 * TOKENS * 129280 // 2
    assert extra > chunks["deepseek/none"].saved_bytes + logits


def test_all_that_an_offloaded_layer_saves_goes_to_the_host_and_comes_back_whole(chunks):
    away, plain = chunks["offloaded/1"], chunks["llama/none"]
    assert away.saved_bytes == plain.hidden_bytes + SENT  # the next stage's own copy of it, not the layer's
    assert chunks["offloaded/2"].saved_bytes == away.saved_bytes
    assert away.forward_peak_bytes == plain.forward_peak_bytes
    assert away.backward_peak_bytes - plain.backward_peak_bytes > plain.saved_bytes
    assert flops(away, "backward") == flops(plain, "backward")


def test_a_window_leaves_bytes_and_takes_away_attention(chunks):
    """gpt-oss: 64 heads of 64 channels, 4096 tokens, a window of 128."""
    window, full = chunks["window/none"], chunks["sinks/none"]
    assert flops(full, "forward", "attention") == 2 * TOKENS * TOKENS * 64 * 64
    pairs = 2 * 128 * TOKENS - 128 * 127
    assert flops(window, "forward", "attention") == pytest.approx(2 * pairs * 64 * 64, abs=1)
    assert (window.saved_bytes, window.parameter_bytes) == (full.saved_bytes, full.parameter_bytes)


def test_sinks_are_one_parameter_per_head_and_biases_count(chunks):
    """Q, K and V with biases 5120, output 2880, router 128; 16 experts with 5760 and 2880."""
    chunk = chunks["sinks/none"]
    matrices = 2880 * (4096 + 2 * 512) + 4096 * 2880 + 2880 * 128
    assert chunk.num_parameters_dense == matrices + 2 * 2880 + (4096 + 2 * 512) + 2880 + 128 + 64
    assert chunk.num_parameters_expert == 16 * (2880 * 3 * 2880 + 2 * 2880 + 2880)


def test_a_delta_net_counts_its_recurrence_and_no_scores(chunks):
    """Qwen3-Next: 32 value heads; three products of 128 x 128 and chunks of 64 tokens."""
    chunk = chunks["delta/none/1"]
    recurrence = TOKENS * 32 * (6 * 128 * 128 + 64 * (6 * 128 + 4 * 128))
    assert flops(chunk, "forward", "attention") == recurrence
    assert flops(chunk, "backward", "attention") == 3 * recurrence
    one, two, three = (chunks[f"delta/none/{n}"] for n in (1, 2, 3))
    assert three.saved_bytes - two.saved_bytes == two.saved_bytes - one.saved_bytes
    assert two.backward_peak_bytes == one.backward_peak_bytes
    # in: q, k 2048, v, gate 4096, beta, alpha 32 channels; a convolution of 4; out 4096
    projections = 2048 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4096 * 2048
    rest = 4 * (2 * 2048 + 4096) + 2 * 32 + 128
    gated = 2048 * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * 2048 + 2 * 256
    assert chunk.num_parameters_dense - chunks["gated/none"].num_parameters_dense == projections + rest - gated
