"""Measured steps in the page of times: each beside its prediction, pairs of settings, constants, ranges."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from math import log
from statistics import geometric_mean, mean
from typing import Any

from page import plain, signed, table
from times_fit import BOUNDS, BOUNDS_OF_OTHERS, FEW_MODELS, MEANING, START, Compared, Fit

from harness.predict.ranges import ENOUGH_ROWS
from harness.predict.step_ranges import STEPS_WIDENED, step_spread
from harness.predict.time_model import kind_of_error
from harness.units import counted, grouped

# Measured times that differ by less are noise, and no pair.
LEAST_DIFFERENCE = 0.03


@dataclass(frozen=True)
class Pair:
    """Two settings of one model, number of GPUs, precision and sequence."""

    left: Compared
    right: Compared

    @property
    def measured(self) -> float:
        """Seconds per sample of the left over the right setting, minus 1."""
        return _per_sample(self.left, self.left.step.seconds) / _per_sample(self.right, self.right.step.seconds) - 1

    @property
    def predicted(self) -> float:
        """The same of the predictions."""
        left, right = (_per_sample(row, row.time.likely_s) for row in (self.left, self.right))
        return left / right - 1

    @property
    def is_right(self) -> bool:
        """Whether the faster one is predicted to be faster."""
        return self.measured * self.predicted > 0


def _per_sample(row: Compared, seconds: float) -> float:
    return seconds / row.step.spec.batch.global_batch_size


def kind(row: Compared) -> tuple[object, ...]:
    """Return what settings must share before they are compared."""
    s = row.step.spec
    return s.model, s.gpu, s.num_gpus, s.compute_dtype, s.batch.seq_length


def published(rows: Iterable[Compared]) -> list[Compared]:
    """Return published steps; of equal settings the last."""
    return [*{row.step.spec.fingerprint: row for row in rows if row.step.origin == "published"}.values()]


def pairs(rows: Iterable[Compared]) -> list[Pair]:
    """Return pairs of published settings that differ, and whose measured times do."""
    every = (Pair(*both) for both in combinations(published(rows), 2))
    alike = (pair for pair in every if pair.left.step.model == pair.right.step.model)
    return [pair for pair in alike if kind(pair.left) == kind(pair.right) and abs(pair.measured) > LEAST_DIFFERENCE]


@dataclass(frozen=True)
class Floor:
    """How far runs of equal settings lie from their geometric mean, which no function of the settings can beat by much.

    ``error``: mean over all runs, where a run without a second one counts as predicted exactly. ``repeated_error``: mean
    over ``num_repeated`` runs that have another of equal settings. ``slow``: runs left out, :data:`SLOW` times the shortest.
    """

    num_runs: int
    num_repeated: int
    error: float
    repeated_error: float
    slow: int


# A run so many times as long as another of equal settings ran on a disturbed machine.
SLOW = 3


def noise_floor(rows: Iterable[Compared]) -> Floor:
    """Return the floor of these rows; equal specs are equal settings."""
    groups = grouped((row.step.spec.fingerprint, run) for row in rows for run in row.step.runs)
    kept = [[run for run in runs if run < SLOW * min(runs)] for runs in groups.values()]
    num_runs, slow = sum(map(len, kept)), sum(map(len, groups.values())) - sum(map(len, kept))
    errors = [abs(geometric_mean(runs) / run - 1) for runs in kept if len(runs) > 1 for run in runs]
    return Floor(num_runs, len(errors), sum(errors) / num_runs, mean(errors) if errors else 0.0, slow)


def headline(found: Fit) -> str:
    """Summarise each class that has a range of its own, and the pairs."""
    large = ((name, *rest) for name, num, *rest in errors(found) if num >= ENOUGH_ROWS)
    texts = (
        f"{name} steps: off by {share} on average, {worst} at worst, {inside} inside the range"
        for name, share, worst, inside in large
    )
    judged = pairs(found.compared)
    return f"Seconds, each model predicted without its own rows. {'; '.join(texts)}. The faster of two settings: right in {sum(pair.is_right for pair in judged)} of {len(judged)} pairs."


def classes(rows: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Return rows by GPU type and kind, as `plan` counts its measured steps."""
    return grouped((f"{row.step.spec.gpu} {kind_of_error(row.step.spec, row.time)}", row) for row in rows)


