"""Known defects of megatron-core and transformer-engine around recompute that no other rule covers."""

from harness.experiment.recompute import MODULES
from harness.experiment.rules.rule import Rule, Values
from harness.experiment.rules.situation import Situation

_ISSUES = "https://github.com/NVIDIA/Megatron-LM/issues"
_PULLS = "https://github.com/NVIDIA/Megatron-LM/pull"


def _discarding(s: Situation) -> Values | None:
    named = [m for m in s.modules if m in MODULES and MODULES[m].discards_output]
    return {"named": ", ".join(named)} if named else None


RULES = (
    Rule("K06", "warning", lambda s: s.full is not None and s.moe is not None and not s.gpu.is_cpu,
         "full recompute of MoE layers releases some activations one step late",
         "expect the measured peak above the predicted one",
         f"{_ISSUES}/3221, {_ISSUES}/5197", "issue", until="0.20.0dev0"),
    Rule("K07", "warning",
         lambda s: s.dispatcher == "flex" and s.spec.recompute.granularity != "none"
         and s.kernels.moe_flex_dispatcher_backend != "hybridep",
         "DeepEP keeps token probabilities alive under recompute",
         "watch the peak over many steps, or use hybridep",
         f"{_ISSUES}/5227", "issue"),
    Rule("K11", "note", lambda s: s.modules == ("mla_up_proj",),
         "mla_up_proj alone saves little",
         "combine it with core_attn or moe_act",
         f"{_ISSUES}/1521", "issue"),
    Rule("K12", "note", lambda s: s.full is not None and s.full.method == "uniform" and s.full.num_layers > 1,
         "full:uniform:{s.full.num_layers} holds the activations of {s.full.num_layers} layers at once in backward",
         "full:uniform:1 has the lower transient peak and costs no more time",
         f"{_ISSUES}/1226", "issue"),
    Rule("K16", "note", lambda s: s.ddp.use_megatron_fsdp and s.spec.recompute.granularity != "none",
         "megatron-fsdp prefetches weights for the recomputed forward as well",
         "expect more gathered weights alive at the peak",
         f"{_ISSUES}/6153", "issue"),
    Rule("K18", "note", _discarding,
         "{named}: megatron-core {s.mcore_name} compiles a C++ extension in the first backward",
         "have c++ and ninja on every node; a run that ends meanwhile leaves share_storage_ext/lock under "
         "~/.cache/torch_extensions, for which later runs wait: delete it",
         f"{_PULLS}/3649", "issue", since="0.17"),
    Rule("K20", "note", lambda s: s.graphs_locally,
         "local graphs keep parameters that are not reported",
         "read reserved bytes next to allocated",
         f"{_PULLS}/6373", "issue", until="0.20.0dev0"),
    Rule("K28", "error", lambda s: "mlp" in s.modules and s.spec.model.add_bias_linear and 0 in s.spec.model.moe_layer_pattern,
         "mlp recompute of a model with linear biases never ends its first backward",
         "use full recompute or core_attn; the checkpoint returns the bias itself, which autograd then takes for its output",
         "tensor_parallel/random.py:531", "run"),
)  # fmt: skip
