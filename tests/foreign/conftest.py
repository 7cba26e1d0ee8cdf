"""What files of Megatron-LM's arguments resolve to."""

import pytest

from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve


@pytest.fixture
def resolved(tmp_path):
    """What a text of arguments resolves to."""

    def resolving(text, **asked):
        path = tmp_path / "train.sh"
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
        source = ForeignSource("megatron_args", str(path))
        request = Request(**{"model_recipe_name": "", "source": source, "gpu": "h100", "num_gpus": 8} | asked)
        return resolve(request, starts=True)

    return resolving
