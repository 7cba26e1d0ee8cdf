"""Predicts a run before its ranks start or while they run."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from harness.launch.plan import Nodes
from harness.launch.replay import ReplayPlan
from harness.measure.prediction import KeptPrediction, predict_with, tracing
from harness.measure.understanding import Understood

# The ranks have priority over a tracer that runs at the same time.
_NICENESS = 15


@contextmanager
def predicting(
    understood: Understood, nodes: Nodes, before_start: Callable[[KeptPrediction], None] = lambda _: None
) -> Iterator[Callable[[int | None], KeptPrediction]]:
    """Yield a function that returns the prediction. Call it once, with the signal that ended the ranks, if any.

    Leaving the block abandons an unfinished prediction. Only the first node predicts. ``before_start`` gets what
    is known before the block is entered: a prediction from the cache, or on the CPU, where a tracer would take cores
    from the ranks. On GPUs the tracer runs while the ranks start and train.
    """
    spec, software = understood.spec, understood.software
    if nodes.node_rank > 0:
        yield lambda _: KeptPrediction(None, "only the first node predicts")
        return
    if isinstance(understood.plan, ReplayPlan):
        yield lambda _: KeptPrediction(None, "replayed: there is no measurement to compare a prediction with")
        return
    first = tracing(understood.host, cached_only=not spec.gpu_type.is_cpu)
    ready = predict_with(first, spec, software)
    before_start(ready)
    if ready.prediction or not first.cached_only:
        yield lambda _: ready
        return
    stop = Event()
    beside = tracing(understood.host, niceness=_NICENESS, stop=stop)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(predict_with, beside, spec, software)
        try:
            yield lambda signal: _awaited(coming, signal)
        finally:
            stop.set()


def _awaited(coming: "Future[KeptPrediction]", signal: int | None) -> KeptPrediction:
    """An interrupted run does not wait for its prediction. Interrupting the wait keeps the run."""
    if signal is not None and not coming.done():
        return KeptPrediction(None, "interrupted before the tracer was done")
    try:
        return coming.result()
    except KeyboardInterrupt:
        return KeptPrediction(None, "interrupted before the tracer was done")
