"""What megatron-core says to layers, heads, experts, ranks and batches that do not divide: a row each."""

import re

from harness.analysis.diagnosis.megatron_texts import CONFIG, MegatronText
from harness.analysis.diagnosis.symptom import Symptom

_BLOCK = "transformer/transformer_block.py"
_UNEVEN = "layers per pipeline stage"
_VIRTUAL = "every pipeline stage is cut into virtual stages of equal numbers of layers"
_FIT_VIRTUAL = "a --virtual_pipeline_model_parallel_size that divides the layers of every stage, or none"
_SPREAD = "what the first and the last stage leave is spread evenly over the stages between them"
_FIT_SPREAD = "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the rest divides"
_COUNTED = "embedding and loss count as a layer each, and the sum does not divide over pipeline or virtual stages"
_FIT_COUNTED = "a -pp and a -vp that divide the sum, or drop account_for_*_in_pipeline_split"

# fmt: off
LAYOUT_TEXTS: tuple[MegatronText, ...] = (
    MegatronText("P15", CONFIG, "number of layers at first stage:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers at last stage:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers on each middle pipeline rank:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers at middle stage:", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P15", CONFIG, "middle layers remaining but", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P15", _BLOCK, "left over layers must be divisible by left over stages", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P16", CONFIG, "number of middle layers:", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P16", CONFIG, "account_for_loss_in_pipeline_split must be divisible", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P16", CONFIG, "account_for_loss_in_pipeline_split) must be divisible", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P08", _BLOCK, "num_layers should be divisible by pipeline_model_parallel_size", "the number of layers",
        "every pipeline stage has the same number of layers", "a -pp that divides the layers, or pipeline_model_parallel_layout"),
    MegatronText("P09", _BLOCK, "should be divisible by vp_size", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P12", "transformer/pipeline_parallel_layer_layout.py", "pipeline_model_parallel_layout must be divisible",
        "the pipeline layout", "it must have PP x VP stages", "a layout of PP x VP stages, each ended by '|' but the last"),
    MegatronText("P03", CONFIG, ") must be a multiple of tensor_model_parallel_size", "the attention heads",
        "heads are split evenly over TP", "a -tp that divides num_attention_heads"),
    MegatronText("P04", CONFIG, ") must be a multiple or divisor of tensor_model_parallel_size", "the query groups",
        "query groups are split, or copied, evenly over TP", "a -tp that divides num_query_groups, or is a multiple of them"),
    MegatronText("A06", "num_microbatches_calculator.py", "is not divisible by micro batch size", "the global batch size",
        "every data-parallel copy runs the same number of micro-batches", "a -gb that is a multiple of -mb times DP"),
)
# fmt: on
# Its text has a value in the middle.
RANKS = Symptom(
    "A01",
    "megatron-core refuses the number of ranks",
    "the ranks are no multiple of TP x PP x CP, or with experts of ETP x EP x PP",
    "`mbr-perf rules show A01` and A03; `mbr-perf check` with the job's settings, which costs no GPU",
    "more or fewer GPUs (-ng), or smaller -tp, -pp, -cp, -ep, so that they divide",
    text=re.compile(r"world_size \(\d{1,7}\) is not divisible by"),
)
