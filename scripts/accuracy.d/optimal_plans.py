"""``scripts/accuracy --optimal``: the fastest plan by layer beside the best setting for all layers: results/optimal.

Every shipped H100 point is planned without CUDA graphs, in ten budgets between what its smallest setting needs and what it
needs without recompute. Rows of points that are not named stay as they are.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import optimal_time
from page import Page, plain, rows_of, table
from traces import h100_points

from harness.errors import BadRequestError
from harness.experiment.effective import settled_implementation
from harness.experiment.recompute import FullRecompute
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.plan.request import PlanRequest
from harness.plan.run import plan_request
from harness.predict.allocator_settings import asked_settings
from harness.predict.fastest import optimal
from harness.predict.mixes import Made
from harness.predict.reserved import estimated
from harness.predict.search import SAME_COST, Plan, Traces, judged
from harness.predict.search import Row as PlanRow
from harness.records.folders import results_dir
from harness.records.store import write_atomically
from harness.resolve.recipe import Request
from harness.show.terminal import narrate
from harness.units import GIB, MIB, grouped

FOLDER = results_dir() / "optimal"
BUDGETS = 10
# Points whose plans are to be faster in most budgets.
_NAMED = ("llama3_70b", "deepseek_v3")


@dataclass(frozen=True)
class Row:
    """One budget of a point: bytes that torch's allocator may use, both answers in seconds, and the bound of the second.

    Seconds are None without an answer, and ``reason`` says why; ``uniform`` is the best setting for all layers.
    """

    point: str
    budget_bytes: int
    uniform: str | None = None
    uniform_s: float | None = None
    optimal_s: float | None = None
    bound_s: float | None = None
    peak_bytes: int | None = None
    solved_in_s: float = 0.0
    reason: str = ""

    @property
    def gain(self) -> float:
        """Return the share of the uniform setting's time that the plan saves."""
        return 1 - self.optimal_s / self.uniform_s if self.optimal_s and self.uniform_s else 0.0

    @property
    def gap(self) -> float:
        """Return by how much a faster plan could be faster."""
        return max(0.0, self.optimal_s / self.bound_s - 1) if self.optimal_s and self.bound_s else 0.0


