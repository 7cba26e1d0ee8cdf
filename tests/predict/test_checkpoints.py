"""What the host does beside the operations of a trace, and what layers keep by module."""

import json

import pytest

from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute, parse_recompute
from harness.experiment.software import Software
from harness.predict.shipped_traces import find_events, find_shipped
from harness.predict.stages import Composer
from harness.predict.step_modules import _modules, by_module
from harness.predict.time_model import ATTENTION, CALL
from harness.predict.trace_book import AROUND, work_around_checkpoints
from harness.records.folders import results_dir
from tests.predict.test_rank_events import IMPLEMENTATION, RELEASE, point

MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}


def beside(spec, recompute):
    """How many calls of modules run again, and how many checkpoints they are in. What is a call is no simple operation."""
    work = work_around_checkpoints(spec.model_copy(update={"recompute": parse_recompute(recompute)}))
    checkpoints = sum(count for _, count in work) / AROUND
    calls = sum(count for op, count in work if op.kind == "gemm")
    return pytest.approx(calls - AROUND * checkpoints), pytest.approx(checkpoints)


@pytest.fixture
def latent(moe_spec):
    model = type(moe_spec.model).model_validate(moe_spec.model.model_dump() | {"mla": MLA, "qk_layernorm": False})
    return moe_spec.model_copy(update={"model": model})


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", (0, 0)),
        ("full:uniform:1", (6, 1)),  # a norm, four permutations of tokens, the experts' activation
        ("moe", (5, 1)),
        ("moe_act", (1, 1)),
        ("core_attn,moe_act", (1, 2)),
        ("layernorm", (1, 1)),  # the norm before attention is fused into the projection of Q, K and V
    ],
)
def test_modules_that_run_again_are_called_again(moe_spec, recompute, expected):
    assert beside(moe_spec, recompute) == expected


@pytest.mark.parametrize(
    ("kind", "recompute", "expected"),
    [("dense", "layernorm", (1, 1)), ("moe", "layernorm,mla_up_proj", (2, 3)), ("dense", "full:uniform:1", (2, 1))],
)
def test_layers_with_latent_attention_have_norms_of_their_own(latent, kind, recompute, expected):
    spec = latent.model_copy(update={"model": latent.model.of_kind(kind, 1)})
    assert beside(spec, recompute) == expected


def test_the_constants_are_those_that_the_command_measured():
    found = json.loads((results_dir() / "accuracy" / "host.json").read_text())
    assert [found[name] for name in ("around", "call", "attention")] == pytest.approx(
        [AROUND, CALL, ATTENTION], rel=0.1
    )


SIXTY_FOURTH = 1 / 64  # of what is shipped of a layer: requests below 64 KiB are left out


@pytest.mark.parametrize(
    ("recipe", "num_gpus", "kind", "active", "modules"),
    [
        ("llama3_8b", 8, "dense", (), {"mlp"}),
        ("deepseek_v3", 1024, "moe", (), {"moe_act", "shared_experts", "mla_up_proj", "layernorm", "moe"}),
        ("deepseek_v3", 1024, "moe", ("moe_act", "mla_up_proj"), {"shared_experts", "layernorm", "moe"}),
    ],
)
def test_modules_keep_what_their_recompute_would_free(recipe, num_gpus, kind, active, modules):
    traces, events = find_shipped(RELEASE, Software())[0], find_events(RELEASE, Software())
    composer = Composer(point(recipe, num_gpus), IMPLEMENTATION)
    policy = SelectiveRecompute(modules=active) if active else NoRecompute()

    def saved(policy):
        one, two = (traces.read(composer.make.layers(kind, policy, n), 1.0).chunk for n in (1, 2))
        return two.saved_bytes - one.saved_bytes

    names = _modules(composer, kind, policy, events.read)
    sizes = [row for row in events.read(composer.make.layers(kind, policy, 3)).layer.forward if row > 0]
    kept = {name: sum(size for size, of in zip(sizes, names, strict=True) if of == name) for name in {*names} - {""}}
    assert modules <= {*kept} <= modules | {"core_attn"}
    for name in modules:
        freed = (
            saved(policy) - saved(SelectiveRecompute(modules=(*active, name))) if name != "moe" or not active else None
        )
        inside = {each for each in kept if MODULES[each].inside == name}  # inner modules go before
        assert freed is None or sum(kept[each] for each in (name, *inside)) == pytest.approx(freed, rel=SIXTY_FOURTH)


def test_only_forward_passes_of_layers_that_are_not_under_full_recompute_are_split():
    events, composer = find_events(RELEASE, Software()), Composer(point("llama3_8b", 8), IMPLEMENTATION)
    names = _modules(composer, "dense", NoRecompute(), events.read)
    runs = {"layers": ("", "", *names), "layers, backward": names}  # what the first micro-batch makes for all is before
    asked = [(group, "layer 0", "micro-batch 0") for group, run in runs.items() for _ in run]
    found = by_module(dict(enumerate(asked)), composer, 0, events.read)
    split = [f"layers, {name}" if name else "layers" for name in runs["layers"]]
    assert [label[0] for label in found.values()] == [*split, *["layers, backward"] * len(names)]
    full = composer.with_recompute(FullRecompute(method="uniform", num_layers=1))
    assert by_module(dict(enumerate(asked)), full, 0, events.read) == dict(enumerate(asked))
