"""Compares predicted with published seconds. Ratios between settings are more reliable than seconds and come first."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean

import h100_fit
import h100_page
import published
from h100_fit import Fit, percentile
from korthikanti import Predictor, Row, alone, spec_of
from page import Page, plain, signed, table

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import Host
from harness.predict.flops import model_flops_per_step
from harness.predict.prediction import Prediction
from harness.predict.time_model import StepTime

_BASELINE = "kor-t4-22B-baseline"


def page(paper: Path, other: Path, sft: list[Row], h100: tuple[Fit, dict[str, str]], host: Host) -> Page:
    """Make the page. ``sft``: rows of the Llama3-70B page, whose throughput was predicted there. ``h100``: fit, rows left out."""
    rows = json.loads(paper.read_text())["rows"]
    predictor = Predictor.on(host)
    single = [spec for row in rows if row["id"].startswith("kor-t4") for spec in alone(row)]
    predictor.prepare(
        [*single, *(spec_of(row) for row in rows if row["step_s"] or row["mfu_percent"] or row["tflops_per_gpu"])]
    )
    layers = _layers([row for row in rows if row["id"].startswith("kor-t4")], predictor)
    models = _models([row for row in rows if row["id"].startswith("kor-t5")], predictor)
    steps = _steps([row for row in rows if row["mfu_percent"] or row["tflops_per_gpu"]], predictor)
    measured = _measured_steps(other, host)
    steps += [_step_row(timed.name, made, timed.measured_s) for timed, made in measured]
    layouts = layout_pairs([*_largest(timed for timed, _ in measured), *_published(h100[0])])
    settings = _settings(sft)
    ratios = [*layers, *models, *settings]
    costs = [abs(row["cost_error"]) for row in ratios]
    headline = (
        f"Cost of a setting against another: off by {_points(mean(costs))} on average, {_points(max(costs))} at worst. "
        f"{_seconds_by_gpu([*models, *steps])} {h100_page.headline(h100[0])}"
    )
    document = {
        "layers": layers,
        "models": models,
        "settings": settings,
        "steps": steps,
        "layouts": layouts,
        "h100": h100_page.document(*h100),
    }
    return Page("Predicted and published times", headline, document, [
        "One layer of the 22B model on A100, TP 8 (table 4 of Korthikanti et al. 2022); cost against no recompute:", "",
        *_cost_table(layers, "ms", 1e3), "",
        "Whole models on A100 (table 5); cost of full recompute against core attention with sequence parallelism:", "",
        *_cost_table(models, "s", 1), "",
        "Llama3-70B SFT on 32 H100, FP8; cost against core_attn at the same layout:", "", *_setting_table(settings), "",
        "Steps on A100 and B200 whose time or throughput was published:", "", *_step_table(steps), "",
        *h100_page.lines(*h100),
        "Layouts of one model, GPU, number of GPUs, precision and sequence; time of the first per sample over that of the second:", "",
        *_layout_table(layouts),
    ])  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """One measured step beside its prediction."""

    name: str
    spec: ExperimentSpec
    predicted_s: float
    measured_s: float

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what rows must share before their layouts are compared."""
        s = self.spec
        return s.model, s.gpu, s.num_gpus, s.compute_dtype, s.batch.seq_length

    @property
    def layout(self) -> tuple[object, ...]:
        """Return what `plan --over` and `--search` vary."""
        return self.spec.parallelism, self.spec.batch.micro_batch_size


def layout_pairs(rows: Sequence[Timed]) -> list[Row]:
    """Return every pair of different layouts of one kind, with the predicted and the measured ratio of their times."""
    found = []
    for first, second in combinations(rows, 2):
        if first.kind == second.kind and first.layout != second.layout:
            samples = second.spec.batch.global_batch_size / first.spec.batch.global_batch_size
            predicted, measured = first.predicted_s / second.predicted_s, first.measured_s / second.measured_s
            found.append({"first": first.name, "second": second.name, "predicted": predicted * samples,
                          "measured": measured * samples, "error": predicted / measured - 1})  # fmt: skip
    return found


