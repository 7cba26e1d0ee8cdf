"""Where the stand-in may differ from transformer-engine's own Python, each with its reason; the test reads this table."""

from dataclasses import dataclass

MIB = 2**20
ANY = frozenset()


@dataclass(frozen=True)
class Listed:
    """Real bytes minus the stand-in's may be within ``saved``, ``forward_peak``, ``backward_peak`` (lowest, highest).

    ``kinds`` and ``precisions`` name the cases of the row; empty means all. ``parts``: words, one of which is in the setting.
    """

    reason: str
    kinds: frozenset[str] = ANY
    precisions: frozenset[str] = ANY
    parts: frozenset[str] = ANY
    saved: tuple[int, int] = (0, 0)
    forward_peak: tuple[int, int] = (0, 0)
    backward_peak: tuple[int, int] = (0, 0)

    def applies(self, key):
        """Whether the row is for the case ``kind/precision/setting``."""
        kind, precision, setting = key.split("/")
        return (
            (not self.kinds or kind in self.kinds)
            and (not self.precisions or precision in self.precisions)
            and (not self.parts or any(part in setting for part in self.parts))
        )


def allowed(key, field, rows):
    """Lowest and highest difference that the rows for ``key`` explain."""
    ranges = [getattr(row, field) for row in rows if row.applies(key)]
    return sum(low for low, _ in ranges), sum(high for _, high in ranges)


def unexplained(found, rows):
    """Differences (key -> field -> bytes) outside of what the rows explain."""
    return {
        (key, field): value
        for key, fields in found.items()
        for field, value in fields.items()
        if not allowed(key, field, rows)[0] <= value <= allowed(key, field, rows)[1]
    }


# 12,300 bytes per linear layer: an fp32 history of 1024 maxima and a scale for each of three tensors.
HISTORY = 12_300
LISTED = (
    Listed(
        "single fp32 values: scales and maxima, which the stand-in counts once more or once less per tensor, and the table "
        "of counts per expert",
        backward_peak=(-128, 1500),
        forward_peak=(-36, 1500),
        saved=(-36, 400),
    ),
    Listed(
        "delayed scaling: a checkpoint copies histories and scales of its layers (`copy_forward_fp8_meta_tensors_for_recompute`), "
        "and the stand-in has none",
        precisions=frozenset({"fp8_ds"}),
        saved=(0, 80 * HISTORY),
        forward_peak=(0, 80 * HISTORY),
    ),
)  # fmt: skip
