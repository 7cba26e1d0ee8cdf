"""What layers keep by module: as much as the traces of the same layers say that its recompute saves."""

import pytest

from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.experiment.software import Software
from harness.predict.shipped_events import find_events
from harness.predict.shipped_traces import find_shipped
from harness.predict.stages import Composer
from harness.predict.step_modules import _modules, by_module
from tests.predict.test_rank_events import IMPLEMENTATION, RELEASE, point

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
