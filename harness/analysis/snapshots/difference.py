"""What one snapshot holds more than another, by module and by site."""

from collections.abc import Callable, Iterable

from harness.analysis.snapshots.values import DeviceMemory, Holder
from harness.spec.frozen import Frozen


class HeldMore(Frozen):
    """Bytes of one module or site in both; ``site`` is empty for a module as a whole."""

    module: str
    site: str
    before_bytes: int
    after_bytes: int

    @property
    def more_bytes(self) -> int:
        """Negative where the second holds less."""
        return self.after_bytes - self.before_bytes


class SnapshotDifference(Frozen):
    """Rows that differ, the largest difference first. ``at_peak``: at the highest point of both histories, as requested.

    Otherwise rows are of the moment of the snapshots, as rounded.
    """

    at_peak: bool
    before_bytes: int
    after_bytes: int
    modules: tuple[HeldMore, ...]
    sites: tuple[HeldMore, ...]


def difference(before: DeviceMemory, after: DeviceMemory) -> SnapshotDifference:
    """At the peaks where both have a history, else at the moments of the snapshots.

    Lines of code are matched by module, file and function: a site moves a few lines between releases.
    """
    at_peak = before.levels is not None and after.levels is not None
    return SnapshotDifference(
        at_peak=at_peak,
        before_bytes=sum(_held(one, at_peak=at_peak) for one in before.holders),
        after_bytes=sum(_held(one, at_peak=at_peak) for one in after.holders),
        modules=_rows(before, after, lambda one: (one.module, ""), at_peak=at_peak),
        sites=_rows(before, after, lambda one: (one.module, site_without_line(one.site)), at_peak=at_peak),
    )


def site_without_line(site: str) -> str:
    """``megatron/core/transformer/mlp.py:101 forward`` without its ``:101``."""
    path, space, function = site.partition(" ")
    name, colon, line = path.rpartition(":")
    return f"{name}{space}{function}" if colon and line.isdecimal() else site


def _held(one: Holder, *, at_peak: bool) -> int:
    return one.peak_bytes or 0 if at_peak else one.live_bytes


def _rows(
    before: DeviceMemory, after: DeviceMemory, key: Callable[[Holder], tuple[str, str]], *, at_peak: bool
) -> tuple[HeldMore, ...]:
    sums = [_sums(device.holders, key, at_peak=at_peak) for device in (before, after)]
    rows = [
        HeldMore(module=of[0], site=of[1], before_bytes=sums[0].get(of, 0), after_bytes=sums[1].get(of, 0))
        for of in {*sums[0], *sums[1]}
    ]
    changed = [row for row in rows if row.more_bytes]
    return tuple(sorted(changed, key=lambda row: (-abs(row.more_bytes), row.module, row.site)))


def _sums(
    holders: Iterable[Holder], key: Callable[[Holder], tuple[str, str]], *, at_peak: bool
) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for one in holders:
        sums[key(one)] = sums.get(key(one), 0) + _held(one, at_peak=at_peak)
    return sums
