"""Seconds of matrix products by shape."""

import pytest

from harness.experiment.gpu import GPUS
from harness.experiment.model import MoeModel
from harness.predict.products import Widths, slowdown, slowdown_of


@pytest.mark.parametrize(
    ("output", "num", "expected"),
    [
        ((1, 256 * 132, 128), 132, 1.0),
        ((1, 8192, 1280), 132, (320 / 132 + 0.4 * (3 - 320 / 132)) / (320 / 132)),
        ((1, 1024, 128), 132, (4 + 0.4 * 128) / 4),
        ((64, 128, 256), 128, 0.5 * 2 * 0.4 + 1),
        ((8, 154, 3072), 148, (192 + 0.4 * 104) / (8 * 154 * 3072 / 2**15)),
    ],
    ids=["full waves", "part of a wave", "four tiles", "grouped", "rows of an expert"],
)
def test_a_product_pays_for_tiles_in_part_and_for_multiprocessors_without_one(output, num, expected):
    assert slowdown(output, num) == pytest.approx(expected)


def test_every_gpu_has_multiprocessors():
    found = {name: row.multiprocessors for name, row in GPUS.items() if not row.is_cpu}
    assert min(found.values()) == found["h20"] == 78
    assert (found["a100"], found["h200"], found["gb200"]) == (108, 132, 148)


@pytest.fixture
def widths(spec_of):
    """A rank multiplies 4096 tokens of width 8192 and has 4 experts of 1536."""
    spec = spec_of(num_gpus=2, parallelism={"expert_model_parallel_size": 2}, batch={
        "micro_batch_size": 1, "global_batch_size": 2, "seq_length": 4096})  # fmt: skip
    moe = MoeModel(num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=1536)
    return Widths.of(spec.model_copy(update={"model": spec.model.model_copy(update={"moe": moe, "hidden_size": 8192})}))


def flops_and_bytes(m: int, n: int, k: int, read: int, weights: int = 1) -> tuple[int, int]:
    return 2 * m * n * k, read * (m * k + weights * k * n) + 2 * m * n


def test_flops_and_bytes_tell_the_output_of_a_product_in_fp8(widths):
    forward = slowdown_of("forward", "fp8", *flops_and_bytes(4096, 1280, 8192, 1), widths)
    of_weight = slowdown_of("backward", "fp8", *flops_and_bytes(1280, 8192, 4096, 1), widths)
    of_input = slowdown_of("backward", "fp8", *flops_and_bytes(4096, 8192, 1280, 1), widths)
    outputs = (1, 4096, 1280), (1, 1280, 8192), (1, 4096, 8192)
    assert (forward, of_weight, of_input) == pytest.approx(tuple(slowdown(output, 132) for output in outputs))


def test_products_that_a_trace_does_not_separate_take_their_mean(widths):
    """In BF16 the gradients of input and weight have equal FLOPs and bytes. A frozen weight has none."""
    cost = flops_and_bytes(4096, 2560, 8192, 2)
    narrow, wide, of_weight = (slowdown((1, *size), 132) for size in ((4096, 2560), (4096, 8192), (2560, 8192)))
    frozen = widths._replace(is_trained=False)
    assert slowdown_of("backward", "bf16", *cost, widths) == pytest.approx(((narrow + wide) / 2 + of_weight) / 2)
    assert slowdown_of("backward", "bf16", *cost, frozen) == pytest.approx((narrow + wide) / 2)


def test_experts_divide_the_rows_of_a_grouped_product(widths):
    assert widths.num_experts == 4
    cost = flops_and_bytes(616, 3072, 8192, 1, weights=4)
    assert slowdown_of("forward", "fp8", *cost, widths) == slowdown((4, 154, 3072), 132)


def test_a_product_of_no_known_shape_takes_full_waves(widths):
    assert slowdown_of("forward", "bf16", 2 * 64 * 64 * 64, 7, widths) == 1.0