def errors(found: Fit) -> list[tuple[str, int, str, str, str]]:
    """Return of each class its name, number of rows, mean and worst error, and how many are inside the range."""
    return [
        (name, len(rows), plain(mean(abs(row.error) for row in rows)), signed(max((row.error for row in rows), key=abs)),
         f"{sum(_is_inside(found, row) for row in rows)} of {len(rows)}")
        for name, rows in classes(found.compared).items()
    ]  # fmt: skip


def document(found: Fit, left_out: Mapping[str, str]) -> dict[str, Any]:
    """Return everything, for the JSON file."""
    return {
        "constants": found.constants,
        "spreads": found.spreads,
        "transfer": found.transfer,
        "left_out": dict(left_out),
        "noise_floors": {name: asdict(noise_floor(rows)) for name, rows in classes(found.compared).items()},
        "steps": [
            {"name": row.step.name, "model": row.step.model, "origin": row.step.origin, "kind": row.kind, "source": row.step.source,
             "taken_as": row.step.taken_as, "measured_s": row.step.seconds, "predicted_s": row.time.likely_s,
             "fitted_s": row.fitted_s, "range_s": found.range_of(row), "error": row.error, "in_range": _is_inside(found, row)}
            for row in found.compared
        ],
        "pairs": [
            {"left": pair.left.step.name, "right": pair.right.step.name, "measured": pair.measured,
             "predicted": pair.predicted, "right_order": pair.is_right}
            for pair in pairs(found.compared)
        ],
    }  # fmt: skip


def lines(found: Fit, left_out: Mapping[str, str]) -> list[str]:
    """Return the section of the page."""
    values = ((gpu, *each) for gpu in found.constants if gpu != "9.x" for each in found.constants[gpu].items())
    others = ", ".join(f"{name} of {gpu} {value:.3g}{_bound_of(name, value)}" for gpu, name, value in values)
    return [
        "## Measured steps", "",
        "A prediction in these tables is by constants that were fitted without any row of the same model; `fitted` is by those "
        "that the planner uses. The range holds nine of ten rows of other models in the same class; `short` is a step predicted below a second.", "",
        *table("constant | value: | from: | what it is", (
            (name, f"{value:.4g}", f"{getattr(START, name):g}", MEANING[name]) for name, value in found.constants["9.x"].items()
        )), "",
        f"These {len(BOUNDS)} constants are fitted on all rows of H100 below by `scripts/accuracy time --fit`. Then, on rows of "
        f"their own, {others}; the rest of Blackwell's is Hopper's (fp4_of_fp8: products in FP4 reach so much of FP8's share). On Hopper attention's efficiency "
        f"is fixed at {START.attention:g}. Everywhere the host's part of a step beside its passes at {START.step_s:g} s.", "",
        "Errors by GPU type and kind of step, as `plan` prints them:", "",
        *table("steps of | rows: | off on average: | at worst: | inside the range:", errors(found)), "",
        f"`plan` multiplies its seconds by `low` and `high`: the 5th and 95th percentile of a class's measured over predicted seconds, "
        f"{STEPS_WIDENED:g} times as wide where they are of fewer than {ENOUGH_ROWS} models, of fewer than {FEW_MODELS} as far down as up, because so few may "
        "all err one way, and with experts then at least as wide as of dense models. "
        f"A class with fewer than {ENOUGH_ROWS} rows takes the widest of these ranges of its generation's classes and of the same class of others, {STEPS_WIDENED:g} times as wide; "
        "short steps take those of short ones.", "",
        *table("class | rows: | low: | high:", (
            (name, n, *(f"{end:.2f}" for end in step_spread(name, found.spreads)[:2])) for name, (_, _, n) in sorted(found.spreads.items())
        )), "",
        *_types_lines(found),
        *_tables(found),
        "Settings of one model, number of GPUs, precision and sequence whose measured times differ by more than "
        f"{LEAST_DIFFERENCE * 100:.0f} %; time of the first over that of the second:", "", *table("first | second | measured: | predicted: | right", (
            (pair.left.step.name, pair.right.step.name, signed(pair.measured), signed(pair.predicted), "yes" if pair.is_right else "no")
            for pair in pairs(found.compared)
        )), "",
        "Left out:", "", *(f"- {reason}: {', '.join(names)}" for reason, names in grouped((why, name) for name, why in left_out.items()).items()), "",
    ]  # fmt: skip


