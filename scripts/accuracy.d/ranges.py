"""Ranges from errors of comparisons: quantiles by class, checked on models that are left out, into `ranges.json` and a page."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from page import Page, data_text, plain, signed, table
from times_fit import percentile

from harness.predict.ranges import CLASSES, DATA, ENOUGH_ROWS, WIDENED, CostError, JobClass, RatioError, Spread
from harness.records.store import write_atomically

SOURCES = ("megatron_lm", "other_published", "experts", "llama3_70b_sft", "cpu")
# Part of the measured peaks that a range holds.
SHARE = 0.9
# Widths tried one after another: what share the quantiles hold, and a factor on them.
_WIDTHS = ((0.9, 1.0), (0.95, 1.0), (0.98, 1.0), (1.0, 1.0), (1.0, 1.25), (1.0, 1.5))
# A setting that is predicted to make a step longer by less than this costs almost nothing.
_CHEAP = 0.01
# No range is narrower: releases of the same software differ by as much.
LEAST = 0.005
# Where one model has more of a class's rows, those of the others are too few to say how far it errs.
_NEARLY_ALL = 0.75
# Of peaks below this, bytes say how far predictions err, not shares.
TINY_BYTES = 1e9


@dataclass(frozen=True)
class Residual:
    """Measured over predicted peak, less 1, of one case; and over the peak with uneven routing."""

    kind: str
    model: str
    error: float
    uneven_error: float
    routed: bool
    predicted_bytes: int = 10**12


def residuals(folder: Path) -> list[Residual]:
    """One for each case of the comparisons kept in ``folder``; equal jobs on several software stacks are several."""
    found: list[Residual] = []
    for name in SOURCES:
        file = folder / f"{name}.json"
        document = json.loads(file.read_text()) if file.exists() else {}
        found += map(_residual, [*document.get("cases", ()), *document.get("rows", ())])
    return found


def _residual(case: dict[str, Any]) -> Residual:
    measured, predicted = case["measured_bytes"], case["predicted_bytes"]
    uneven, model = case.get("uneven_bytes", predicted), case.get("architecture") or case["variant"]
    kind = case.get("class", "CPU runs")
    return Residual(kind, model, measured / predicted - 1, measured / uneven - 1, uneven > predicted, predicted)


def spread(kind: JobClass, rows: Sequence[Residual]) -> Spread:
    """Return the spread of a class from ``rows`` of all classes."""
    return _spread(kind, rows, *_width(kind, rows))


def _spread(kind: JobClass, rows: Sequence[Residual], share: float, factor: float) -> Spread:
    """The quantiles of the class that hold ``share``, times ``factor``; those of the nearest class too, where it has few rows."""
    own = [row for row in rows if row.kind == kind.name]
    is_small = len(own) < ENOUGH_ROWS and kind.nearest is not None
    used = [row for row in rows if row.kind in (kind.name, *((kind.nearest,) if is_small else ()))]
    lower, higher, uneven = _quantiles(used, share)
    if is_small:  # routing may err in either direction by as much
        uneven = max(uneven, -lower)
    lower, higher = min(lower * factor, -LEAST), max(higher * factor, LEAST)
    uneven *= factor if uneven > 0 else 1 / factor
    found = Spread(len(own), round(lower, 4), round(higher, 4), round(uneven, 4), least_bytes=_least_bytes(own))
    return replace(found, tenths=_tenths([_part(row, found) * (factor if is_small else 1.0) for row in used]))


def _least_bytes(rows: Iterable[Residual]) -> int:
    """Return the bytes that hold nine of ten errors of tiny models; 0 with fewer than `ENOUGH_ROWS` of them."""
    tiny = [row for row in rows if row.kind != "CPU runs" and (1 + row.error) * row.predicted_bytes < TINY_BYTES]
    sizes = sorted(abs(row.error) * row.predicted_bytes for row in tiny)
    return round(sizes[min(len(sizes), ceil((len(sizes) + 1) * SHARE)) - 1]) if len(sizes) >= ENOUGH_ROWS else 0


def _part(row: Residual, found: Spread) -> float:
    """How far the measured peak is on the way from the predicted one to the upper end of the range; 1 at that end."""
    peak = 10**12
    uneven = round(peak * (1 + row.error) / (1 + row.uneven_error)) if row.routed else peak
    return row.error / (max(found.around(peak, uneven)[1] / peak - 1, LEAST))


def _tenths(parts: Sequence[float]) -> tuple[float, ...]:
    """The parts below which one to nine of ten lie, with the correction for few ones: (n + 1) p-th in order, rounded up."""
    ordered = sorted(parts)
    places = (min(len(ordered), ceil((len(ordered) + 1) * tenth / 10)) for tenth in range(1, 10))
    return tuple(round(ordered[place - 1], 3) for place in places)


def _quantiles(rows: Sequence[Residual], share: float) -> tuple[float, float, float]:
    """Lower and higher end of the errors, and the higher end over uneven routing, from the routed rows.

    Where routing explains most errors upwards, an evenly routed job may err upwards as far as downwards.
    """
    lower, higher = _ends(map(unexplained, rows), share)
    routed = [row.uneven_error for row in rows if row.routed]
    if not routed:
        return lower, higher, higher
    return lower, max(higher, -lower), _ends(routed, share)[1]


def _ends(values: Iterable[float], share: float) -> tuple[float, float]:
    """Both ends of what holds ``share`` of new values, with the correction for few ones: (n + 1) p-th in order."""
    ordered = sorted(values)
    below = max(0, int((len(ordered) + 1) * (1 - share) / 2) - 1)
    return round(ordered[below], 5), round(ordered[-1 - below], 5)


def unexplained(row: Residual) -> float:
    """The error that uneven routing does not explain."""
    if not row.routed:
        return row.error
    return row.uneven_error if row.uneven_error > 0 else min(row.error, 0.0)


def is_inside(row: Residual, found: Spread) -> bool:
    """Whether the measured peak lies in the range."""
    if abs(row.error) * row.predicted_bytes <= found.least_bytes:
        return True
    over = row.uneven_error <= found.higher_uneven or row.error <= 0 if row.routed else row.error <= found.higher
    return row.error >= found.lower and over


def coverage(kind: JobClass, rows: Sequence[Residual]) -> float | None:
    """Return the part of the class that lies in ranges made without the rows of its own model; None without rows."""
    return _coverage(kind, rows, *_width(kind, rows))


def _width(kind: JobClass, rows: Sequence[Residual]) -> tuple[float, float]:
    """Return the first of `_WIDTHS` that holds models left out often enough, else the last. A small class has its own."""
    if sum(row.kind == kind.name for row in rows) < ENOUGH_ROWS and kind.nearest is not None:
        return 1.0, WIDENED
    return next((width for width in _WIDTHS if (_coverage(kind, rows, *width) or 0.0) >= SHARE), _WIDTHS[-1])


def _coverage(kind: JobClass, rows: Sequence[Residual], share: float, factor: float) -> float | None:
    own = [row for row in rows if row.kind == kind.name]
    inside = 0
    for left_out, others in _folds(own, rows):
        if any(row.kind in (kind.name, kind.nearest) for row in others):
            found = _spread(kind, others, share, factor)
            inside += sum(is_inside(row, found) for row in left_out)
    return inside / len(own) if own else None


def _folds(own: Sequence[Residual], rows: Sequence[Residual]) -> Iterator[tuple[list[Residual], list[Residual]]]:
    """Yield the rows of each model, and the rows of the others; of a model with nearly all rows, every row by itself."""
    for model in {row.model for row in own}:
        mine = [row for row in own if row.model == model]
        if len(mine) > _NEARLY_ALL * len(own):
            yield from (([row], [other for other in rows if other is not row]) for row in mine)
        else:
            yield mine, [row for row in rows if row.model != model]


def costs(folder: Path) -> CostError:
    """Return the error of predicted costs, from the pairs of `time.json` that differ in their recompute setting alone."""
    document = json.loads((folder / "time.json").read_text())
    pairs = [row for row in document["layers"] if row["name"] in ("full", "sel")]
    pairs += [row for row in document["models"] if row["name"].endswith("-full")] + document["settings"]
    cheap = [row for row in pairs if row["predicted_cost"] < _CHEAP]
    errors = [abs(row["cost_error"] / row["predicted_cost"]) for row in pairs if row["predicted_cost"] >= _CHEAP]
    least = max(abs(row["cost_error"]) for row in cheap)
    return CostError(round(percentile(errors, SHARE), 4), round(least, 4), len(pairs))


def layouts(folder: Path) -> RatioError:
    """Return the error of the predicted ratio of two layouts' times, from the pairs of `time.json`."""
    pairs = json.loads((folder / "time.json").read_text())["layouts"]
    errors = [max(1 + pair["error"], 1 / (1 + pair["error"])) - 1 for pair in pairs]
    return RatioError(round(percentile(errors, SHARE), 4), len(pairs))


