"""The rules as text, and the messages of megatron-core and others that refuse settings, to recognise them in a log."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from string import Formatter

from harness.errors import BadRequestError, nearest
from harness.experiment.rules.check import RULES
from harness.experiment.rules.rule import SEVERITIES, Rule

EVIDENCE = {
    "run": "seen in a run of megatron-core 0.16.1 on CPU",
    "source": "read in the source, not run",
    "issue": "reported upstream",
    "harness": "a limit or a judgement of mbr-perf itself",
}
# Summaries of rows whose message experiment/layout.py computes.
_ABOUT = {
    "P08": "num_layers is not a multiple of pipeline_model_parallel_size",
    "P09": "the layers of a pipeline stage are not a multiple of virtual_pipeline_model_parallel_size",
    "P10": "num_layers_in_first/last_pipeline_stage excludes account_for_embedding/loss_in_pipeline_split",
    "P11": "pipeline_model_parallel_layout excludes num_layers_in_first/last_pipeline_stage and account_for_*",
    "P12": "the stages of pipeline_model_parallel_layout are not a multiple of pipeline_model_parallel_size",
    "P13": "pipeline_model_parallel_layout cannot be read, or does not hold the model's layers",
    "P14": "pipeline_model_parallel_layout and virtual_pipeline_model_parallel_size disagree",
    "P15": "stages of given sizes do not divide the layers between them, or into virtual stages",
    "P16": "layers with embedding and loss counted in do not divide over pipeline or virtual stages",
    "A12": "virtual stages need more than one pipeline stage",
}
_SYMBOLS = {
    "tp": "TP",
    "pp": "PP",
    "cp": "CP",
    "ep": "EP",
    "etp": "ETP",
    "dp": "DP",
    "mcore_name": "version",
    "impl": "cuda_graph_impl",
}


@dataclass(frozen=True)
class Entry:
    """One rule as text, with a request's values as ``<name>``. ``versions`` are megatron-core's."""

    id: str
    severity: str
    message: str
    fix: str
    mcore_text: str | None
    versions: str
    evidence: str
    source: str


def entries(severity: str | None = None) -> tuple[Entry, ...]:
    """Return all rules, or those of one severity, in id order. BadRequestError for an unknown severity."""
    if severity is not None and severity not in SEVERITIES:
        raise BadRequestError(f"--severity {severity!r}: no such severity", remedy=nearest(severity, SEVERITIES))
    found = (_entry(rule) for rule in RULES if rule.severity == (severity or rule.severity))
    return tuple(sorted(found, key=lambda entry: _order(entry.id)))


def entries_named(rule: str) -> tuple[Entry, ...]:
    """Return the entries of one id. BadRequestError with the nearest ids for an unknown one."""
    found = tuple(_entry(row) for row in RULES if row.id.lower() == rule.lower())
    if not found:
        raise BadRequestError(f"no rule {rule!r}", remedy=nearest(rule.upper(), every_id()))
    return found


def every_id() -> tuple[str, ...]:
    """Return the ids that :func:`entries_named` knows, in order."""
    return tuple(sorted({rule.id for rule in RULES}, key=_order))


def _order(identifier: str) -> tuple[str, int, str]:
    letters = identifier.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip("0123456789")
    digits = "".join(c for c in identifier[len(letters) :] if c.isdigit())
    return letters, int(digits or 0), identifier


def _entry(rule: Rule) -> Entry:
    return Entry(
        rule.id,
        rule.severity,
        _ABOUT.get(rule.id) or readable(rule.message),
        readable(rule.fix),
        None if rule.mcore_text in (None, "{mcore}") else readable(str(rule.mcore_text)),
        _versions(rule.since, rule.until),
        EVIDENCE[rule.evidence],
        rule.source,
    )


def readable(template: str) -> str:
    """Return a template as text: ``{s.spec.num_gpus}`` becomes ``<num_gpus>``, ``{s.tp}`` becomes ``<TP>``."""
    parts = Formatter().parse(template)
    return "".join(text + (placeholder(field) if field is not None else "") for text, field, _, _ in parts)


def placeholder(field: str) -> str:
    """Return a field of a template as text."""
    path = field.rstrip("]").replace("[", ".").split(".")
    name = path[-1] if path[-1] not in ("name", "text") or len(path) == 1 else path[-2]
    return f"<{_SYMBOLS.get(name, name)}>"


def _versions(since: str | None, until: str | None) -> str:
    if since and until:
        return f"{since} to before {until}"
    if since:
        return f"{since} and later"
    return f"before {until}" if until else "all"


_LEAST = 25  # characters of a message's fixed text; a shorter one may be of any program
_OF_TORCH = ("L13", "P21d", "P34d")  # other faults have the same text
_PRINTED = ("T30",)  # a job goes on
# Parts of messages that depend on the whole request, by the rule.
_PARTS: dict[str, tuple[str, ...]] = {
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
    """``pattern`` matches the message, with a group for each value: ``<name>`` in ``message`` and ``fix``."""

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