def _types_lines(found: Fit) -> list[str]:
    low, high, num = found.transfer
    inside = [_holds(found.borrowed_range_of(row), row) for row in found.without_type]
    rows = [
        (name, len(rows), plain(mean(abs(row.error) for row in rows)), signed(mean(row.error for row in rows)),
         f"{sum(_holds(found.borrowed_range_of(row), row) for row in rows)} of {len(rows)}")
        for name, rows in classes(found.without_type).items()
    ]  # fmt: skip
    return [
        "On a GPU type without measured steps of a kind, `plan` borrows: it names the types whose steps come nearest, and its range is wider. Steps predicted without "
        "any row of their own type, from their generation's other types or else from Hopper's constants, took "
        f"{low:.2f} to {high:.2f} times the predicted seconds, by the same percentiles of {num} steps; types count as models do. A borrowed range adds this error to that of the "
        f"class as independent ones: their logarithms add as squares. Made of other types' rows alone, such ranges hold {sum(inside)} of {num}:", "",
        *table("type left out, steps of | rows: | off on average: | mean error: | inside the borrowed range:", rows), "",
    ]  # fmt: skip


def _bound_of(name: str, value: float) -> str:
    """Say where a fit stopped at the bound of a constant: its rows ask for more than is possible."""
    apart = min(abs(log(value / each)) for each in BOUNDS.get(name, BOUNDS_OF_OTHERS))
    return " (at the bound of the fit)" if apart < 1e-3 else ""


def _tables(found: Fit) -> list[str]:
    texts = []
    for name, rows in classes(found.compared).items():
        texts += [f"{name}:", "", *_step_table(found, rows), "", _floor_text(noise_floor(rows)), ""]
    return texts


def _floor_text(floor: Floor) -> str:
    slow = f" {counted(floor.slow, 'run')} of {SLOW} times the shortest or more left out." if floor.slow else ""
    return (
        f"Noise: of {floor.num_runs} runs, {floor.num_repeated} share all settings with another run. A prediction by the geometric mean "
        f"of equal settings would be off by {plain(floor.repeated_error)} for these, by {plain(floor.error)} over all runs.{slow}"
    )


def _step_table(found: Fit, rows: Iterable[Compared]) -> list[str]:
    cells = []
    for row in rows:
        low, high = found.range_of(row)
        seconds = row.step.seconds
        cells.append((
            row.step.name, row.kind, f"{seconds:.3f}", f"{row.time.likely_s:.3f}", f"{low:.3f} to {high:.3f}", signed(row.error),
            signed(row.fitted_s / seconds - 1), "; ".join(row.step.taken_as),
        ))  # fmt: skip
    return table("row | class | measured s: | predicted s: | range s | error: | fitted: | ", cells)


def _is_inside(found: Fit, row: Compared) -> bool:
    return _holds(found.range_of(row), row)


def _holds(ends: tuple[float, float], row: Compared) -> bool:
    return ends[0] <= row.step.seconds <= ends[1]
