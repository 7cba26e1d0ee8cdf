"""The scenarios: the nightly's usual case, for which the goals are set, and harder noises."""

from collections.abc import Callable
from dataclasses import dataclass

from gate_draws import Scenario
from gate_trials import Detection, FalseAlarms, detection, false_alarms

CONFIRM = 2
CHANGES = (-0.02, -0.03, -0.04, -0.05, -0.10)
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
_SEED = 20240501


@dataclass(frozen=True)
class Size:
    """How much is drawn: nights and cases of the usual scenario, and of each other one."""

    nights: int = 20_000
    cases: int = 20_000
    other_nights: int = 1_000
    other_cases: int = 4_000


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
        """Return whether the value is inside the limit."""
        return self.value <= self.limit if self.is_upper else self.value >= self.limit


def rows(size: Size, report: Callable[[str], None]) -> list[Row]:
    """Return the usual scenario with and without confirmation, then the others with it."""
    plan = [(USUAL, CONFIRM, size.nights, size.cases), (USUAL, 0, size.other_nights, size.cases)]
    plan += [(other, CONFIRM, size.other_nights, size.other_cases) for other in OTHERS]
    return [_row(number, *settings, report) for number, settings in enumerate(plan)]


def _row(number: int, scenario: Scenario, confirm: int, nights: int, cases: int, report: Callable[[str], None]) -> Row:
    report(f"{scenario.name}, confirm {confirm}: {nights} nights, {cases} cases of each change")
    seed = _SEED + 100 * number
    alarms = false_alarms(scenario, nights, confirm, seed)
    found = tuple(detection(scenario, change, cases, confirm, seed + 1 + i) for i, change in enumerate(CHANGES))
    return Row(scenario, confirm, alarms, found)


def goals(usual: Row) -> tuple[Goal, ...]:
    """Return the goals: false alarms per night and true changes found, for five repeats with confirmation."""
    return (
        Goal("nights with a false alarm, 50 cases", usual.alarms.regression.value, 0.01, is_upper=True),
        Goal("a true -5 % found", usual.detected(-0.05).regression.value, 0.99, is_upper=False),
        Goal("a true -3 % found", usual.detected(-0.03).regression.value, 0.90, is_upper=False),
    )
