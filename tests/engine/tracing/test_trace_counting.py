"""The books of the tracer, and what the meter of a processor counts of a step."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.tracing.collectives import (
    Op,
    Tally,
    UnknownCollectiveError,
    caller_goes_on,
    cost_of,
    tensor_bytes,
    tensors_in,
)
from harness.engine.tracing.ledger import StorageLedger
from harness.engine.tracing.routing import spread
from harness.engine.tracing.tracer import attention_flops, gemm_flops
from harness.records.trace import OpCost

pytestmark = pytest.mark.train


def test_views_share_one_storage_and_keep_it_alive():
    ledger = StorageLedger()
    whole = torch.empty(100, device="meta")
    part = whole[:10]
    ledger.add(whole)
    ledger.add(part)
    del whole
    assert ledger.live_bytes == 400
    del part
    assert (ledger.live_bytes, ledger.peak_bytes) == (0, 400)
    assert (ledger.mark(), ledger.peak_bytes) == (0, 0)


def test_an_emptied_storage_counts_as_free_and_a_stranger_not_at_all():
    ledger = StorageLedger()
    tensor, stranger = torch.empty(100, device="meta"), torch.empty(100, device="meta")
    ledger.add(tensor)
    tensor.untyped_storage().resize_(0)
    ledger.resized(tensor.untyped_storage())
    ledger.resized(stranger.untyped_storage())
    assert (tensor.shape, ledger.live_bytes) == ((100,), 0)
    assert not ledger.knows(stranger.untyped_storage())


def test_what_an_earlier_pass_left_never_counts_as_freed_by_a_later_one():
    ledger = StorageLedger()
    left = torch.empty(100, device="meta")
    ledger.add(left)
    ledger.new_epoch()
    kept = torch.empty(10, device="meta")
    ledger.add(kept)
    del left
    assert (ledger.live_bytes, ledger.peak_bytes, ledger.live_of(0)) == (40, 40, 0)


def test_equal_operations_become_one_row_with_their_totals():
    tally = Tally()
    for _ in range(3):
        tally.add(Op("forward", "gemm", "bf16", flops=10, bytes=4))
    tally.add(Op("forward", "gemm", "bf16", flops=11, bytes=4))
    assert tally.rows() == (
        OpCost(phase="forward", kind="gemm", dtype="bf16", flops=30, bytes=12, count=3),
        OpCost(phase="forward", kind="gemm", dtype="bf16", flops=11, bytes=4),
    )


def test_tensors_are_found_in_nested_arguments_and_expanded_dimensions_are_read_once():
    a, b = torch.empty(1), torch.empty(2)
    assert list(tensors_in(((a, [1, "x"]), {"k": [b]}))) == [a, b]
    row = torch.empty(1, 8, dtype=torch.bfloat16, device="meta")
    assert (tensor_bytes(row.expand(5, 8)), tensor_bytes(row), tensor_bytes(None)) == (16, 16, 0)


def test_token_counts_add_up_and_differ_by_one_at_most():
    assert (spread(5, 2), spread(6, 3), spread(1, 4)) == ([3, 2], [2, 2, 2], [1, 0, 0, 0])
    assert spread(7, 3).T.ravel().tolist() == [3, 2, 2]


def test_flops_of_products_and_of_grouped_causal_attention():
    query = torch.empty(2, 8, 16, 4, device="meta")
    key, value = torch.empty(2, 2, 16, 4, device="meta"), torch.empty(2, 2, 16, 6, device="meta")
    assert gemm_flops(2, 3, 5) == 60
    assert attention_flops(query, key, value, causal=False) == 2 * 2 * 8 * 16 * 16 * (4 + 6)
    assert attention_flops(query, key, value, causal=True) == 2 * 8 * 16 * 16 * (4 + 6)


def test_a_storage_that_shares_anothers_bytes_counts_once_and_keeps_them_alive():
    ledger = StorageLedger()
    discarded, recomputed = torch.empty(100, device="meta"), torch.empty(100, device="meta")
    ledger.add(discarded)
    discarded.untyped_storage().resize_(0)
    ledger.resized(discarded.untyped_storage())
    ledger.add(recomputed)
    discarded.untyped_storage().resize_(400)
    ledger.share(discarded.untyped_storage(), recomputed.untyped_storage())
    ledger.add(discarded.view(10, 10))
    del recomputed
    assert ledger.live_bytes == 400
    del discarded
    assert ledger.live_bytes == 0


class WhoWaits(TorchDispatchMode):
    """Asks at every operation of a process group."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.goes_on = caller_goes_on()
        return func(*args, **kwargs or {})


@pytest.fixture
def fake_group():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("goes_on", [True, False])
def test_who_starts_a_collective_waits_for_it_or_goes_on(fake_group, goes_on):
    with WhoWaits() as waiting:
        dist.all_reduce(torch.empty(2), async_op=goes_on)
    assert waiting.goes_on == goes_on


def test_a_collective_without_a_known_cost_is_named_and_receiving_costs_nothing(fake_group):
    with pytest.raises(UnknownCollectiveError, match=r"c10d\.gather_"):
        cost_of(torch.ops.c10d.gather_.default, (), {})
    assert cost_of(torch.ops.c10d.recv_.default, (), {}) is None


@pytest.fixture
def peak():
    from harness.engine.tracing.ledger import watched_peak_bytes

    return watched_peak_bytes


def test_only_what_is_made_and_alive_at_once_counts(torch, peak):
    before = [torch.zeros(1000)]

    def step():
        before[0].add_(1)
        before.clear()  # made before: counts neither when written nor when freed
        for _ in range(3):
            torch.zeros(100)
        kept = torch.zeros(50)
        return kept, torch.ones(100)

    assert peak(step) == 4 * (50 + 100)
    assert peak(lambda: torch.tensor([1.0, 2.0])) == 8


def test_what_another_thread_lets_go_of_last_is_seen(torch, peak):
    from threading import Event, Thread

    def step():
        release, held = Event(), [torch.zeros(1000)]

        def let_go():
            release.wait()
            held.clear()

        thread = Thread(target=let_go)
        thread.start()
        release.set()
        thread.join()
        torch.zeros(1000)

    assert peak(step) == 4000


def test_emptied_storages_are_free_under_living_tensors(torch, peak):
    def step():
        tensor = torch.zeros(1000)
        tensor.untyped_storage().resize_(0)
        torch.zeros(1000)

    assert peak(step) == 4000


@pytest.mark.parametrize("limit_bytes", [None, 10**6])
def test_what_the_first_step_makes_and_keeps_counts_in_every_later_one(torch, limit_bytes):
    from harness.engine.memory import CpuMeter

    layer, kept = torch.nn.Linear(10, 10), []
    meter = CpuMeter(limit_bytes)

    def step():
        if not kept:
            kept.append(torch.zeros(1000))
        torch.zeros(500)

    meter.after_setup([layer], torch.optim.SGD(layer.parameters()))
    for index in range(3):
        with meter.watching(index):
            step()
        if index == 0:
            meter.after_first_step()
    with meter.probing():
        step()
    found = meter.record()
    assert (found.after_setup_bytes, found.static_bytes) == (440, 440 + 4000)
    assert found.max_allocated_bytes == 440 + 4000 + 2000
