"""Weight gradients that are added inside the matrix product, with and without Apex."""

import json
from pathlib import Path

import pytest

from harness.records.trace import TraceRequest
from tests.engine.conftest import answer_of

HERE = Path(__file__).parent

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def last_stage(te_folder, models, tmp_path_factory):
    """One layer, output layer and loss of Llama3-70B over TP 4."""

    def build(*apex):
        folder = tmp_path_factory.mktemp("apex")
        asked, out = folder / "request.json", folder / "out.json"
        cases = (models.case("last", models.llama("none"), post=True),)
        asked.write_text(TraceRequest(cases=cases, implementation="transformer_engine").model_dump_json())
        answer_of(HERE / "without_apex.py", te_folder, asked, out, *apex)
        return json.loads(out.read_text())

    return {"with": build("apex"), "without": build()}


def test_transformer_engines_layers_fuse_theirs_without_apex(last_stage):
    """All four linear layers of the decoder; only megatron-core's own output layer needs Apex."""
    for apex in ("with", "without"):
        assert list(last_stage[apex]["transformer_engine"].values()) == [True] * 4
    assert (last_stage["with"]["output_layer"], last_stage["without"]["output_layer"]) == (True, False)


def test_without_apex_the_output_layer_allocates_its_weight_gradient_and_keeps_no_dummy(last_stage):
    weight_gradient = 128512 // 4 * 8192 * 2  # the padded vocabulary over TP 4, in bf16
    more = {
        name: last_stage["without"][name] - last_stage["with"][name]
        for name in ("backward_peak_bytes", "persistent_bytes")
    }
    assert more == {"backward_peak_bytes": weight_gradient, "persistent_bytes": -weight_gradient}
    assert last_stage["without"]["saved_bytes"] == last_stage["with"]["saved_bytes"]
