"""Our verdict on a request is what megatron-core does with it: configuration, build, one step forward and backward."""

import json
import random
from importlib.metadata import version

import pytest

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec, KernelSpec
from harness.experiment.model import BatchSpec, MlaModel, ModelSpec, MoeModel
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from tests.engine.conftest import RANKS, run_forked

pytestmark = [pytest.mark.train, pytest.mark.slow]

SEED, NUM_REQUESTS = 20_260_316, 120
SOFTWARE = Software(megatron_core=version("megatron-core"), torch=version("torch"), gpu="cpu")

# Rules that forbid what megatron-core accepts, each because the run would not be the one that was asked for, or never
# ends; a request that breaks one of these alone may train.
STRICTER = {
    "EFF01": "the run would equal one without recompute",
    "K28": "never ends: such requests are not drawn",
}


def drawn(rng):
    """One request of one rank: about half of them legal."""
    kind = rng.choice(("dense", "moe", "mla"))
    layers = rng.choice((2, 3, 4))
    heads = rng.choice((2, 4))
    moe = mla = None
    dtype = rng.choice(("fp32", "fp32", "bf16"))
    if kind != "dense":
        experts = rng.choice((4, 6))
        groups = rng.choice((None, None, 2, 4))
        moe = MoeModel(
            num_moe_experts=experts,
            moe_router_topk=rng.choice((1, 2)),
            moe_ffn_hidden_size=32,
            moe_layer_freq=rng.choice((1, 2)),
            moe_shared_expert_intermediate_size=rng.choice((None, 32)),
            moe_router_pre_softmax=rng.random() < 0.7,
            moe_router_num_groups=groups,
            moe_router_group_topk=rng.choice((1, 2)) if groups else None,
            moe_router_score_function=rng.choice(("softmax", "softmax", "sigmoid")),
            moe_router_enable_expert_bias=rng.random() < 0.2,
            moe_grouped_gemm=rng.random() < 0.3,
        )
    if kind == "mla":
        mla = MlaModel(q_lora_rank=rng.choice((None, 16)), kv_lora_rank=16, qk_head_dim=8, qk_pos_emb_head_dim=8,
                       v_head_dim=8)  # fmt: skip
    model = ModelSpec(
        num_layers=layers,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=heads,
        num_query_groups=None if mla else rng.choice((1, 2)),
        vocab_size=128,
        gated_linear_unit=rng.random() < 0.8,
        activation_func=rng.choice(("silu", "silu", "gelu")),
        add_bias_linear=kind == "dense" and rng.random() < 0.2,
        mtp_num_layers=rng.choice((None, None, 1)),
        moe=moe,
        mla=mla,
    )
    return ExperimentSpec(
        recipe="drawn", family="test", gpu="cpu", num_gpus=1, gpus_per_node=8, compute_dtype=dtype, model=model,
        batch=BatchSpec(micro_batch_size=1, global_batch_size=2, seq_length=16), recompute=_recompute(rng),
        kernels=KernelSpec(transformer_impl="local", gradient_accumulation_fusion=False,
                           moe_token_dispatcher_type=rng.choice(("alltoall", "allgather"))),
    )  # fmt: skip


def _recompute(rng):
    shape = rng.choice(("none", "selective", "selective", "full"))
    if shape == "none":
        return NoRecompute()
    if shape == "full":
        return FullRecompute(method=rng.choice(("uniform", "block")), num_layers=rng.choice((1, 2, 3, 5)))
    modules = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj")
    return SelectiveRecompute(modules=tuple(rng.sample(modules, rng.choice((1, 1, 2, 3)))))


def errors_of(spec):
    findings = check(spec, SOFTWARE)
    return {finding.id for finding in findings if finding.blocks}


def settings_of(spec):
    """What was drawn, short enough for a failure message."""
    return spec.compute_dtype, spec.kernels.moe_token_dispatcher_type, spec.model.model_dump(exclude_defaults=True)


@pytest.fixture(scope="module")
def requests():
    rng = random.Random(SEED)
    found = []
    while len(found) < NUM_REQUESTS:
        try:
            spec = drawn(rng)
        except (ValueError, BadRequestError):
            continue
        if "K28" not in errors_of(spec):
            found.append(spec)
    return found


@pytest.fixture(scope="module")
def outcomes(requests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    (folder / "specs.json").write_text(json.dumps([json.loads(spec.model_dump_json()) for spec in requests]))
    done = run_forked(RANKS / "verdicts.py", folder / "specs.json", folder / "out.json")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "out.json").read_text())


def test_what_we_allow_trains(requests, outcomes):
    allowed = [(spec, outcome) for spec, outcome in zip(requests, outcomes, strict=True) if not errors_of(spec)]
    assert len(allowed) > NUM_REQUESTS // 5
    assert [(outcome, spec.recompute.text, settings_of(spec)) for spec, outcome in allowed if outcome != "ok"] == []


def test_what_we_forbid_does_not_train(requests, outcomes):
    forbidden = [
        (errors_of(spec), outcome, spec)
        for spec, outcome in zip(requests, outcomes, strict=True)
        if errors_of(spec) - set(STRICTER)
    ]
    assert len(forbidden) > NUM_REQUESTS // 5
    assert [(ids, spec.recompute.text, settings_of(spec)) for ids, outcome, spec in forbidden if outcome == "ok"] == []
