"""The page of published peaks: errors by class, causes, omitted rows, every case."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import published
from arguments import TREATMENTS
from page import Page, plain, signed, table
from published import Compared
from tables import ClassError, by_class, case_table, class_error, class_table, reason_table

from harness.launch.environment import Host

# Why predictions are off where they are. Nothing was tuned to them.
_MASK = (
    "Megatron-LM's data loader makes an attention mask of batch times sequence squared bytes (4 MB in the small models, 134 MB "
    "in GPT-7B), which stays alive once or, with pipeline parallelism, up to three times; runs of this harness make none"
)
_ROUTING = "with experts: the router of an untrained model spreads tokens unevenly; the middle of a prediction is even, its range is not"

_BOUNDED = "under CUDA graphs or FSDP"
# Title, file of inputs and causes of a page.
ABOUT = {
    "megatron_lm": ("Megatron-LM's functional tests", "megatron_lm_goldens.json", (
        _MASK, "with pipeline parallelism, some messages between stages outlive the step: 4 to 12 MB in these small models", _ROUTING,
    )),
    "other_published": ("GPT-7B, Llama3-70B cut to 12 layers, MLA with experts", "other_published.json", (_MASK, _ROUTING)),
    "experts": ("experts with overlap, offloading and natural routing", "experts.json", (_MASK, _ROUTING)),
}  # fmt: skip


def page(folder: Path, name: str, host: Host) -> Page:
    """Return every row of inputs in ``folder`` predicted or left out with the reason."""
    title, file, causes = ABOUT[name]
    source = folder / file
    cases, left_out = published.read_cases(source)
    compared, unpredicted = published.compare(cases, host)
    left_out |= unpredicted
    about = json.loads(source.read_text())["source"]
    whole = _in_parts(
        {
            "all that a spec says completely": [row for row in compared if row.case.is_exact],
            "taken for something alike": [row for row in compared if row.case.taken_as and not row.case.is_bounded],
            _BOUNDED: [row for row in compared if row.case.is_bounded],
        }
    )
    classes = by_class(compared, _class_of)
    treated = {name: sorted({n for case in cases for n in case.treatments.get(name, ())}) for name in TREATMENTS}
    document = {
        "source": about,
        "arguments": treated,
        "classes": [asdict(row) for row in (*whole, *classes)],
        "cases": [row.document() for row in compared],
        "left_out": left_out,
    }
    taken = {f"{row.case.name} {n}": text for row in compared for n, text in enumerate(row.case.taken_as)}
    details = [f"Source: {about}.", "", "What remains, and why:", "", *(f"- {cause}" for cause in causes), ""]
    details += [*reason_table("taken as", taken), ""] if taken else []
    details += [*reason_table("left out because", left_out), ""] if left_out else []
    arguments = ((name, f"{len(found)}: {', '.join(found)}") for name, found in treated.items() if found)
    became = table("what became of an argument | arguments", arguments)
    details += ["Any other argument leaves its row out by name.", "", *became, "", *case_table(compared)]
    return Page(
        f"Predicted and published peaks: {title}", _headline(compared, whole), document,
        [*class_table("class", (*whole, *classes)), "", *_attention_table(compared), "", *_rival_lines(compared)],
        details,
    )  # fmt: skip


def _headline(compared: list[Compared], whole: list[ClassError]) -> str:
    """Summarise dense models, models with experts, and runs with known bounds only, one by one."""
    eager = [row for row in compared if not row.case.is_bounded]
    parts = _in_parts(
        {
            "dense models": [row for row in eager if row.case.model == "dense"],
            "models with experts": [row for row in eager if row.case.model != "dense"],
            _BOUNDED: [row for row in compared if row.case.is_bounded],
        }
    )
    texts = (
        f"{row.kind}: mean error {signed(row.mean)}, mean size {plain(row.mean_absolute)}, worst {signed(row.worst)}, "
        f"{row.num_in_range} of {row.num_cases} inside the predicted range"
        for row in parts
    )
    return f"{sum(row.num_runs for row in whole)} runs in {len(compared)} cases; {'; '.join(texts)}."


def _in_parts(parts: dict[str, list[Compared]]) -> list[ClassError]:
    return [class_error(kind, rows) for kind, rows in parts.items() if rows]


def _rival_lines(compared: list[Compared]) -> list[str]:
    """Compare with the rival formula on one pipeline stage only, where it describes the recorded GPU."""
    rows = [row for row in compared if row.rival and row.case.spec.parallelism.pipeline_model_parallel_size == 1]
    if not rows:
        return []
    errors = [row.rival / row.measured - 1 for row in rows if row.rival]
    ours = class_error("", rows)
    return [
        f"Of {len(rows)} cases without pipeline and full recompute, estimate_training_memory of Megatron-Bridge is off by "
        f"{plain(mean(map(abs, errors)))} on average, {signed(max(errors, key=abs))} at worst; this planner by "
        f"{plain(ours.mean_absolute)} and {signed(ours.worst)}."
    ]


def _class_of(row: Compared) -> str:
    granularity = row.case.spec.recompute.granularity
    recompute = "no recompute" if granularity == "none" else f"{granularity} recompute"
    bounded = ", CUDA graphs or FSDP" if row.case.is_bounded else ""
    return f"{row.case.model}, {recompute}, {row.case.spec.gpu.upper()}{bounded}"


def _attention_table(compared: list[Compared]) -> list[str]:
    def kernel(row: Compared) -> str:
        spec = row.case.spec
        suffix, name = "" if spec.compute_dtype == "bf16" else f", {spec.compute_dtype}", spec.kernels.attention_backend
        if row.case.implementation == "local":
            return f"megatron-core's own layers{suffix}"
        return f"{'cuDNN' if name == 'auto' else name} attention{suffix}"

    return class_table("layers", by_class(compared, kernel))
