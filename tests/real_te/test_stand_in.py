"""The stand-in, over which mbr-perf predicts, saves and frees what transformer-engine's own Python does."""

import pytest

pytestmark = pytest.mark.train
SETTINGS = ("none", "core_attn", "mlp", "full:uniform:1")
FIELDS = ("saved_bytes", "forward_peak_bytes", "backward_peak_bytes")


@pytest.fixture(scope="module")
def both(real_trace, stand_in_trace, models):
    cases = [models.case(setting, models.llama(setting)) for setting in SETTINGS]
    return real_trace(cases), stand_in_trace(cases).chunks


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_dense_layer_takes_the_same_bytes(both, setting):
    real, stand_in = both
    assert "failed" not in real[setting], real[setting]["failed"]
    assert {f: real[setting][f] for f in FIELDS} == stand_in[setting].model_dump(include=set(FIELDS))
