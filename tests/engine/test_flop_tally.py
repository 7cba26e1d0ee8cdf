"""The tally agrees with torch's own counter, and leaves the lifetimes of tensors alone."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from harness.engine.memory import FlopTally  # noqa: E402
from harness.engine.tracing.ledger import watched_peak_bytes  # noqa: E402

pytestmark = pytest.mark.train
HEADS, SIZE, LENGTH = 4, 64, 32


def parts(x, weights):
    """Queries, keys and values by head."""
    return ((x @ w.t()).view(2, LENGTH, HEADS, -1).transpose(1, 2) for w in weights[:3])


def joined(mixed, weight):
    return mixed.transpose(1, 2).reshape(2, LENGTH, SIZE) @ weight.t()


def block(x, *weights):
    """Attention without its kernel's name: math of two batched products, then a linear layer."""
    query, key, value = parts(x, weights)
    scores = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
    return torch.nn.functional.gelu(joined(scores @ value, weights[3]))


def flash(x, *weights):
    """The same with torch's fused kernel for processors."""
    return joined(torch.nn.functional.scaled_dot_product_attention(*parts(x, weights), is_causal=True), weights[3])


def step(layer, *, recomputed):
    """Two layers forward and backward."""
    weights = [torch.randn(SIZE, SIZE, requires_grad=True) for _ in range(4)]
    x = torch.randn(2, LENGTH, SIZE, requires_grad=True)

    def run():
        out = x
        for _ in range(2):
            out = checkpoint(layer, out, *weights, use_reentrant=True) if recomputed else layer(out, *weights)
        out.sum().backward()

    return run


@pytest.mark.parametrize("recomputed", [False, True])
def test_flops_are_those_of_torchs_own_counter_and_the_step_needs_no_more_memory(recomputed):
    run = step(block, recomputed=recomputed)
    with FlopTally() as tally:
        run()
    with FlopCounterMode(display=False) as counter:
        run()
    assert tally.flops == counter.get_total_flops() > 0
    alone = watched_peak_bytes(run)
    with FlopTally():
        assert watched_peak_bytes(run) == alone


def test_the_flash_kernel_of_a_processor_counts_as_the_whole_score_matrix():
    products = 2 * 2 * LENGTH * SIZE * SIZE  # of one linear layer, forward
    attention = 2 * 2 * 2 * HEADS * LENGTH * LENGTH * (SIZE // HEADS)  # two products over the scores, forward
    with FlopTally() as tally:
        step(flash, recomputed=False)()
    assert tally.flops == 2 * (4 * 3 * products + attention + 5 * attention // 2)