def _largest(rows: Iterable[Timed]) -> list[Timed]:
    """Return for each layout the row with the largest batch: the others repeat its error."""
    found: dict[object, Timed] = {}
    for row in sorted(rows, key=lambda row: row.spec.batch.global_batch_size):
        found[row.kind, row.layout] = row
    return [*found.values()]


def _published(found: Fit) -> list[Timed]:
    """Return published steps on H100; of equal settings one."""
    rows = {row.step.spec.fingerprint: row for row in found.compared if row.step.origin == "published"}
    return [Timed(row.step.name, row.step.spec, row.time.likely_s, row.step.seconds) for row in rows.values()]


def keep_fit(paper: Path, other: Path, found: Fit, host: Host) -> None:
    """Keep what was fitted on H100, and the ranges of steps on GPUs whose constants are fixed, from their residuals."""
    h100_fit.write(found, {})
    rows = json.loads(paper.read_text())["rows"]
    predictor = Predictor.on(host)
    timed = [row for row in rows if row["step_s"] or row["mfu_percent"] or row["tflops_per_gpu"]]
    predictor.prepare(spec_of(row) for row in timed)
    steps = _models([row for row in timed if row["id"].startswith("kor-t5")], predictor)
    steps += _steps(timed, predictor)
    steps += [_step_row(each.name, made, each.measured_s) for each, made in _measured_steps(other, host)]
    ratios: dict[str, list[float]] = {}
    for step in steps:
        kind = {"a100": "8.x dense", "b200": "10.x dense"}[step["gpu"]]
        ratios.setdefault(kind, []).append(step["measured_s"] / step["predicted_s"])
    h100_fit.write(found, {k: (percentile(v, 0.05), percentile(v, 0.95), len(v)) for k, v in ratios.items()})


def _seconds_by_gpu(rows: list[Row]) -> str:
    texts = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        same = [row for row in rows if row["gpu"] == gpu]
        errors, in_range = [row["error"] for row in same], sum(row["in_range"] for row in same)
        texts.append(
            f"Seconds on {gpu.upper()}: off by {plain(mean(map(abs, errors)))} on average, "
            f"{signed(max(errors, key=abs))} at worst, {in_range} of {len(same)} inside the range."
        )
    return " ".join(texts)


def _layers(rows: list[Row], predictor: Predictor) -> list[Row]:
    seconds = {row["id"]: predictor.layer_seconds(row) for row in rows}
    base = next(row for row in rows if row["id"] == _BASELINE)
    return [
        _cost_row(row["id"][len("kor-t4-22B-") :], seconds[row["id"]], row["step_s"],
                  (seconds[_BASELINE], base["step_s"]))
        for row in rows
    ]  # fmt: skip


def _models(rows: list[Row], predictor: Predictor) -> list[Row]:
    """Pair full recompute with core attention of each model, as the paper does."""
    made = {row["id"]: predictor.whole(spec_of(row)) for row in rows}
    found = []
    for row in rows:
        control = row["id"].replace("-full", "-selSP")
        base = next(other for other in rows if other["id"] == control)
        times = (_seconds(made[control]), base["step_s"])
        new = _cost_row(row["id"][len("kor-t5-") :], _seconds(made[row["id"]]), row["step_s"], times)
        found.append(new | {"in_range": _is_in_range(made[row["id"]], row["step_s"]), "gpu": "a100"})
    return found


def _cost_row(name: str, predicted_s: float, measured_s: float, base: tuple[float, float]) -> Row:
    predicted_cost, measured_cost = predicted_s / base[0] - 1, measured_s / base[1] - 1
    return {
        "name": name, "predicted_s": predicted_s, "measured_s": measured_s, "error": predicted_s / measured_s - 1,
        "predicted_cost": predicted_cost, "measured_cost": measured_cost, "cost_error": predicted_cost - measured_cost,
    }  # fmt: skip


