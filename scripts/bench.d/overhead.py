"""What the harness adds to a training step, over a bare megatron-core loop: steps of both kinds in turn in one run."""

import tempfile
from pathlib import Path

from paired import PAIRS, Pairs, Ratio, median_ms, pairs_of, ratio_of, train_pairs, understood_here
from result import Result

GOAL = 1.01


def overhead() -> Result:
    """Measure pairs of steps under the real launcher and its watchdog; the ratio includes its own processor time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        understood = understood_here(folder)
        watching = train_pairs(understood, folder, PAIRS)
        pairs = pairs_of(folder, "harness", "bare", PAIRS)
    return ratio(f"{understood.spec.recipe} on {understood.spec.gpu}", pairs, watching)


def ratio(what: str, pairs: Pairs, watching: float) -> Result:
    """Return the ratio of the pairs plus ``watching``, the watchdog's share of one core, as if it stole it from a rank.

    Inconclusive where its 95 % interval reaches the goal.
    """
    bare = ratio_of(pairs)
    found = Ratio(bare.value + watching, bare.low + watching, bare.high + watching)
    details = {
        "harness_ms": median_ms([harness for harness, _ in pairs]),
        "bare_ms": median_ms([bare for _, bare in pairs]),
        "interval_95": [round(found.low, 4), round(found.high, 4)],
        "watchdog_share_of_a_core": round(watching, 5),
        "num_pairs": len(pairs),
    }
    title = f"step time over a bare loop, {what}"
    return Result(
        "overhead", title, round(found.value, 4), GOAL, "ratio", details, found.doubt(GOAL), noise_lowers=True
    )
