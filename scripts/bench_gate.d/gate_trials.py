"""Judges simulated suites by the rule, as a night does, and counts nights that are red and changes that are found."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from gate_draws import Drawn, Scenario

from harness.judge.gate import Verdict
from harness.judge.statistics import MIN_NIGHTS
from harness.nightly.rule import Night, Reference, accident_in, judge_time
from harness.nightly.values import Accident, CaseFinding
from harness.records.metrics import BY_NAME

THRESHOLD = 0.05
CHANGES = {"minus_8_first_night": (-0.08, 1), "minus_6_second_night": (-0.06, 2), "minus_5_third_night": (-0.05, 3)}
"""A true change, and the night by which it counts as found."""
_THROUGHPUT = BY_NAME["tflops_per_gpu"]


@dataclass(frozen=True)
class Rates:
    """Shares: nights without a change with a red case, and with a yellow one; true changes that are found."""

    false_red: float
    yellow: float
    minus_8_first_night: float
    minus_6_second_night: float
    minus_5_third_night: float


class Trial:
    """Drawn suites of one scenario."""

    def __init__(self, scenario: Scenario, drawn: Drawn) -> None:
        self.scenario, self.drawn = scenario, drawn
        self.accident = cache(self._accident)
        self._medians = np.median(drawn.history, axis=-1)
        self._unclear = np.nonzero(~self._clear())[0]

    def rates(self, suites: int) -> Rates:
        """Judge one night of every suite without a change, then one case of each with the changes."""
        verdicts = [self.night(suite) for suite in range(suites)]
        shares = [np.mean([wanted in night for night in verdicts]) for wanted in ("regression", "inconclusive")]
        shares += [np.mean([self.is_found(i, *change) for i in range(suites)]) for change in CHANGES.values()]
        return Rates(*(round(float(share), 4) for share in shares))

    def _clear(self) -> np.ndarray:
        """Return which cases pass tonight, whatever their noise: they need no judging.

        A level is the golden or a median of at least five nights, so at most the third highest of them.
        """
        highest, both = np.median(self.drawn.golden, axis=-1), [self.drawn.repeats, self.drawn.confirming]
        if self.scenario.history >= MIN_NIGHTS:
            highest = np.maximum(highest, np.sort(self._medians, axis=1)[:, -3])
        now = np.minimum(*(np.median(runs[:, 0], axis=-1) for runs in (both[0], np.concatenate(both, axis=-1))))
        clear: np.ndarray = now >= highest * (1 - THRESHOLD / 2)
        return clear

    def night(self, suite: int) -> set[Verdict]:
        """Return the verdicts on the cases of tonight that are not clearly a pass."""
        first, last = np.searchsorted(self._unclear, [suite * self.scenario.cases, (suite + 1) * self.scenario.cases])
        return {self._judged(case, 0, 0.0, self._nights(case))[0].verdict for case in self._unclear[first:last]}

    def is_found(self, suite: int, change: float, within: int) -> bool:
        """Return whether the first case of the suite, so much slower from tonight on, is red in time."""
        case = suite * self.scenario.cases
        nights = self._nights(case)
        for night in range(within):
            found, values = self._judged(case, night, change, nights)
            if found.verdict is Verdict.REGRESSION:
                return True
            nights.append(Night(values))
        return False

    def _nights(self, case: int) -> list[Night]:
        older = self.scenario.before_golden
        return [Night(runs, is_older=i < older) for i, runs in enumerate(self.drawn.history[case].tolist())]

    def _judged(self, case: int, night: int, change: float, nights: list[Night]) -> tuple[CaseFinding, list[float]]:
        repeats, confirming = (
            (side[case, night] * (1 + change)).tolist() for side in (self.drawn.repeats, self.drawn.confirming)
        )
        golden = self._golden(case)
        found = judge_time(_THROUGHPUT, (repeats, []), golden, nights, THRESHOLD)
        if not found.evidence or not found.evidence.is_suspicious:
            return found, repeats
        found = judge_time(_THROUGHPUT, (repeats, confirming), golden, nights, THRESHOLD)
        if found.verdict is Verdict.REGRESSION and (accident := self.accident(case // self.scenario.cases)):
            found = judge_time(_THROUGHPUT, (repeats, confirming), golden, nights, THRESHOLD, accident)
        return found, [*repeats, *confirming]

    def _golden(self, case: int) -> Reference:
        runs = self.drawn.golden[case]
        spread = float(runs.std(ddof=1) / runs.mean()) if len(runs) > 1 else None
        return Reference(float(np.median(runs)), spread, len(runs))

    def _accident(self, suite: int) -> Accident | None:
        """Return which case of the suite had the worst single night, as the night's judge does."""
        cases = range(suite * self.scenario.cases, (suite + 1) * self.scenario.cases)
        found = (accident_in(self._nights(case), THRESHOLD) for case in cases)
        worst = max((change for change in found if change is not None), key=abs, default=None)
        return None if worst is None else Accident("another case", worst)
