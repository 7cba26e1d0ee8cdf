"""The shapes that are trained, and which recompute settings are legal and act on each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import Target

from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.modules import MODULES
from harness.experiment.recompute import parse_recompute
from harness.experiment.rules.check import check
from harness.measure.understanding import RunRequest, Settled, settle
from harness.resolve.recipe import Request

FULL = ("full:uniform:1", "full:block:1")
FIRST = ("none", FULL[0])  # the settings that tell most: both ends of what recompute does
POINTS_OF = "h100"  # the recipes keep their points under one GPU type; every other type borrows them


@dataclass(frozen=True)
class Shape:
    """A recipe file of this folder. ``needs_te``: not trained where transformer-engine is not installed."""

    name: str
    recipe: Path
    needs_te: bool = False

    def asked(self, target: Target, **changes: Any) -> dict[str, Any]:
        """Return the fields of :class:`Request` that train this shape on ``target``, with ``changes``."""
        return {
            "model_recipe_name": str(self.recipe),
            "gpu": target.gpu,
            "point_gpu": None if target.is_rehearsal else POINTS_OF,
            "variant": target.variant(self.name),
            "compute_dtype": "bf16",
            **changes,
        }

    def options(self, target: Target, **changes: Any) -> tuple[str, ...]:
        """Return the same as options of `mbr-perf run`."""
        return tuple(options_of(self.asked(target, **changes)))

    def settle(self, target: Target, **changes: Any) -> Settled:
        """Return that request as mbr-perf understands it on this machine."""
        return settle(RunRequest(asked=Request(**self.asked(target, **changes))), target.host)


def shapes(recipes: Path) -> tuple[Shape, ...]:
    """Return dense, mixture of experts and latent attention; every machine can most likely train the first."""
    return (
        Shape("dense", recipes / "dense.yaml"),
        Shape("moe", recipes / "moe.yaml"),
        Shape("mla", recipes / "mla.yaml", needs_te=True),
    )


def options_of(asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of `mbr-perf run` for fields of :class:`Request`; None is an absent option."""
    for name, value in asked.items():
        if name == "set_values":
            for text in value:
                yield from ("--set", text)
        elif value is True:
            yield f"--{name}"
        elif value is not None:
            yield from (f"--{name}", str(value))


def legal_settings(settled: Settled) -> tuple[str, ...]:
    """Return no recompute, each module that acts, all of them together, and whole layers, without what a rule forbids."""
    single = [name for name in MODULES if acts(settled, name)]
    together = [",".join(single)] if len(single) > 1 and acts(settled, ",".join(single)) else []
    return ("none", *single, *together, *(text for text in FULL if acts(settled, text)))


def acts(settled: Settled, text: str) -> bool:
    """Return whether a setting is legal for this request and software, and every module it names does something."""
    spec = settled.spec.model_copy(update={"recompute": parse_recompute(text)})
    implementation = settled_implementation(spec)
    if any(finding.blocks for finding in check(spec, settled.software)):
        return False
    effect = effective_recompute(spec, implementation, settled.software)
    return not effect.does_nothing and not effect.inert_modules