def write(host: Host, names: Sequence[str]) -> Page:
    """Plan the named points (default: all), and write all rows with a page. ``time`` names what is measured here."""
    if "time" in names:
        optimal_time.measure(host)
    path = FOLDER / "optimal.json"
    kept = grouped((row["point"], Row(**row)) for row in rows_of(path))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, asked in h100_points(names):
        narrate(name)
        kept[name] = list(_rows(name, Request(**asked, cuda_graph_impl="none"), host))
        rows = [row for point in sorted(kept) for row in kept[point]]
        write_atomically(path, json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    due = [
        Row(name, 0, reason=f"not searched yet; minutes for `scripts/accuracy --optimal {name}`")
        for name, _ in h100_points(())
        if name not in kept
    ]
    made = page([*(row for point in sorted(kept) for row in kept[point]), *due])
    write_atomically(FOLDER / "README.md", made.markdown())
    return made


def _rows(name: str, asked: Request, host: Host) -> Iterator[Row]:
    try:
        layout = plan_request(PlanRequest(asked=asked, fit_into_gib=1e4), host).made[0]
    except BadRequestError as error:
        yield Row(name, 0, reason=error.message)
        return
    made = replace(layout.plan, rows=tuple(map(_estimated, layout.plan.rows)))
    needs = {row.text: row.prediction.fits[2] for row in made.predicted if row.prediction and _is_by_layer(row)}
    low, high = min(needs.values()), needs.get("none", 0)
    mixes: Made = {}
    for step in range(BUDGETS):
        budget = low + (high - low) * step // BUDGETS + MIB
        yield _row(name, _within(made, budget), layout.traces, layout.settled.software, mixes)


def _is_by_layer(row: PlanRow) -> bool:
    """Return whether a plan by layer can do the same: it has no checkpoints over several layers."""
    policy = row.candidate.spec.recompute
    return not isinstance(policy, FullRecompute) or policy.method == "block" or policy.num_layers == 1


def _estimated(row: PlanRow) -> PlanRow:
    """Return the row with what its class of jobs needs, as plans by layer are judged; some settings are replayed."""
    if (found := row.prediction) is None:
        return row
    settings, _ = asked_settings(found.spec)
    held = tuple(estimated(found.spec, stage, settings) for stage in found.stages)
    return replace(row, prediction=replace(found, held=held))


def _within(plan: Plan, budget: int) -> Plan:
    """Return the plan with so many bytes for torch's allocator, its rows judged again."""
    limits = replace(plan.limits, capacity_bytes=round((budget + plan.limits.outside_bytes) / (1 - plan.limits.margin)))
    rows = tuple(replace(row, verdict=judged(row.prediction, limits)[0]) for row in plan.rows)
    return replace(plan, limits=limits, rows=rows)


def _row(name: str, made: Plan, traces: Traces, software: Software, mixes: Made) -> Row:
    found = optimal(made, traces, settled_implementation(made.spec), software, mixes=mixes)
    row = Row(name, made.limits.budget_bytes or 0, reason=found.reason)
    if (best := found.best_uniform) and best.prediction and best.prediction.time:
        row = replace(row, uniform=best.text, uniform_s=best.prediction.time.likely_s)
    if found.row and found.row.prediction and found.row.prediction.time:
        row = replace(
            row, optimal_s=found.row.prediction.time.likely_s, bound_s=found.bound, solved_in_s=found.solved_in_s,
            peak_bytes=found.row.prediction.peak_bytes,
        )  # fmt: skip
    return row


def page(rows: Sequence[Row]) -> Page:
    """Summarise the rows point by point, with all budgets of the named models."""
    by_point = grouped((row.point, row) for row in rows)
    answered = {name: own for name, own in by_point.items() if any(row.optimal_s for row in own)}
    solved = [row for own in answered.values() for row in own if row.optimal_s]
    faster = [row for row in solved if row.gain > SAME_COST]
    most = sum(sum(row in faster for row in own) >= 7 for own in answered.values())
    headline = (
        f"{len(answered)} H100 points in {BUDGETS} budgets each: the plan by layer is faster than the best setting for all layers in "
        f"{len(faster)} of {len(solved)} budgets, and in at least 7 of {BUDGETS} at {most} points. It saves "
        f"{plain(median(row.gain for row in solved))} of the step (median), {plain(max(row.gain for row in solved))} at most. "
        f"The bound proves {sum(row.gap <= 1e-6 for row in solved)} plans the fastest of their space; the largest gap is "
        f"{max(row.gap for row in solved):.2%}. The slowest took {max(row.solved_in_s for row in solved):.1f} s."
    )
    details = [line for name in answered if name.startswith(_NAMED) for line in _of_point(name, answered[name])]
    without = [
        f"* {name}: {why} ({sum(row.reason == why for row in own)} of {len(own)} budgets)"
        for name, own in by_point.items()
        for why in dict.fromkeys(row.reason for row in own if row.reason)
    ]
    return Page(
        "The fastest plan by layer", headline, {},
        [*_NOTES, "", *table("point | faster in: | median gain: | largest gain: | largest gap: | slowest s:", (
            (name, f"{sum(row in faster for row in own)} of {sum(bool(row.optimal_s) for row in own)}",
             plain(median(row.gain for row in own)), plain(max(row.gain for row in own)), f"{max(row.gap for row in own):.2%}",
             f"{max(row.solved_in_s for row in own):.1f}") for name, own in answered.items()))],
        [*optimal_time.section(), *details, *(["", "## Points and budgets without a plan", "", *without] if without else [])],
    )  # fmt: skip


_NOTES = (
    "Written by `scripts/accuracy --optimal`. Jobs run without CUDA graphs. Budgets are what torch's allocator may use: ten equal "
    "steps from what the smallest setting needs, with its whole range, to what no recompute needs. With less memory only "
    "checkpoints over several layers fit (`full:uniform:N`), which plans by layer do not have. Settings for all "
    "layers are judged by their estimates, as plans by layer are; `plan` replays some of them. Gain is the "
    "share of the step that the plan saves; above 0.1 % it counts as faster. Times are predictions. The seconds of the search are those of a "
    "machine that also did other work. On one pipeline stage `full:block:N` is nearly a plan by layer, so there is little to gain "
    "(`llama3_70b_peft_bf16_8_library`). Different commits wrote the rows: "
    "each run searches only the points that it names.",
)


def _of_point(name: str, rows: Sequence[Row]) -> list[str]:
    cells = (
        (f"{row.budget_bytes / GIB:.1f}", row.uniform or "-", f"{row.uniform_s:.3f}" if row.uniform_s else "-",
         f"{row.optimal_s:.3f}" if row.optimal_s else row.reason, f"{row.bound_s:.3f}" if row.bound_s else "-", plain(row.gain))
        for row in rows
    )  # fmt: skip
    return ["", f"## {name}", "", *table("GiB: | best setting | s: | plan by layer s: | bound s: | gain:", cells)]
