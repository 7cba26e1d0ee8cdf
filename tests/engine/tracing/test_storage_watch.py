"""What the meter of a processor counts of a step."""

import pytest

pytestmark = pytest.mark.train


@pytest.fixture(name="torch")
def _torch():
    return pytest.importorskip("torch")


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
