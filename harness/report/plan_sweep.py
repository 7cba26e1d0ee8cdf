"""Several layouts side by side: the recommended setting of each."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.planning.search import Plan
from harness.report.plan_terminal import print_assumptions
from harness.report.printing import plain_table, print_hanging, show
from harness.units import GIB, format_percent, format_seconds


def print_layouts(console: Console, layouts: Sequence[tuple[str, Plan | None, str]], best: str | None) -> None:
    """One row per layout; those that are illegal, or fit with no setting, say why."""
    columns = ("Layout", "Recompute", "Peak GiB", "Step", "TFLOP/s/GPU", "Cost", "")
    table = plain_table(*columns, right=("Peak GiB", "Step", "TFLOP/s/GPU", "Cost"))
    for name, plan, problem in layouts:
        if plan is None:
            table.add_row(name, Text(problem, style="dim"))
            continue
        row = plan.recommended
        if row is None or row.prediction is None:
            predicted = [r.prediction.peak_bytes for r in plan.rows if r.prediction]
            smallest = f"{min(predicted) / GIB:.1f}" if predicted else "-"
            dear = plan.too_dear
            what = "nothing fits" if dear is None else f"too dear: {dear.text}, {format_percent(dear.overhead or 0)}"
            table.add_row(name, Text(what, style="red"), smallest, "", "", "", "OOM" if dear is None else "FITS")
            continue
        time, tflops = row.prediction.time, row.prediction.tflops_per_gpu
        table.add_row(
            f"{name} *" if name == best else name,
            row.text,
            f"{row.prediction.peak_bytes / GIB:.1f}",
            format_seconds(time.likely_s) if time else "-",
            f"{tflops:.0f}" if tflops else "-",
            "-" if row.overhead is None else format_percent(row.overhead),
            row.verdict or "",
        )
    show(console, table)
    about = "Cost is over the step without recompute of the same layout"
    limited = any(plan.limits.max_overhead is not None for _, plan, _ in layouts if plan)
    about += ", and so is the limit of --max_overhead" if limited else ""
    print_hanging(console, Text(about, style="dim"), 2)
    chosen = next((plan for name, plan, _ in layouts if name == best and plan), None)
    if chosen and chosen.recommended:
        answer = f"{best}  --recompute {chosen.recommended.text}"
        print_hanging(console, Text.assemble(("Use ", "bold"), (answer, "bold green")), 4)
        print_assumptions(console, chosen)
