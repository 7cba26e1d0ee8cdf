"""Rules about megatron-core's recompute fields as other tools let them be written.

An ExperimentSpec cannot say any of this. Configurations that come from elsewhere can: an imported run, or a recipe of
Megatron-Bridge with an option on top.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.spec.frozen import Frozen
from harness.spec.recompute import MODULES
from harness.spec.rules.finding import SEVERITIES, Finding, Severity

_CONFIG = "transformer_config.py"
_ARGUMENTS = "megatron/training/arguments.py at core_v0.16.1"


class RawRecompute(Frozen):
    """The fields as they stand in a `TransformerConfig` call; ``recompute_modules`` may be the string it should not be."""

    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | str | None = None
    distribute_saved_activations: bool = False
    moe_layer_recompute: bool = False
    num_microbatches_with_partial_activation_checkpoints: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether whole layers are asked for."""
        return self.recompute_granularity == "full"

    @property
    def is_selective(self) -> bool:
        """Whether modules are asked for."""
        return self.recompute_granularity == "selective"

    @property
    def num_layers_too_small(self) -> bool:
        """Whether a number of layers was given that is none."""
        return self.is_full and self.recompute_num_layers is not None and self.recompute_num_layers < 1

    @property
    def unknown_modules(self) -> list[str]:
        """Names, or characters of a string, that are no modules."""
        return sorted(set(self.recompute_modules or ()) - set(MODULES))

    @property
    def unknown_listed(self) -> str:
        """The same as a set, the way megatron-core prints it."""
        return "{" + ", ".join(map(repr, self.unknown_modules)) + "}"


@dataclass(frozen=True)
class RawRule:
    """``when`` fires on fields; templates see them as ``{r}``. ``outcome`` is what megatron-core 0.16.1 does with them."""

    id: str
    severity: Severity
    when: Callable[[RawRecompute], bool]
    message: str
    fix: str
    source: str
    outcome: Literal["raises", "warns", "ignores", "hangs"]
    mcore_text: str | None = None


RAW_RULES = (
    RawRule("R01", "error", lambda r: r.recompute_granularity not in (None, "full", "selective"),
            "recompute_granularity {r.recompute_granularity!r}", "use full, selective, or leave it out",
            f"{_CONFIG}:1154", "raises",
            'When using recompute_granuarlity: {r.recompute_granularity} must be "full"or "selective".'),
    RawRule("R02", "error",
            lambda r: r.recompute_granularity is not None and r.recompute_method not in (None, "block", "uniform"),
            "recompute_method {r.recompute_method!r}", "use block or uniform",
            f"{_CONFIG}:1160", "raises", 'recompute_method: {r.recompute_method} must be "block" or "uniform".'),
    RawRule("R03", "error", lambda r: r.is_full and r.recompute_method is None,
            "full recompute without a method", "use block for the first N layers, uniform for all",
            f"{_CONFIG}:1165", "raises",
            'Using recompute_granularity: full so recompute_method must be "block" or "uniform"'),
    RawRule("R04", "error",
            lambda r: r.is_full and r.recompute_method in ("block", "uniform") and r.recompute_num_layers is None,
            "full recompute without recompute_num_layers", "give a number between 1 and the layers of a model chunk",
            f"{_CONFIG}:1171", "raises",
            "When using recompute_granularity: full recompute_num_layers must be between 1 and "
            "num_layers_per_pipeline_rank: "),
    RawRule("R05", "error", lambda r: r.is_selective and r.recompute_num_layers is not None,
            "selective recompute with recompute_num_layers {r.recompute_num_layers}",
            "drop one: modules are recomputed in every layer",
            f"{_CONFIG}:1178", "raises",
            "When using recompute_granularity: selective recompute_num_layers must be None."),
    RawRule("R07", "error",
            lambda r: r.is_selective and r.recompute_num_layers is None and bool(r.unknown_modules),
            "recompute_modules {r.recompute_modules!r} names what is no module: {r.unknown_listed}",
            "give a list of names; a string is read as its characters",
            f"{_CONFIG}:1196", "raises", "Invalid choices for recompute_modules: "),
    RawRule("R14", "error", lambda r: r.moe_layer_recompute and r.is_full,
            "moe_layer_recompute with full recompute", "drop moe_layer_recompute",
            f"{_CONFIG}:1255", "raises",
            "Do not set --moe-layer-recompute with full recompute granularity. "),
    RawRule("R15", "warning", lambda r: r.moe_layer_recompute and not r.is_full,
            "moe_layer_recompute adds core_attn to moe where no modules are named", "use selective recompute of moe",
            f"{_CONFIG}:1255", "warns",
            "--moe-layer-recompute is deprecated. Use --recompute-granularity selective --recompute-modules moe_layer "
            "instead."),
    RawRule("T01", "error",
            lambda r: r.recompute_granularity is None and not r.moe_layer_recompute
            and (r.recompute_method is not None or r.recompute_num_layers is not None or bool(r.recompute_modules)),
            "recompute settings without recompute_granularity are ignored", "set recompute_granularity",
            f"{_CONFIG}:1153", "ignores"),
    RawRule("T02", "error", lambda r: r.is_selective and r.recompute_method in ("block", "uniform"),
            "selective recompute with recompute_method {r.recompute_method}: the method is ignored", "drop the method",
            f"{_CONFIG}:1160; {_ARGUMENTS}", "ignores",
            "recompute method is not yet supported for selective recomputing granularity"),
    RawRule("T03", "warning",
            lambda r: r.is_selective and r.recompute_modules is not None and not r.recompute_modules,
            "selective recompute of no module recomputes nothing", "name modules, or drop recompute_granularity",
            f"{_CONFIG}:1196", "ignores"),
    RawRule("T03", "note", lambda r: r.is_selective and r.recompute_modules is None,
            "selective recompute without modules means core_attn", "name the modules",
            f"{_CONFIG}:1193", "warns"),
    RawRule("T04", "warning", lambda r: r.is_full and bool(r.recompute_modules),
            "full recompute ignores recompute_modules", "drop the modules",
            f"{_CONFIG}:1195", "ignores"),
    RawRule("T05", "error", lambda r: r.num_layers_too_small and r.recompute_method == "uniform",
            "full:uniform:{r.recompute_num_layers} never ends its first forward", "use 1 or more",
            "transformer_block.py:532", "hangs"),
    RawRule("T06", "error", lambda r: r.num_layers_too_small and r.recompute_method == "block",
            "full:block:{r.recompute_num_layers} recomputes nothing", "use 1 or more, or no recompute",
            "transformer_block.py:546", "ignores"),
    RawRule("T09", "error", lambda r: r.distribute_saved_activations and not r.is_full,
            "distribute_saved_activations without full recompute has no effect", "drop it",
            f"transformer_block.py:500; {_ARGUMENTS}", "ignores",
            "distributed recompute activations is only application to full recompute granularity"),
    RawRule("T24", "warning", lambda r: r.num_microbatches_with_partial_activation_checkpoints is not None,
            "num_microbatches_with_partial_activation_checkpoints is read by the schedules, not by the layers",
            "drop it",
            "pipeline_parallel/schedules.py", "ignores"),
)  # fmt: skip


def check_raw(raw: RawRecompute) -> tuple[Finding, ...]:
    """Every rule that the fields violate, errors first."""
    findings = [
        Finding(
            id=rule.id,
            severity=rule.severity,
            message=rule.message.format(r=raw),
            fix=rule.fix,
            mcore_text=rule.mcore_text.format(r=raw) if rule.mcore_text else None,
        )
        for rule in RAW_RULES
        if rule.when(raw)
    ]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
