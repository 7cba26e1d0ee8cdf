"""Calls made in threads side by side, of which none outlives an interruption of the caller."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def side_by_side(ask: Callable[[Asked], Answer], asked: Sequence[Asked], num_threads: int, stop: Event) -> list[Answer]:
    """Answers in the order of ``asked``, at most ``num_threads`` at once.

    Whatever the wait ends with, a Ctrl-C too, sets ``stop`` and drops the calls that have not begun before it is raised:
    leaving the pool waits for those under way, and ``ask`` is to look at ``stop`` now and then.
    """
    with ThreadPoolExecutor(max(1, num_threads)) as pool:
        try:
            return list(pool.map(ask, asked))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
