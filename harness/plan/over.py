"""Several layouts side by side: the recommended setting of each."""

from collections.abc import Sequence

from rich.text import Text

from harness.plan.show import peak_text, print_assumptions, range_text, size_unit, verdict_text
from harness.planning.advice import WITHOUT_GRAPHS
from harness.planning.search import Plan
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.showing.request_text import request_lines
from harness.units import GIB, MIB, format_percent, format_seconds


def print_layouts(console: Console, layouts: Sequence[tuple[str, Plan | None, str]], best: str | None) -> None:
    """One row per layout; those that are illegal, or fit with no setting, say why."""
    _print_request(console, next((plan for _, plan, _ in layouts if plan), None))
    unit = size_unit([row for _, plan, _ in layouts if plan for row in plan.rows])
    peak, both = f"Peak {unit}", f"Range {unit}"
    columns = ("Layout", "Recompute", peak, both, "Step", "TFLOP/s/GPU", "Cost", "")
    table = plain_table(*columns, right=(peak, both, "Step", "TFLOP/s/GPU", "Cost"))
    for name, plan, problem in layouts:
        if plan is None:
            table.add_row(name, Text(problem, style="dim"))
            continue
        row = plan.recommended
        if row is None or row.prediction is None:
            predicted = [r.prediction.peak_bytes for r in plan.rows if r.prediction]
            smallest = f"{min(predicted) / (GIB if unit == 'GiB' else MIB):.1f}" if predicted else "-"
            dear = plan.too_dear
            what = "nothing fits" if dear is None else f"too dear: {dear.text}, {format_percent(dear.overhead or 0)}"
            table.add_row(name, Text(what, style="red"), smallest, "", "", "", "", "OOM" if dear is None else "FITS")
            continue
        time, tflops = row.prediction.time, row.prediction.tflops_per_gpu
        table.add_row(
            f"{name} *" if name == best else name,
            row.text,
            peak_text(row.prediction, unit),
            range_text(row.prediction, unit),
            format_seconds(time.likely_s) if time else "-",
            f"{tflops:.0f}" if tflops else "-",
            "-" if row.overhead is None else format_percent(row.overhead),
            verdict_text(row),
        )
    show(console, table)
    about = "Cost is over the step without recompute of the same layout"
    limited = any(plan.limits.max_overhead is not None for _, plan, _ in layouts if plan)
    about += ", and so is the limit of --max_overhead" if limited else ""
    print_hanging(console, Text(about, style="dim"), 2)
    if any(plan.spec.cuda_graph.impl != "none" and plan.safe is None for _, plan, _ in layouts if plan):
        text = f"More may fit {WITHOUT_GRAPHS}, which forbid settings and widen ranges"
        print_hanging(console, Text(text, style="dim"), 2)
    chosen = next((plan for name, plan, _ in layouts if name == best and plan), None)
    if chosen and chosen.recommended:
        answer = f"{best}  --recompute {chosen.recommended.text}"
        print_hanging(console, Text.assemble(("Use ", "bold"), (answer, "bold green")), 4)
        _print_safe(console, layouts, chosen)
        print_assumptions(console, chosen)


def _print_safe(console: Console, layouts: Sequence[tuple[str, Plan | None, str]], chosen: Plan) -> None:
    """The fastest of all layouts' settings whose whole range fits, where the recommended one's does not."""
    best = chosen.recommended
    if best is None or (chosen.safe and chosen.safe.text == best.text):
        return
    safe = [(plan.seconds_per_token(plan.safe), name, plan.safe) for name, plan, _ in layouts if plan and plan.safe]
    if not safe:
        text = "Its whole range does not fit, nor does that of any other"
    else:
        _, name, row = min(safe, key=lambda each: each[0])
        text = f"Its whole range does not fit; the fastest whose does: {name}  --recompute {row.text}"
    print_hanging(console, Text(text), 4)


def _print_request(console: Console, plan: Plan | None) -> None:
    """What all layouts share, told by the first: the recipe, the batch and the limits."""
    if plan is None:
        return
    varied = ("Parallelism", "Recompute", "Fingerprint")
    lines = [line for line in request_lines(plan.spec) if not line.startswith(varied)]
    limits = plan.limits
    limit = "the memory is not known, nothing is judged" if limits.capacity_bytes is None else limits.said
    most = "" if limits.max_overhead is None else f", at most {limits.max_overhead * 100:g} % over no recompute"
    print_lines(
        console, [*lines, f"{'Limit':<13}{limit}{most}", "(of the first layout; what --over varies differs)", ""]
    )
