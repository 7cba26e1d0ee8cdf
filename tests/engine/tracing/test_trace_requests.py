"""What the tracer refuses, what it assumes aloud, and that cases do not disturb each other."""

import pytest

from harness.experiment.experiment import OffloadSpec

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def refused(trace, models):
    gpt3 = models.LLAMA3_70B.model_copy(update={"add_bias_linear": True})
    cases = [
        models.case("bias", models.experiment(gpt3, "mlp")),
        models.case("flex", models.mixtral(changes={"moe_token_dispatcher_type": "flex"}), "moe"),
        models.case("modules", models.llama("full:uniform:1").model_copy(update={"offload": OffloadSpec(offload_modules=("qkv_linear",))})),
        models.case("heads", models.llama(tensor_model_parallel_size=3, seq=4095)),
        models.case("fine", models.llama()),
    ]  # fmt: skip
    return trace(cases, "transformer_engine")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("bias", "recurses"),
        ("flex", " flex "),
        ("modules", "offload_modules"),
        ("heads", "num_attention_heads (64)"),
    ],
)
def test_a_case_that_cannot_be_traced_is_refused_with_the_reason(refused, key, reason):
    assert reason in refused.refused[key]
    assert set(refused.chunks) == {"fine"}


def test_context_parallelism_is_refused_without_transformer_engine(trace, models):
    answer = trace([models.case("cp", models.llama(context_parallel_size=2))], "local")
    assert answer.refused.keys() == {"cp"} and "transformer-engine" in answer.refused["cp"]


def test_multi_token_prediction_sends_its_shifted_tokens_around_the_ring_of_context_parallelism(trace, models):
    spec = models.deepseek(context_parallel_size=2)
    answer = trace([
        models.case("mtp", spec, "moe", post=True, mtp=True), models.case("loss", spec, "moe", post=True),
    ], "transformer_engine")  # fmt: skip
    sent = {
        key: sum(op.comm_bytes for op in chunk.ops if op.comm_group == "cp" and op.comm_bytes <= 8 * op.count)
        for key, chunk in answer.chunks.items()
    }

    assert answer.refused == {}
    assert sent["loss"] == 0
    # The first rank sends one element of every tensor that is rolled: token, position and label (int64), loss mask (fp32).
    assert sent["mtp"] == 3 * 8 + 4


@pytest.mark.slow
@pytest.mark.long
def test_the_order_of_cases_changes_nothing(trace, models):
    cases = [
        models.case("llama", models.llama("core_attn")),
        models.case("mixtral", models.mixtral("moe"), "moe"),
        models.case("fp8", models.llama(dtype="fp8_sc")),
        models.case("unfused", models.llama(changes={"attention_backend": "unfused"})),
    ]
    assert trace(cases, "transformer_engine").chunks == trace(cases[::-1], "transformer_engine").chunks


def test_imbalance_scales_what_the_experts_receive(trace, models):
    cases = [models.case("mixtral", models.mixtral(), "moe")]
    even, skewed = (trace(cases, "transformer_engine", imbalance=i).chunks["mixtral"] for i in (1.0, 1.5))
    # per token and expert layer: input, both halves of the first GEMM's output, activation, output, cut by TP where wide
    tokens, hidden, ffn = 4096 * 2, 4096, 14336 // 2
    grown = 0.5 * 2 * tokens * (2 * hidden + 3 * ffn)
    assert skewed.saved_bytes - even.saved_bytes == pytest.approx(grown, rel=0.35)
    assert even.num_parameters_expert == skewed.num_parameters_expert


def test_graphs_are_traced_eagerly_and_say_so(trace, models):
    spec = models.llama()
    spec = spec.model_copy(
        update={"cuda_graph": spec.cuda_graph.model_copy(update={"impl": "transformer_engine", "scope": ("mlp",)})}
    )
    chunk = trace([models.case("graphs", spec)], "transformer_engine").chunks["graphs"]
    assert any("CUDA graphs" in note for note in chunk.notes)


def test_the_two_parts_of_a_layer_leave_alive_what_the_layer_saves(trace, models):
    none, mlp = (models.case(text, models.llama(text)) for text in ("none", "mlp"))
    plain, recomputed = (trace([none, mlp], "transformer_engine").chunks[key] for key in ("none", "mlp"))
    assert plain.attention_bytes == recomputed.attention_bytes > plain.hidden_bytes
    freed = plain.saved_bytes - recomputed.saved_bytes
    assert plain.mlp_bytes - recomputed.mlp_bytes == freed > 0
    # beside them a chunk keeps the hidden states that it received
    assert (
        plain.attention_bytes + plain.mlp_bytes
        <= plain.saved_bytes
        <= plain.attention_bytes + plain.mlp_bytes + plain.hidden_bytes
    )
