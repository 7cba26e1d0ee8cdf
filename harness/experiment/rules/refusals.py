"""Lists what megatron-core says when it refuses settings, to recognise it in the log of a job."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from string import Formatter

from harness.experiment.rules.check import RULES
from harness.experiment.rules.rulebook import entries, placeholder

_LEAST = 25  # characters of a message's fixed text; a shorter one may be of any program
_OF_TORCH = ("L13", "P21d", "P34d")  # other faults have the same text
_PRINTED = ("T30",)  # a job goes on
# Parts of messages that depend on the whole request, by the rule.
_PARTS: dict[str, tuple[str, ...]] = {
    "R13": ("moe_act and layernorm recompute for fp8 needs",),
    "R21": ("disable recomputation method when enabling overlap_moe_expert_parallel_comm",
            "recompute_num_layers must be None when enabling overlap_moe_expert_parallel_comm"),
    "G06": ("To use full iteration cuda graph, please use",),
    "P08": ("num_layers should be divisible by pipeline_model_parallel_size",
            "should be divisible by config.pipeline_model_parallel_size"),
    "P09": ("should be divisible by vp_size",),
    "P12": ("pipeline_model_parallel_layout must be divisible",),
    "P15": ("number of layers at first stage:", "number of layers at last stage:", "number of layers at middle stage:",
            "number of layers on each middle pipeline rank:", "middle layers remaining but",
            "left over layers must be divisible by left over stages"),
    "P16": ("number of middle layers:", "account_for_loss_in_pipeline_split must be divisible",
            "account_for_loss_in_pipeline_split) must be divisible"),
}  # fmt: skip
# Refusals that mbr-perf's own settings cannot cause: text, what is refused, what to do.
_OF_OTHERS = (
    ("When using recompute_granuarlity: ", "recompute_granularity is neither selective nor full",
     "use --recompute_granularity selective or full, or no recompute"),
    ('must be "block" or "uniform".', "recompute_method is neither block nor uniform", "use one of the two"),
    ('recompute_method must be "block" or "uniform"', "full recompute has no recompute_method",
     "add --recompute_method block or uniform"),
    ("recompute_num_layers must be between {}num_layers_per_pipeline_rank: {num_layers}",
     "recompute_num_layers of full recompute is missing, or above the layers of a pipeline rank",
     "use --recompute_num_layers 1 to <num_layers>"),
    ("recompute_num_layers must be None.", "recompute_num_layers belongs to full recompute, and modules are recomputed",
     "drop --recompute_num_layers, or ask for full recompute with --recompute_method block"),
    ("Invalid activation recompute method.", "full recompute of an MTP layer knows the methods uniform and block only",
     "use --recompute_method uniform or block, or no MTP layers"),
    ("Do not set --moe-layer-recompute with full", "--moe-layer-recompute is the old spelling of the module moe",
     "drop --moe-layer-recompute"),
    ("full scope cannot be used with other scopes", "the scope full means whole layers",
     "use an empty scope for whole layers, or only the parts"),
    ("Invalid cuda graph implementation", "this release does not know the implementation of CUDA graphs",
     "use --cuda_graph_impl none, local or transformer_engine"),
    ("moe_input_jitter_eps is not supported with graphed moe recomputation",
     "moe recompute inside a graph cannot replay moe_input_jitter_eps", "use no moe_input_jitter_eps, or drop moe"),
)  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """``pattern`` matches the message, with a group for each value in it. ``rule``: "" if no request breaks it.

    ``message`` and ``fix`` hold ``<name>`` where the value of a group belongs.
    """

    rule: str
    pattern: str
    message: str
    fix: str


@cache
def refusals() -> tuple[Refusal, ...]:
    """Return every message once, by its first rule."""
    return tuple({refusal.pattern: refusal for refusal in reversed(tuple(_refusals()))}.values())[::-1]


def _refusals() -> Iterator[Refusal]:
    texts = {entry.id: entry for entry in entries()}
    for rule in RULES:
        template = rule.mcore_text or ""
        is_own = template != "{mcore}" and len(re.sub(r"\{.*?\}", "", template)) >= _LEAST
        is_of_cpu = rule.id.startswith("CPU")  # of mbr-perf's own runs
        if rule.severity != "error" or is_of_cpu or rule.id in (*_OF_TORCH, *_PRINTED):
            continue
        for part in (*((template,) if is_own else ()), *_PARTS.get(rule.id, ())):
            yield Refusal(rule.id, _pattern(part), texts[rule.id].message, texts[rule.id].fix)
    for part, message, fix in _OF_OTHERS:
        yield Refusal("", _pattern(part), message, fix)


def _pattern(template: str) -> str:
    found = ""
    parts = tuple(Formatter().parse(template.strip()))
    for text, name, _, _ in parts:
        found += re.escape(text)
        if name is not None:
            group = placeholder(name).strip("<>")
            value = r"[\w.]{1,40}" if name == parts[-1][1] else ".{1,200}?"
            found += rf"(?P<{group}>{value})" if group.isidentifier() and f"<{group}>" not in found else value
    return found


def filled(text: str, values: Mapping[str, str | None]) -> str:
    """Return a text with the values of a match; the name stays where a value is unknown."""
    return re.sub(r"<(\w+)>", lambda name: values.get(name[1]) or name[0], text)


def without_unknown(fix: str) -> str:
    """Return a fix without the clauses that hold the name of an unknown value."""
    clauses = [clause for clause in re.split(r"(?<=[:,;]) ", fix) if not re.search(r"<\w+>", clause)]
    found = re.sub(r"^(?:or|and|but) ", "", " ".join(clauses)).rstrip(":,; ")
    return found if " " in found else "correct the setting that the message names"
