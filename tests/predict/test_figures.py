"""Every figure of plans of shipped operating points, from the traces that mbr-perf brings, against `predicted.json`.

A change of the planner that means to change figures writes them anew: ``python -m tests.predict.test_figures``.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.launch.environment import this_host
from harness.plan.request import PlanRequest
from harness.plan.run import Planned, plan_request
from harness.plan.show import plan_page
from harness.predict.advice import advice, module_worths
from harness.predict.layouts import least_seconds
from harness.predict.model_states import least_bytes, state_bytes
from harness.resolve.recipe import Request
from harness.show.markup import markdown

DATA = Path(__file__).parents[1] / "data" / "predicted.json"
# Recipe, GPU and precision; then settings that plans read without another trace.
POINTS = {
    "llama3_8b h100 bf16": (),
    "llama3_8b b200 fp8_mx": (),
    "llama3_70b h100 fp8_cs": (),
    "llama3_70b gb200 bf16": (),
    "llama3_70b h100 bf16": ("optimizer.use_distributed_optimizer=false", "ddp.overlap_param_gather=false",
                             "optimizer.use_precision_aware_optimizer=false"),
    "gpt3_175b h100 bf16": (),
    "gpt_oss_120b h100 bf16": (),
    "mixtral_8x7b a100 bf16": ("optimizer.use_precision_aware_optimizer=true", "optimizer.exp_avg_dtype=bf16"),
    "deepseek_v3 h100 fp8_sc": (),
    "qwen3_235b_a22b h100 bf16": (),
    "qwen3_30b_a3b h100 bf16": (),
    "qwen3_next_80b_a3b h100 bf16": (),
}  # fmt: skip
_LARGE = ("deepseek_v3", "gpt_oss", "qwen3_235b", "qwen3_next")  # over half a second each


def planned(point: str, folder: Path) -> Planned:
    """All settings of a point that need few rows: without recompute, each module, and whole layers."""
    recipe, gpu, dtype = point.split()
    host = this_host()
    host = replace(host, shell={**host.shell, "XDG_CACHE_HOME": str(folder)})
    asked = Request(model_recipe_name=recipe, gpu=gpu, compute_dtype=dtype, set_values=POINTS[point])
    return plan_request(PlanRequest(asked=asked, use_calibration=False), host)


def figures(found: Planned) -> dict[str, object]:
    """The figures of the request, and of some of its settings, as JSON has them."""
    (layout,) = found.layouts
    plan, spec = layout.plan, layout.plan.spec
    rows = [row for row in plan.rows if row.prediction]
    shown = [row for row in rows if row.text.count(",") == 0 and row.text.rpartition(":")[2] in (row.text, "1", "3")]
    about = {
        "recommended": plan.recommended and plan.recommended.text,
        "riskier": plan.riskier and plan.riskier.text,
        "same_time": [row.text for row in plan.same_time],
        "not predicted": sorted(row.text for row in plan.rows if not row.prediction),
        "worths": [asdict(worth) for worth in module_worths(plan)],
        "advice": [(step.step, step.settles) for step in advice(plan)],
        "budget": plan.limits.budget_bytes,
        "needs": asdict(plan.limits.needs),
        "least": [least_bytes(spec), least_seconds(spec)],
        "states": asdict(state_bytes(spec)),
        "nearest": [each and [each.name, each.peak_error, each.throughput_error]
                    for each in (found.nearest_golden,)],
    }  # fmt: skip
    return {"plan": about, **{row.text: setting(row) for row in shown}}


def setting(row):
    """One line of figures: of the peak, its range, the stages together, the worst stage, and the seconds."""
    p = row.prediction
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead", "pool")
    return {
        "verdict": [row.verdict, row.is_certain, row.overhead, p.job_class, p.num_rows, p.num_of_ten_within(p.range_bytes[1])],
        "peak": [p.peak_bytes, *p.range_bytes, p.uneven_bytes, max(max(s.total + s.pool, s.whole_run) for s in p.stages) - p.peak_bytes, p.is_point_known],
        "stages": [stage.total for stage in p.stages],
        "parts": [sum(getattr(stage, part) for stage in p.stages) for part in parts],
        "worst": [p.worst.pp_rank, p.worst.peak, *p.worst.peaks.values(), *p.worst.passes.values(), *asdict(p.worst.parameters).values()],
        "time": p.time and [p.time.likely_s, *p.time.range_s, *list(asdict(p.time).values())[:5]],
        "flops": [p.model_flops, p.recompute_flops, p.tflops_per_gpu, p.mfu, p.hfu],
        "texts": len(p.assumptions),
    }  # fmt: skip


def near(value):
    """``value`` with every figure as one that the last digits of a float may miss."""
    if isinstance(value, dict):
        return {name: near(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [near(each) for each in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=pytest.mark.slow) if each.startswith(_LARGE) else each for each in POINTS]
)
def test_every_figure_of_a_shipped_point_is_the_known_one(point, tmp_path):
    found = planned(point, tmp_path)
    known = json.loads(DATA.read_text())[point]

    assert json.loads(json.dumps(figures(found))) == near(known)
    page = markdown(plan_page(found.layouts[0].plan, found.notes, show_all=True))
    assert "None" not in page


if __name__ == "__main__":
    every = {point: figures(planned(point, Path("/nonexistent"))) for point in POINTS}
    lines = (f"{json.dumps(point)}: {{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
             + "\n}" for point, rows in every.items())  # fmt: skip
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")
