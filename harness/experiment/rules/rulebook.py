"""Lists all rules, also those that no request can break."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter

from harness.errors import BadRequestError, nearest
from harness.experiment.rules.check import RULES
from harness.experiment.rules.rule import SEVERITIES

_POLICY = "the type of the recompute policy allows no such combination"
_ENGINE = "mbr-perf sets this itself: "
_NO_FIELD = "mbr-perf has no setting for this: "

CLOSED_BY_CONSTRUCTION: dict[str, str] = {
    "R01": _POLICY,
    "R02": _POLICY,
    "R03": _POLICY,
    "R04": _POLICY,
    "R05": _POLICY,
    "R14": _NO_FIELD + "moe_layer_recompute",
    "R15": _NO_FIELD + "moe_layer_recompute",
    "T01": _POLICY,
    "T02": _POLICY,
    "T03": "SelectiveRecompute needs at least one module",
    "T04": "FullRecompute has no modules",
    "T05": "FullRecompute needs num_layers >= 1",
    "T06": "FullRecompute needs num_layers >= 1",
    "T09": "only FullRecompute has distribute_saved_activations",
    "T15": "mbr-perf adapts megatron-core's local layers, also on a GPU without transformer-engine",
    "T19": "the worker feeds samples of one length, never packed sequences",
    "T20": "the worker passes no padding mask",
    "T22": "no --compute_dtype sets fp8_dot_product_attention",
    "T23": "mbr-perf does not use the command-line flags of megatron's launcher",
    "T24": _NO_FIELD + "num_microbatches_with_partial_activation_checkpoints",
    "T27": "legal: the savings of moe and layernorm add up",
    "T28": "legal: the savings of mlp and core_attn add up",
    "T29": "legal: mlp and moe act on different layers",
    "F02": "fine-grained offloading is on exactly where offload_modules is not empty",
    "F10": _NO_FIELD + "activation_offload_fraction and its thresholds",
    "Q01": "each --compute_dtype has one params_dtype, and none is fp16",
    "Q02": "no --compute_dtype sets first_last_layers_bf16",
    "Q03": "no --compute_dtype sets first_last_layers_bf16",
    "Q04": "no --compute_dtype uses a custom recipe",
    "Q05": "fp8_param is set only with fp8, and fp4_param only with fp4",
    "Q06": "no --compute_dtype sets both fp8 and fp4",
    "Q08": _NO_FIELD + "moe_router_padding_for_quantization",
    "Q09": _NO_FIELD + "activation_func_fp8_input_store",
    "Q11": "rule R12 refuses the request first",
    "G01": _NO_FIELD + "enable_cuda_graph and external_cuda_graph",
    "G02": "mbr-perf accepts only known parts in cuda_graph_scope",
    "G03": "cuda_graph_scope has no value `full`; an empty scope means whole layers",
    "G04": "mbr-perf accepts only known values of cuda_graph_impl; "
    + _ENGINE
    + "full_iteration becomes local before 0.18",
    "G13": "rule R20 covers it",
    "G17": _NO_FIELD + "moe_input_jitter_eps",
    "G19": _NO_FIELD + "generalised tensor parallelism",
    "P02": _ENGINE + "pipeline_dtype",
    "P07": "moe_ffn_hidden_size is a field of MoeModel",
    "P24": _NO_FIELD + "cp_comm_type",
    "P29": _NO_FIELD + "delay_wgrad_compute",
    "P30": _ENGINE + "bias_activation_fusion is on only where megatron-core has the kernel",
    "P32": "mbr-perf adapts megatron-core's local layers, also on a GPU without transformer-engine",
    "A02": "mbr-perf computes the data-parallel size",
    "A04": _ENGINE + "the rank order ends in pp",
    "A05": "batch sizes are counts of at least 1",
    "A08": "rules P08 and P16 cover it",
    "A09": "rules P09, P15 and P16 cover it",
    "A10": "virtual stages have one field; rule P14 compares it with the layout",
    "A11": "rule P12 covers it",
    "A14": "mbr-perf refuses such a model when it reads it",
    "A15": "rules P03 and P04 cover it",
    "A18": _ENGINE + "max_position_embeddings is seq_length",
    "A19": "mbr-perf pads the vocabulary",
    "A20": "rules P05 and P06 cover it",
    "A21": "every GPU of the table has compute capability 8.0 or more",
    "A23": _NO_FIELD + "hierarchical_context_parallel_sizes",
    "B01": "only FullRecompute has distribute_saved_activations; rules R06 and T10 cover the rest",
    "B02": _POLICY,
    "B03": "rule P01 refuses the request; nothing is switched off",
    "B07": "rule Q13 covers it",
    "B08": _NO_FIELD + "torch FSDP2",
    "B11": _ENGINE + "check_for_nan_in_grad is off under full-iteration graphs",
    "B12": _ENGINE + "the RNG tracker follows the graphs",
    "B14": "cpu_offloading is on exactly where cpu_offloading_num_layers is not 0",
    "B16": _ENGINE + "reuse_grad_buf_for_mxfp8_param_ag follows fp8_mx",
    "B17": "mbr-perf runs no evaluation",
    "V02": "mbr-perf chooses the value; rules V01 and B09 cover it",
    "V09": "attention_backend has no value `local`",
    "V11": _NO_FIELD + "deterministic_mode",
    "V12": "rule F06 covers it",
    "V13": _NO_FIELD + "the pipeline communication backend",
    "V14": _NO_FIELD + "generalised tensor parallelism",
    "K01": "rule T08 covers it",
    "K02": "rule G25 covers it",
    "K03": "rules G21 to G24 cover it",
    "K04": "same reason as T15",
    "K05": "rule T18 covers it; T19 cannot happen",
    "K08": "no setting avoids it, and no figure of mbr-perf depends on it",
    "K09": "same reason as T22",
    "K10": "rule R10 covers it",
    "K13": "rule R12 covers it",
    "K14": "fixed in every supported transformer-engine",
    "K15": "rules V03 to V05 cover it",
    "K17": "the time model counts the whole region; no setting changes it",
    "K19": "rule G26 covers it",
    "K21": "rule R21 covers it",
    "K22": "T20 cannot happen; R03 is closed",
    "K23": "rules T03 and R10 cover it",
    "K24": "mbr-perf cannot describe hybrid and dual-rope models",
    "K25": "the reports describe misuse that other rules cover",
    "K26": "rule G29 covers it",
    "K27": "rules G30 and G31 cover it",
}


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
    """One rule as text, with a request's values as ``<name>``. ``versions`` are megatron-core's; ``severity`` is "closed" where no request can break it."""

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
        raise BadRequestError(f"--severity {severity!r}: no such severity", remedy=nearest(severity, allowed))
    found = (entry for entry in _all() if entry.severity == (severity or entry.severity))
    judged = (entry for entry in found if severity or entry.severity != "closed")
    return tuple(sorted(judged, key=lambda entry: _order(entry.id)))


def entries_named(rule: str) -> tuple[Entry, ...]:
    """Return the entries of one id, closed ones too. BadRequestError with the nearest ids for an unknown one."""
    every = tuple(_all())
    found = tuple(entry for entry in every if entry.id.lower() == rule.lower())
    if not found:
        near = get_close_matches(rule.upper(), [entry.id for entry in every], n=3)
        hint = f"did you mean {', '.join(dict.fromkeys(near))}? " if near else ""
        raise BadRequestError(f"no rule {rule!r}", remedy=f"{hint}`mbr-perf rules list` prints all")
    return found


def every_id() -> tuple[str, ...]:
    """Return the ids that :func:`entries_named` knows, in order."""
    return tuple(sorted({entry.id for entry in _all()}, key=_order))


def _order(identifier: str) -> tuple[str, int, str]:
    letters = identifier.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip("0123456789")
    digits = "".join(c for c in identifier[len(letters) :] if c.isdigit())
    return letters, int(digits or 0), identifier


def _all() -> Iterable[Entry]:
    for rule in RULES:
        yield Entry(
            rule.id,
            rule.severity,
            _ABOUT.get(rule.id) or readable(rule.message),
            readable(rule.fix),
            _own_text(rule.mcore_text),
            _versions(rule.since, rule.until),
            EVIDENCE[rule.evidence],
            rule.source,
        )
    for identifier, reason in CLOSED_BY_CONSTRUCTION.items():
        yield Entry(identifier, "closed", f"no request can break it: {reason}", "", None, "all", "", "")


def readable(template: str) -> str:
    """Return a template as text: ``{s.spec.num_gpus}`` becomes ``<num_gpus>``, ``{s.tp}`` becomes ``<TP>``."""
    parts = Formatter().parse(template)
    return "".join(text + (_placeholder(field) if field is not None else "") for text, field, _, _ in parts)


def _placeholder(field: str) -> str:
    if field == _ONLY_WITH_VALUES:
        return ""
    path = field.rstrip("]").replace("[", ".").split(".")
    name = path[-1] if path[-1] not in ("name", "text") or len(path) == 1 else path[-2]
    return f"<{_SYMBOLS.get(name, name)}>"


def _own_text(template: str | None) -> str | None:
    """Return megatron-core's text; None if it depends on the whole request."""
    return None if template in (None, "{mcore}") else readable(str(template))


def _versions(since: str | None, until: str | None) -> str:
    if since and until:
        return f"{since} to before {until}"
    if since:
        return f"{since} and later"
    return f"before {until}" if until else "all"
