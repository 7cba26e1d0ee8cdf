"""The rules as text."""

from dataclasses import dataclass
from difflib import get_close_matches
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
_ONLY_WITH_VALUES = "hint"  # a "did you mean" that a listing cannot have


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
        near = get_close_matches(rule.upper(), [row.id for row in RULES], n=3)
        hint = f"did you mean {', '.join(dict.fromkeys(near))}? " if near else ""
        raise BadRequestError(f"no rule {rule!r}", remedy=f"{hint}`mbr-perf rules list` prints all")
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
    if field == _ONLY_WITH_VALUES:
        return ""
    path = field.rstrip("]").replace("[", ".").split(".")
    name = path[-1] if path[-1] not in ("name", "text") or len(path) == 1 else path[-2]
    return f"<{_SYMBOLS.get(name, name)}>"


def _versions(since: str | None, until: str | None) -> str:
    if since and until:
        return f"{since} to before {until}"
    if since:
        return f"{since} and later"
    return f"before {until}" if until else "all"
