"""All rules as entries: rows of the table, which are judged, and rules that no request can break."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter

from harness.errors import BadRequestError
from harness.spec.rules.closed import CLOSED_BY_CONSTRUCTION
from harness.spec.rules.finding import SEVERITIES
from harness.spec.rules.table import RULES

EVIDENCE = {
    "run": "seen in a run of megatron-core 0.16.1 on CPU",
    "source": "read in the source, not run",
    "issue": "reported upstream",
    "harness": "a limit or a judgement of mbr-perf itself",
}
# Rows whose whole message is computed by spec/layout.py: what they are about.
_ABOUT = {
    "P08": "num_layers is not a multiple of pipeline_model_parallel_size",
    "P09": "the layers of a pipeline stage are not a multiple of virtual_pipeline_model_parallel_size",
    "P10": "num_layers_in_first/last_pipeline_stage and account_for_embedding/loss_in_pipeline_split exclude each other",
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
    """One rule for people, values of a request as ``<name>``. ``versions`` are megatron-core's; ``severity`` is "closed" where no request can break it."""

    id: str
    severity: str
    message: str
    fix: str
    mcore_text: str | None
    versions: str
    evidence: str
    source: str


def entries(severity: str | None = None) -> tuple[Entry, ...]:
    """Return the rules that requests are judged by, or those of one severity, in id order.

    "closed" returns the rules that no request can break. BadRequestError for an unknown severity.
    """
    allowed = (*SEVERITIES, "closed")
    if severity is not None and severity not in allowed:
        raise BadRequestError(f"--severity {severity!r}: no such severity", remedy=f"one of {', '.join(allowed)}")
    found = (entry for entry in _all() if entry.severity == (severity or entry.severity))
    judged = (entry for entry in found if severity or entry.severity != "closed")
    return tuple(sorted(judged, key=lambda entry: _order(entry.id)))


def entries_named(rule: str) -> tuple[Entry, ...]:
    """Return the entries of one id, closed ones too. BadRequestError with the nearest ids for an unknown one."""
    every = tuple(_all())
    found = tuple(entry for entry in every if entry.id.lower() == rule.lower())
    if not found:
        near = get_close_matches(rule.upper(), [entry.id for entry in every], n=3)
        hint = f"near: {', '.join(dict.fromkeys(near))}; " if near else ""
        raise BadRequestError(f"no rule {rule!r}", remedy=f"{hint}`mbr-perf rules list` has them all")
    return found


def _order(identifier: str) -> tuple[str, int, str]:
    letters = identifier.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip("0123456789")
    digits = "".join(c for c in identifier[len(letters) :] if c.isdigit())
    return letters, int(digits or 0), identifier


def _all() -> Iterable[Entry]:
    for rule in RULES:
        yield Entry(
            rule.id, rule.severity, _ABOUT.get(rule.id) or readable(rule.message), readable(rule.fix),
            _own_text(rule.mcore_text), _versions(rule.since, rule.until), EVIDENCE[rule.evidence], rule.source,
        )  # fmt: skip
    for identifier, reason in CLOSED_BY_CONSTRUCTION.items():
        yield Entry(identifier, "closed", f"no request can break it: {reason}", "", None, "all", "", "")


def readable(template: str) -> str:
    """A template for people: ``{s.spec.num_gpus}`` is ``<num_gpus>``, ``{s.tp}`` is ``<TP>``."""
    parts = Formatter().parse(template)
    return "".join(text + (_placeholder(field) if field is not None else "") for text, field, _, _ in parts)


def _placeholder(field: str) -> str:
    if field == _ONLY_WITH_VALUES:
        return ""
    path = field.rstrip("]").replace("[", ".").split(".")
    name = path[-1] if path[-1] not in ("name", "text") or len(path) == 1 else path[-2]
    return f"<{_SYMBOLS.get(name, name)}>"


def _own_text(template: str | None) -> str | None:
    """None also for a text that depends on the request as a whole."""
    return None if template in (None, "{mcore}") else readable(str(template))


def _versions(since: str | None, until: str | None) -> str:
    if since and until:
        return f"{since} to before {until}"
    if since:
        return f"{since} and later"
    return f"before {until}" if until else "all"
