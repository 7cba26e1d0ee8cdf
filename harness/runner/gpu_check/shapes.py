"""The shapes that are trained, and which recompute settings are legal and act on each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.recipes.request import Request
from harness.runner.gpu_check.target import Target
from harness.runner.request import RunRequest
from harness.runner.understanding import Settled, settle
from harness.spec.effective import effective_recompute, settled_implementation
from harness.spec.recompute import MODULES, parse_recompute
from harness.spec.rules.check import check

FULL = ("full:uniform:1", "full:block:1")

# Full-width points are kept under one GPU type and borrowed by every other.
POINTS_OF = "h100"


@dataclass(frozen=True)
class Shape:
    """A recipe file of scripts/gpu-check.d. ``needs_te``: left out where transformer-engine is not installed."""

    name: str
    recipe: Path
    needs_te: bool = False

    def options(self, target: Target) -> tuple[str, ...]:
        """What `mbr-perf run` is told to train this shape on ``target``; the recompute setting is the caller's."""
        options = ["-mr", str(self.recipe), "--gpu", target.gpu, "--compute_dtype", "bf16"]
        if not target.is_rehearsal:
            options += ["--point_gpu", POINTS_OF]
        variant = target.variant(self.name)
        return (*options, "--variant", variant) if variant else tuple(options)

    def request(self, target: Target, dtype: str = "bf16", attention: str | None = None) -> Request:
        """The same for the product's own code, in another precision or with a named attention."""
        return Request(
            model_recipe_name=str(self.recipe),
            gpu=target.gpu,
            point_gpu=None if target.is_rehearsal else POINTS_OF,
            variant=target.variant(self.name),
            compute_dtype=dtype,
            set_values=(f"kernels.attention_backend={attention}",) if attention else (),
        )

    def fingerprint(self, target: Target, **asked: Any) -> str:
        """Of a run of this shape on ``target`` with the options ``asked``, named as in :class:`Request`."""
        request = replace(self.request(target), **asked)
        return settle(RunRequest(asked=request), target.host).spec.fingerprint

    def settle(self, target: Target, dtype: str = "bf16", attention: str | None = None) -> Settled:
        """That request as the product understands it on this machine."""
        return settle(RunRequest(asked=self.request(target, dtype, attention)), target.host)


def shapes(recipes: Path) -> tuple[Shape, ...]:
    """Dense, mixture of experts, latent attention: in the order of what a machine most likely can do."""
    return (
        Shape("dense", recipes / "dense.yaml"),
        Shape("moe", recipes / "moe.yaml"),
        Shape("mla", recipes / "mla.yaml", needs_te=True),
    )


def options_of(asked: Mapping[str, Any]) -> Iterator[str]:
    """Options of `mbr-perf run`, from fields of :class:`Request`."""
    for name, value in asked.items():
        values = [("--set", text) for text in value] if name == "set_values" else [(f"--{name}", str(value))]
        for option in values:
            yield from option


def legal_settings(settled: Settled) -> tuple[str, ...]:
    """No recompute, each module that acts, all of them at once, whole layers: whatever no rule forbids."""
    single = [name for name in MODULES if acts(settled, name)]
    together = [",".join(single)] if len(single) > 1 and acts(settled, ",".join(single)) else []
    return ("none", *single, *together, *(text for text in FULL if acts(settled, text)))


def acts(settled: Settled, text: str) -> bool:
    """Whether a setting is legal for this request and software, and every module it names does something."""
    spec = settled.spec.model_copy(update={"recompute": parse_recompute(text)})
    implementation = settled_implementation(spec)
    if any(finding.blocks for finding in check(spec, settled.software, implementation=implementation)):
        return False
    effect = effective_recompute(spec, implementation, settled.software)
    return not effect.does_nothing and not effect.inert_modules
