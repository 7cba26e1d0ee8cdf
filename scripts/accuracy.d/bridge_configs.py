"""Predictions for the configurations that Megatron-Bridge resolved beside those for our recipe points of the same name."""

import importlib
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import Page, signed, table
from published import on_te

from harness.errors import BadRequestError
from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.foreign.container_fields import other_effects
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.measure.checking import in_one_sentence
from harness.measure.prediction import KeptPrediction, predict_with
from harness.predict.assumptions import imbalance_of
from harness.predict.stages import Composer
from harness.predict.tracer import Tracing, trace_cache
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve

_SCRIPTS = Path(__file__).parents[1]
ARCHIVE = _SCRIPTS.parent / "tests" / "data" / "bridge" / "containers_067f987.tar.xz"
ALIKE = 0.005  # of the peak
_NO_EFFECT = ("optimizer.lr", "optimizer.weight_decay", "model.moe.moe_aux_loss_coeff")
_LAYERS: Implementation = "transformer_engine"


@dataclass(frozen=True)
class Row:
    """One file: predicted peak bytes and seconds of both, or why it was refused, and the settings in which they differ."""

    point: str
    file: str
    ours: tuple[int, float] | None
    theirs: tuple[int, float] | None
    differs_in: tuple[str, ...]
    why: str = ""

    @property
    def differences(self) -> tuple[float, float] | None:
        """Return by how much peak and step of the file differ from ours, as shares."""
        if self.ours is None or self.theirs is None:
            return None
        return self.theirs[0] / self.ours[0] - 1, self.theirs[1] / self.ours[1] - 1

    @property
    def is_alike(self) -> bool:
        return self.differences is not None and all(abs(each) <= ALIKE for each in self.differences)


def page(host: Host) -> Page:
    """Plan every recorded pretraining and fine-tuning file, and our point of the same name."""
    rows = list(_rows(host))
    read = [row for row in rows if row.differences is not None]
    alike = sum(row.is_alike for row in read)
    headline = (
        f"{len(read)} of {len(rows)} files planned; {alike} of them within {ALIKE:.1%} of our point's peak and step. "
        f"The table explains the others."
    )
    document: dict[str, Any] = {"rows": [vars(row) | {"differences": row.differences} for row in rows]}
    notes = ["A file is read by `--bridge_config`; the setting is the file's own. Nothing here is measured."]
    return Page("Plans of Megatron-Bridge's files beside plans of our recipes", headline, document, _table(rows), notes)


def _rows(host: Host) -> Iterator[Row]:
    pairs, kept = list(_pairs()), _of_audit("compare").read_kept()
    tracing = Tracing(host, trace_cache(host.shell), timeout_s=7200.0)
    specs = (spec for _, _, pair in pairs if not isinstance(pair, str) for spec in pair)
    tracing.by_kind(
        ((_LAYERS, imbalance_of(spec)), Composer(spec, _LAYERS).cases()) for spec in specs
    )  # into the cache
    for point, file, pair in pairs:
        if isinstance(pair, str):
            yield Row(point, file, None, None, (), pair)
            continue
        ours, theirs = pair
        software, _ = software_for(ours.gpu, host)
        left, right = (predict_with(tracing, spec, software) for spec in pair)
        found = {path: each for path, each in other_effects(ours, theirs).items() if path not in _NO_EFFECT}
        reasons = [row.reason for row in kept for path in found if row.covers(path, point)]
        differs = (*(f"{path}: {value}, ours {own}" for path, (own, value) in found.items()), *reasons)
        yield Row(point, file, _figures(left), _figures(right), differs, right.reason or left.reason)


def _of_audit(name: str) -> Any:
    """Return a module of scripts/audit-bridge-recipes.d, which knows the file of each point and why they differ."""
    folder = str(_SCRIPTS / "audit-bridge-recipes.d")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def _pairs() -> Iterator[tuple[str, str, tuple[ExperimentSpec, ExperimentSpec] | str]]:
    """Yield each point with its file and the settled experiments of both, ours first, or why there are none."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(ARCHIVE) as archive:
        archive.extractall(name, filter="data")
        for each in _of_audit("ask").bridge_points():
            key = each.point.key
            asked = {"gpu": key.gpu, "num_gpus": key.num_gpus}
            source = ForeignSource("bridge_config", f"{name}/{each.file}")
            recipe = each.name.partition(".")[0]
            of_point = {"task": key.task, "compute_dtype": key.compute_dtype, "variant": key.variant}
            try:
                theirs = on_te(resolve(Request(model_recipe_name="", source=source, **asked)).spec)
                ours = on_te(resolve(Request(model_recipe_name=recipe, **asked, **of_point)).spec)
            except BadRequestError as error:
                yield each.name, each.file, in_one_sentence(error).replace(f"{name}/", "")
            else:
                yield each.name, each.file, (ours, theirs)


def _figures(made: KeptPrediction) -> tuple[int, float] | None:
    found = made.prediction
    return None if found is None or found.step_time_s is None else (found.peak_bytes, found.step_time_s)


def _table(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        if row.is_alike:
            continue
        peaks = ["-"] * 4
        if row.ours and row.theirs and row.differences:
            peak, step = row.differences
            peaks = [f"{row.ours[0] / 1e9:.2f}", f"{row.theirs[0] / 1e9:.2f}", signed(peak), signed(step)]
        cells.append((row.point, *peaks, "; ".join((*row.differs_in, *([row.why] if row.why else [])))))
    return table("point | ours GB: | file GB: | peak: | step: | why they differ", cells)