def _steps(rows: list[Row], predictor: Predictor) -> list[Row]:
    """Return rows with a published throughput: seconds follow from the model's FLOPs, which papers count alike."""
    found = []
    for row in rows:
        if row["step_s"]:
            continue
        spec = spec_of(row)
        made = predictor.whole(spec)
        rate = row["tflops_per_gpu"] or row["mfu_percent"] / 100 * spec.gpu_type.peak_flops["bf16"] / 1e12
        # Narayanan et al. count the recomputed forward pass as work done, Korthikanti et al. do not
        flops = model_flops_per_step(spec) + (made.recompute_flops if row["tflops_per_gpu"] else 0)
        found.append(_step_row(row["id"], made, flops / (rate * 1e12 * spec.num_gpus)))
    return found


def _measured_steps(source: Path, host: Host) -> list[tuple[Timed, Prediction]]:
    """Return runs of the other published peaks whose step time was kept, with their predictions."""
    cases, _ = published.read_cases(source)
    seconds = {row["path"]: row["step_time_s"] for row in json.loads(source.read_text())["rows"]}
    chosen = [case for case in cases if case.stage <= 0 and "simumax" in case.name]
    compared, _ = published.compare(chosen, host)
    return [
        (Timed(row.case.name, row.case.spec, _seconds(row.prediction), seconds[row.case.name]), row.prediction)
        for row in compared
    ]


def _step_row(name: str, made: Prediction, measured_s: float) -> Row:
    time = _time(made)
    return {
        "name": name, "predicted_s": time.likely_s, "range_s": list(time.range_s), "measured_s": measured_s,
        "gpu": made.spec.gpu, "error": time.likely_s / measured_s - 1, "in_range": _is_in_range(made, measured_s),
    }  # fmt: skip


def _settings(sft: list[Row]) -> list[Row]:
    """Return the throughput of one layout under several settings, the control first."""
    same = [row for row in sft if row["name"] == sft[0]["name"]]
    base = same[0]
    return [
        _cost_row(row["recompute"], 1 / row["predicted_tflops_per_gpu"], 1 / row["measured_tflops_per_gpu"],
                  (1 / base["predicted_tflops_per_gpu"], 1 / base["measured_tflops_per_gpu"]))
        for row in same[1:]
    ]  # fmt: skip


def _seconds(made: Prediction) -> float:
    return _time(made).likely_s


def _is_in_range(made: Prediction, seconds: float) -> bool:
    return _time(made).range_s[0] <= seconds <= _time(made).range_s[1]


def _time(made: Prediction) -> StepTime:
    """Return the predicted time; the GPU of every published run has known figures."""
    if made.time is None:
        raise ValueError(f"{made.spec.recipe} on {made.spec.gpu}: no step time is predicted")
    return made.time


def _points(share: float) -> str:
    return f"{share * 100:.1f} points"


def _cost_table(rows: Iterable[Row], unit: str, scale: float) -> list[str]:
    heads = f"setting | predicted {unit}: | published {unit}: | error: | predicted cost: | published cost:"
    shares = ("error", "predicted_cost", "measured_cost")
    return table(heads, (
        (r["name"], *(f"{r[name] * scale:.2f}" for name in ("predicted_s", "measured_s")), *(signed(r[name]) for name in shares))
        for r in rows
    ))  # fmt: skip


def _setting_table(rows: Iterable[Row]) -> list[str]:
    heads = "recompute | predicted cost: | published cost:"
    return table(heads, ((r["name"], signed(r["predicted_cost"]), signed(r["measured_cost"])) for r in rows))


def _step_table(rows: Iterable[Row]) -> list[str]:
    return table("run | predicted s: | range | published s: | error:", (
        (r["name"], f"{r['predicted_s']:.2f}", " to ".join(f"{end:.2f}" for end in r["range_s"]), f"{r['measured_s']:.2f}", signed(r["error"]))
        for r in rows
    ))  # fmt: skip


def _layout_table(rows: Iterable[Row]) -> list[str]:
    heads = "first | second | predicted: | published: | error:"
    rows_of = (
        (r["first"], r["second"], f"{r['predicted']:.2f}", f"{r['measured']:.2f}", signed(r["error"])) for r in rows
    )
    return table(heads, rows_of)