def page(folder: Path) -> Page:
    """Writes the file that the planner reads, from the comparisons kept in ``folder``."""
    rows = residuals(folder)
    made = {kind.name: spread(kind, rows) for kind in CLASSES}
    covered = {kind.name: coverage(kind, rows) for kind in CLASSES}
    about = "written by `scripts/accuracy ranges` from results/accuracy; shares of the predicted peak"
    cost, ratio = costs(folder), layouts(folder)
    document = {
        "about": about,
        "costs": asdict(cost),
        "layouts": asdict(ratio),
        "classes": {
            name: {key: value for key, value in asdict(found).items() if value or key != "least_bytes"}
            for name, found in made.items()
        },
    }
    write_atomically(DATA, data_text(document))
    total = [share * made[name].num_rows for name, share in covered.items() if share is not None]
    headline = (
        f"Ranges hold {plain(sum(total) / len(rows))} of {len(rows)} measured peaks when they are made without "
        "the rows of the model that they are about."
    )
    return Page(
        "Ranges of predicted peaks", headline,
        {"costs": asdict(cost), "layouts": asdict(ratio), "classes": {name: asdict(found) | {"coverage": covered[name]} for name, found in made.items()}},
        [
            *_table(rows, made, covered), "", *_NOTES, "",
            f"Costs of recompute settings: in {SHARE * 100:.0f} % of {cost.num_rows} measured pairs a predicted cost errs by at most "
            f"{plain(cost.share)} of itself; one that is predicted as nothing, by {plain(cost.least)} of the step. Two settings "
            "whose costs differ by less have the same time for `plan`.", "",
            f"Layouts: in {SHARE * 100:.0f} % of {ratio.num_rows} measured pairs of one model, GPU, number of GPUs and precision the "
            f"predicted ratio of their times errs by at most {plain(ratio.share)}. Layouts whose times differ by less have the same "
            "time for `plan`.",
        ],
    )  # fmt: skip


