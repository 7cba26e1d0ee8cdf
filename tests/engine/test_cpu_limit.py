"""The limit on a processor: what it counts, and where it stops a step."""

import pytest

pytestmark = pytest.mark.train
KIB = 1024


@pytest.fixture
def limit():
    from harness.engine.memory import CpuLimit

    return CpuLimit


@pytest.fixture
def too_much():
    """The error of a request that goes beyond the limit."""
    from harness.engine.memory import MemoryLimitError

    return MemoryLimitError


def floats(torch, kib):
    return torch.zeros(kib * KIB // 4)


def test_a_step_that_fits_passes_and_leaves_its_peak(torch, limit):
    held = limit(100 * KIB)
    with held.step(40 * KIB):
        floats(torch, 30) + 1
        floats(torch, 60)
    assert held.peak_bytes == 100 * KIB


def test_memory_that_was_given_back_views_and_work_in_place_count_no_more(torch, limit):
    there = floats(torch, 90)
    held = limit(100 * KIB)
    with held.step(0):
        there.view(-1, 2).t()
        there.add_(1).mul_(2)
        there.detach()
    assert held.peak_bytes == 0
    with held.step(0):
        for _ in range(10):
            floats(torch, 60)


def test_the_request_that_goes_too_far_is_reported_in_bytes(torch, limit, too_much):
    from harness.engine.rank_log import failure_of

    held = limit(100 * KIB)
    with pytest.raises(too_much) as raised, held.step(40 * KIB):  # noqa: PT012 (the first request fits)
        kept = [floats(torch, 50), floats(torch, 20)]
        assert not kept
    assert held.peak_bytes == 90 * KIB
    failure = failure_of(raised.value, phase="forward_backward", step=1)
    assert (failure.kind, failure.request_bytes) == ("oom", 20 * KIB)
    assert "90.00 KiB " in failure.message and "100.00 KiB " in failure.message


def test_a_backward_pass_is_watched_and_ends_with_the_same_error(torch, limit, too_much):
    weight = floats(torch, 4).requires_grad_()
    with limit(7 * KIB).step(0):
        loss = (weight * 1.5).sum()
    with pytest.raises(too_much), limit(KIB).step(0):
        loss.backward()


def test_a_storage_that_is_emptied_and_refilled_counts_as_what_it_holds(torch, limit, too_much):
    """As output-discarding recompute does."""
    held = limit(100 * KIB)
    with held.step(0):
        discarded = floats(torch, 80)
        discarded.untyped_storage().resize_(0)
        other = floats(torch, 80)
        del other
        discarded.untyped_storage().resize_(80 * KIB)
    assert held.peak_bytes == 80 * KIB
    with pytest.raises(too_much), held.step(0):  # noqa: PT012 (what comes before fits)
        discarded = floats(torch, 80)
        discarded.untyped_storage().resize_(0)
        kept = floats(torch, 80)
        discarded.untyped_storage().resize_(80 * KIB)
        assert not kept


def test_nothing_stays_patched_after_a_step(torch, limit, too_much):
    resize = torch.UntypedStorage.resize_
    with pytest.raises(too_much), limit(KIB).step(0):
        floats(torch, 2)
    assert torch.UntypedStorage.resize_ is resize
    floats(torch, 2)


def test_weights_alone_may_be_too_much(limit, too_much):
    held = limit(100 * KIB)
    held.hold(100 * KIB)
    with pytest.raises(too_much, match=" 102401 bytes"):
        held.hold(100 * KIB + 1)
