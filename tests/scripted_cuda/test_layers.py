"""Layers of every kind take the same bytes under real transformer-engine, by torch's own allocator, as in the tracer."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.records.trace import TraceFile, TraceRequest
from tests.engine.tracing import models
from tests.real_te.exceptions import HISTORY, MIB, Listed, unexplained
from tests.real_te.layer_cases import layer_cases
from tests.scripted_cuda.lane import CHECKOUT, MCORE, Machine

pytestmark = [
    pytest.mark.cuda, pytest.mark.slow, pytest.mark.skipif(MCORE != "0.16", reason="the tracer runs megatron-core 0.16 here")
]  # fmt: skip

PRECISIONS = frozenset({"bf16", "fp8_cs", "fp8_ds", "fp8_sc"})
IMBALANCE = 1.5
GPT3_175B = models.LLAMA3_70B.model_copy(
    update={"num_layers": 96, "hidden_size": 12288, "ffn_hidden_size": 49152, "num_attention_heads": 96, "num_query_groups": 96,
            "normalization": "LayerNorm", "activation_func": "gelu", "gated_linear_unit": False, "add_bias_linear": True}
)  # fmt: skip
# What only some models have, once each.
MORE = (
    models.case("biases/bf16/none", models.experiment(GPT3_175B, tensor_model_parallel_size=4)),
    models.case("yarn/bf16/none", models.deepseek(mla={"rope_type": "yarn", "apply_rope_fusion": True})),
)


@dataclass(frozen=True)
class Row(Listed):
    """``kept``: parameters, their quantised copies, and what belongs to no micro-batch or lingers until the next."""

    kept: tuple[int, int] = (0, 0)


_TOKENS, _WIDTH = 4096, 8192  # of Llama3-70B here
_OUTPUT_WEIGHT = 128512 // 4 * _WIDTH * 2
_ADAPTERS = {frozenset({"lora", "lora_first"}): 118, frozenset({"lora_moe"}): 120, frozenset({"lora_qkv"}): 18}
"""Kinds -> rows of ``_WIDTH`` bytes in the adapters' weights, each shape once."""
_GATE = _TOKENS * 16 * 256 * 2  # of Qwen3-Next here, in bf16
_BATCH = _TOKENS * 8  # bytes of token numbers
ROWS = (
    Row(
        "single values: scales, maxima, inverse frequencies of rotary tables, a count or bias per expert; of blockwise "
        "weights the stand-in pads the scales of the transposed copy as those of the first",
        saved=(0, 2), forward_peak=(-4, 2048), backward_peak=(-128, 2048), kept=(-4096, 6500),
    ),
    Row("the tracer takes tokens and positions of the micro-batch for buffers that stay", kept=(-2 * _BATCH, -2 * _BATCH)),
    Row(
        "and its labels and loss mask, on the last stage",
        kinds=frozenset({"last"}), kept=(-_BATCH - _BATCH // 2, -_BATCH - _BATCH // 2),
    ),
    Row(
        "delayed scaling: histories of maxima and their scales, of which the stand-in has none; a checkpoint copies them",
        precisions=frozenset({"fp8_ds"}),
        saved=(0, 80 * HISTORY), forward_peak=(0, 80 * HISTORY), backward_peak=(-80 * HISTORY, 0), kept=(0, 200 * HISTORY),
    ),
    Row(
        "torch's embedding sorts more than 3072 tokens in its backward pass and sums parts in fp32: a row per 10 tokens and "
        "per different token, which is scratch memory that no operation returns; the tracer knows operations' results only",
        kinds=frozenset({"first"}), backward_peak=((_TOKENS // 10 + _TOKENS) * _WIDTH * 4, 150 * 10**6),
    ),
    Row(
        "without Apex the output layer makes its weight gradient, where the tracer has transformer-engine's dummy (the plan "
        "corrects both)",
        kinds=frozenset({"last"}), backward_peak=(_OUTPUT_WEIGHT // 2, _OUTPUT_WEIGHT), kept=(-_OUTPUT_WEIGHT, -_OUTPUT_WEIGHT),
    ),
    *(
        Row(
            "adapters are megatron-core's own linear layers, whose weight gradients do not stay, where the tracer has "
            "transformer-engine's dummies (1 MB per stage)",
            kinds=kinds, kept=(-rows * _WIDTH, -rows * _WIDTH),
        )
        for kinds, rows in _ADAPTERS.items()
    ),
    Row(
        "the norm's backward pass in transformer-engine has 2 partial sums of its weight's gradient per processor in fp32; the "
        "tracer knows operations' results only, and only here is the norm the fullest moment",
        kinds=frozenset({"lora", "lora_first", "lora_qkv"}), precisions=PRECISIONS - {"bf16"},
        backward_peak=(2 * 132 * _WIDTH * 4 - 2**17, 2 * 132 * _WIDTH * 4),
    ),
    Row(
        "megatron-core compiles attention's output gate (`_apply_output_gate`): Inductor saves the gate in bf16, the tracer "
        "eager's sigmoid in fp32",
        kinds=frozenset({"gated_attention"}), saved=(-_GATE, 0), forward_peak=(-_GATE, 0), backward_peak=(-_GATE, 0),
    ),
    Row(
        "autograd sums the gradient of a bias over all tokens in one reduction, whose blocks meet in scratch memory (132 MiB "
        "on 132 processors, however many tokens); the tracer knows operations' results only",
        kinds=frozenset({"biases"}), backward_peak=(36 * MIB, 37 * MIB),
    ),
    Row(
        "YaRN registers its tables anew in the first forward pass: the tracer counts them as buffers of the model and once more "
        "as made by the pass",
        kinds=frozenset({"yarn"}), kept=(-MIB, -MIB),
    ),
    Row(
        "the first compilation in a process holds an input (the router's logits)",
        kinds=frozenset({"window_and_sinks"}), precisions=frozenset({"bf16"}), kept=(0, MIB),
    ),
)  # fmt: skip


def is_asked(case):
    """One module or none or whole layers, on an H100."""
    _, precision, setting = case.key.split("/")
    is_single = "," not in setting and (not setting.startswith("full") or setting == "full:uniform:1")
    return precision in PRECISIONS and is_single


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Key -> field -> bytes of torch's allocator less those of the tracer, with balanced and uneven tokens per expert."""
    folder = tmp_path_factory.mktemp("layers")
    cases = (*filter(is_asked, layer_cases(models)), *MORE)
    uneven = tuple(case for case in cases if case.has_experts and case.key.endswith(("/none", "/moe")))
    requests = {"balanced": TraceRequest(cases=cases, implementation="transformer_engine"),
                "uneven": TraceRequest(cases=uneven, implementation="transformer_engine", imbalance=IMBALANCE)}  # fmt: skip
    for name, request in requests.items():
        (folder / f"{name}.json").write_text(request.model_dump_json())
    program = Path(__file__).with_name("layers.py")
    files = [folder / f"{name}{end}" for name in requests for end in (".json", ".real")]
    done = Machine(folder / "machine", num_devices=1).run(program, *files, timeout_s=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: differences(folder / name) for name in requests}


def differences(stem):
    """Of one request: the tracer answers it as for a plan."""
    out = stem.with_suffix(".traced")
    subprocess.run(
        [sys.executable, "-m", "harness.engine.trace", "--request", stem.with_suffix(".json"), "--out", out],
        check=True, cwd=CHECKOUT, capture_output=True,
    )  # fmt: skip
    real = json.loads(stem.with_suffix(".real").read_text())
    chunks = TraceFile.model_validate_json(out.read_text()).chunks
    assert {key: each["failed"] for key, each in real.items() if "failed" in each} == {}
    assert real.keys() == chunks.keys()
    return {key: {field: each[field] - claimed(chunks[key])[field] for field in each} for key, each in real.items()}


def claimed(chunk):
    """The fields that layers.py measures, by the trace."""
    kept = chunk.parameter_bytes + chunk.persistent_bytes + chunk.lingering_bytes
    return {"saved": chunk.saved_bytes, "forward_peak": chunk.forward_peak_bytes, "backward_peak": chunk.backward_peak_bytes,
            "kept": kept}  # fmt: skip


def test_layers_take_the_same_bytes_but_for_what_is_listed(found):
    assert len(found["balanced"]) == 291
    assert unexplained(found["balanced"], ROWS) == {}


def test_experts_with_uneven_tokens_do_too(found):
    assert unexplained(found["uneven"], ROWS) == {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason[:40])
def test_every_listed_exception_still_holds(found, row):
    assert unexplained(found["balanced"], [other for other in ROWS if other is not row]) != {}