_NOTES = (
    f"A class with {ENOUGH_ROWS} cases or more has the narrowest quantiles that hold {SHARE * 100:.0f} % of its cases when the rows of "
    f"their model are left out, at least {LEAST * 100:g} % on both sides; where none do, its widest errors times {WIDENED:g}. A smaller "
    f"class takes the widest errors of itself and of its nearest class, times {WIDENED:g}, and `plan` prints its number of rows beside the range.",
    f"Peaks below {TINY_BYTES / 1e9:g} GB err by bytes, not by shares: a data loader or a message leaves as much beside any model. The range "
    f"of a class with {ENOUGH_ROWS} such cases goes at least as far, either way, as nine of ten of them err.",
    "Where a router decides how many tokens a rank receives, the upper end counts from the peak with uneven routing.",
    "Coverage: the rows of one model are left out, ranges are made from the others, and the rows left out are looked for in them. Of a "
    f"model with over {_NEARLY_ALL * 100:.0f} % of the rows, one row is left out at a time: the others are too few.",
)


def _table(rows: Sequence[Residual], made: dict[Any, Spread], covered: dict[Any, float | None]) -> list[str]:
    cells = []
    for kind in CLASSES:
        found, share = made[kind.name], covered[kind.name]
        num_models = len({row.model for row in rows if row.kind == kind.name})
        nearest = kind.nearest if found.num_rows < ENOUGH_ROWS else ""
        ends = map(signed, (found.lower, found.higher, found.higher_uneven))
        inside = "-" if share is None else plain(share)
        width = plain(found.higher - found.lower)
        least = f"{found.least_bytes / 1e6:.0f} MB" if found.least_bytes else ""
        cells.append((kind.name, found.num_rows, num_models, *ends, width, least, inside, nearest or ""))
    figures = (
        "lower: | higher: | higher, from uneven routing: | width: | at least, either way: | inside, own model left out:"
    )
    return table(f"class | cases: | models: | {figures} | nearest", cells)
