"""The list of all rules, also those that no request can break."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter

from harness.errors import BadRequestError
from harness.experiment.rules.check import RULES
from harness.experiment.rules.rule import SEVERITIES

_POLICY = "the recompute policy is a union of types"
_ENGINE = "harness/engine sets it from the request and takes no field for it: "
_NO_FIELD = "ExperimentSpec has no field for it: "

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
    "T15": "harness/engine/cpu_backend.py adapts the local layers, on a GPU without transformer-engine too",
    "T19": "the worker feeds samples of one length, never packed sequences",
    "T20": "the worker passes no padding mask",
    "T22": "no row of PRECISIONS sets fp8_dot_product_attention",
    "T23": "the command-line flags of megatron's launcher are not read",
    "T24": _NO_FIELD + "num_microbatches_with_partial_activation_checkpoints",
    "T27": "legal: moe and layernorm add up",
    "T28": "legal: mlp and core_attn add up",
    "T29": "legal: mlp and moe act on different layers",
    "F02": "fine-grained offloading is on exactly where offload_modules is not empty",
    "F10": _NO_FIELD + "activation_offload_fraction and its thresholds",
    "Q01": "a row of PRECISIONS has one params_dtype, and none is fp16",
    "Q02": "no row of PRECISIONS sets first_last_layers_bf16",
    "Q03": "no row of PRECISIONS sets first_last_layers_bf16",
    "Q04": "no row of PRECISIONS uses a custom recipe",
    "Q05": "rows of PRECISIONS set fp8_param only with fp8, fp4_param only with fp4",
    "Q06": "no row of PRECISIONS sets both fp8 and fp4",
    "Q08": _NO_FIELD + "moe_router_padding_for_quantization",
    "Q09": _NO_FIELD + "activation_func_fp8_input_store",
    "Q11": "R12 stops it before a layer is built",
    "G01": _NO_FIELD + "enable_cuda_graph and external_cuda_graph",
    "G02": "cuda_graph_scope is a Literal",
    "G03": "cuda_graph_scope is a Literal without `full`; empty means whole layers",
    "G04": "cuda_graph_impl is a Literal; " + _ENGINE + "full_iteration becomes local before 0.18",
    "G13": "the same as R20",
    "G17": _NO_FIELD + "moe_input_jitter_eps",
    "G19": _NO_FIELD + "generalised tensor parallelism",
    "P02": _ENGINE + "pipeline_dtype",
    "P07": "moe_ffn_hidden_size is a field of MoeModel",
    "P24": _NO_FIELD + "cp_comm_type",
    "P26": _NO_FIELD + "attention_output_gate",
    "P29": _NO_FIELD + "delay_wgrad_compute",
    "P30": _ENGINE + "bias_activation_fusion is on only where megatron-core has the kernel",
    "P32": "harness/engine/cpu_backend.py adapts the local layers, on a GPU without transformer-engine too",
    "A02": "derived: ExperimentSpec.data_parallel_size",
    "A04": _ENGINE + "the rank order ends in pp",
    "A05": "batch sizes are counts of at least 1",
    "A08": "P08 and P16 judge it",
    "A09": "P09, P15 and P16 judge it",
    "A10": "virtual stages have one field; P14 judges it against the layout",
    "A11": "P12 judges it",
    "A14": "ModelSpec refuses it",
    "A15": "P03 and P04 judge it",
    "A18": _ENGINE + "max_position_embeddings is seq_length",
    "A19": "ModelSpec.padded_vocab_size pads",
    "A20": "P05 and P06 judge it",
    "A21": "every GPU of the table has compute capability 8.0 or more",
    "A23": _NO_FIELD + "hierarchical_context_parallel_sizes",
    "B01": "only FullRecompute has distribute_saved_activations; R06 and T10 judge the rest",
    "B02": _POLICY,
    "B03": "P01 refuses instead of switching off",
    "B07": "Q13 judges it",
    "B08": _NO_FIELD + "torch FSDP2",
    "B11": _ENGINE + "check_for_nan_in_grad is off under full-iteration graphs",
    "B12": _ENGINE + "the RNG tracker follows the graphs",
    "B14": "cpu_offloading is on exactly where cpu_offloading_num_layers is not 0",
    "B16": _ENGINE + "reuse_grad_buf_for_mxfp8_param_ag follows fp8_mx",
    "B17": "there is no evaluation",
    "V02": "harness/launch/environment.py chooses the value; V01 and B09 judge it",
    "V09": "attention_backend has no value `local`",
    "V11": _NO_FIELD + "deterministic_mode",
    "V12": "F06 judges it",
    "V13": _NO_FIELD + "the pipeline communication backend",
    "V14": _NO_FIELD + "generalised tensor parallelism",
    "K01": "T08 judges it",
    "K02": "G25 judges it",
    "K03": "G21 to G24 judge it",
    "K04": "as T15",
    "K05": "T18 judges it; T19 cannot happen",
    "K08": "no setting avoids it, and no figure of this harness depends on it",
    "K09": "as T22",
    "K10": "R10 judges it",
    "K13": "R12 judges it",
    "K14": "fixed in every supported transformer-engine",
    "K15": "V03 to V05 judge it",
    "K17": "the time model charges the whole region; no setting changes it",
    "K19": "G26 judges it",
    "K21": "R21 judges it",
    "K22": "T20 cannot happen; R03 is closed",
    "K23": "T03 and R10 judge it",
    "K24": "hybrid and dual-rope models cannot be expressed",
    "K25": "reports of misuse that the other rules answer",
    "K26": "G29 judges it",
    "K27": "G30 and G31 judge it",
}


EVIDENCE = {
    "run": "seen in a run of megatron-core 0.16.1 on CPU",
    "source": "read in the source, not run",
    "issue": "reported upstream",
    "harness": "a limit or a judgement of mbr-perf itself",
}
# Rows whose whole message is computed by experiment/layout.py: what they are about.
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
        raise BadRequestError(f"no rule {rule!r}", remedy=f"{hint}`mbr-perf rules list` prints all")
    return found


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
