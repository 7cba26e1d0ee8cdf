"""The scenarios: the nightly's usual case, for which the goals are set, and harder noises."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from gate_draws import Scenario
from gate_trials import Detection, FalseAlarms, Rate, detection, false_alarms

CONFIRM = 2
CHANGES = (-0.03, -0.05, -0.08)
USUAL = Scenario("1 % noise, 20 nights of history")
OTHERS = (
    Scenario("1 % noise, no history", history_nights=0),
    Scenario("0.3 % noise", noise=0.003),
    Scenario("2 % noise", noise=0.02),
    Scenario("2 % noise, no history", noise=0.02, history_nights=0),
    Scenario("heavy tails (t, 4 degrees)", heavy_tails=True),
    Scenario("heavy tails, no history", heavy_tails=True, history_nights=0),
    Scenario("nights differ by 0.5 %", night_noise=0.005),
    Scenario("nights differ by 1 %", night_noise=0.01),
    Scenario("nights differ by 1 %, no history", night_noise=0.01, history_nights=0),
    Scenario("tonight twice as noisy", tonight_times=2.0),
    Scenario("a 3 % step in the history", step_in_history=True),
    Scenario("3 repeats, golden of 3", repeats=3, golden_runs=3),
    Scenario("1 run, golden of 1, 20 nights of 1 run", repeats=1, golden_runs=1),
    Scenario("1 run, golden of 1, no history", repeats=1, golden_runs=1, history_nights=0),
)
_ODD_NIGHTS = tuple(
    Scenario(f"one night of {change:+.0%}", noise=0.003, odd_night=change) for change in (0.1, -0.1, 0.5, -0.5)
)
_AROUND = Scenario("20 nights around the golden", noise=0.003, nights_before_golden=10)
_LONGER = replace(_AROUND, history_nights=60, nights_before_golden=30)
HEAVY = (
    replace(_AROUND, name="nights with tails (t, 3 degrees) of 1.3 %", night_noise=0.013, night_degrees=3),
    replace(_AROUND, name="nights with tails of 2.1 %", night_noise=0.021, night_degrees=3),
    replace(_LONGER, name="nights with tails of 1.7 %, 60 nights", night_noise=0.017, night_degrees=3),
    replace(_AROUND, name="nights that drift (0.7) by 1.5 %", night_noise=0.015, drift=0.7),
    replace(_LONGER, name="nights that drift by 1.5 %, 60 nights", night_noise=0.015, drift=0.7),
    replace(_AROUND, name="3 % of nights lose 30 to 80 %", night_noise=0.005, odd_share=0.03),
    replace(_LONGER, name="3 % of nights lose 30 to 80 %, 60 nights", night_noise=0.005, odd_share=0.03),
)
"""Nights whose tails, drift or accidents earlier nights show only in part: a change may take two nights."""
_SEED = 20240501


@dataclass(frozen=True)
class Size:
    """How much is drawn: nights and cases of the usual scenario, of each other one, and nights for the short rule."""

    nights: int = 1_500
    cases: int = 3_000
    other_nights: int = 300
    other_cases: int = 300
    short_nights: int = 2_000


@dataclass(frozen=True)
class Row:
    """One scenario with a number of confirming runs."""

    scenario: Scenario
    confirm: int
    alarms: FalseAlarms
    detections: tuple[Detection, ...]

    def detected(self, change: float) -> Detection:
        """Return the detection of a true change."""
        return next(row for row in self.detections if row.change == change)


@dataclass(frozen=True)
class Goal:
    """A share that must be at most, or at least, ``limit``."""

    name: str
    value: float
    limit: float
    is_upper: bool

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit if self.is_upper else self.value >= self.limit


def rows(size: Size, report: Callable[[str], None]) -> list[Row]:
    """Return the usual scenario with and without confirmation, then the others with it; each on a processor of its own."""
    plan = [(USUAL, CONFIRM, size.nights, size.cases), (USUAL, 0, size.other_nights, size.cases)]
    plan += [(other, CONFIRM, size.other_nights, size.other_cases) for other in (*OTHERS, *_ODD_NIGHTS, *HEAVY)]
    found = []
    with ProcessPoolExecutor() as pool:
        for row in pool.map(_row, range(len(plan)), *zip(*plan, strict=True)):
            report(f"{row.scenario.name}, confirm {row.confirm}")
            found.append(row)
    return found


def _row(number: int, scenario: Scenario, confirm: int, nights: int, cases: int) -> Row:
    seed = _SEED + 100 * number
    alarms = false_alarms(scenario, nights, confirm, seed)
    found = tuple(detection(scenario, change, cases, confirm, seed + 1 + i) for i, change in enumerate(CHANGES))
    return Row(scenario, confirm, alarms, found)


def goals(found: Sequence[Row]) -> tuple[Goal, ...]:
    """Return the goals: of the usual scenario, of all, of those with odd nights."""
    usual = found[0]
    odd = [row for row in found if row.scenario in _ODD_NIGHTS]
    habit = [row for row in found if row.scenario.odd_share]
    light = [row for row in found if row.scenario not in HEAVY]
    return (
        _at_most(0.01, "nights with a false alarm, 50 cases", usual.alarms.false_alarm),
        _at_least(0.99, "a true -5 % found", usual.detected(-0.05).regression),
        _at_least(0.90, "a true -3 % found", usual.detected(-0.03).regression),
        _at_most(0.01, "nights with a false alarm, every scenario", *(row.alarms.false_alarm for row in found)),
        _at_most(0.05, "inconclusive nights, light tails", *(row.alarms.inconclusive for row in light)),
        _at_least(0.95, "-5 % found after an odd night", *(row.detected(-0.05).regression for row in odd)),
        _at_least(1.0, "-8 % found after an odd night", *(row.detected(-0.08).regression for row in odd)),
        _at_least(0.90, "-5 % found by the second night, 3 % odd nights",
                  *(row.detected(-0.05).by_second_night for row in habit)),
    )  # fmt: skip


def _at_most(limit: float, name: str, *rates: Rate) -> Goal:
    return Goal(name, max(rate.value for rate in rates), limit, is_upper=True)


def _at_least(limit: float, name: str, *rates: Rate) -> Goal:
    return Goal(name, min(rate.value for rate in rates), limit, is_upper=False)
