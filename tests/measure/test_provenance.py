"""Where a run was measured."""

import pytest

from harness.measure.provenance import container_of


@pytest.mark.parametrize(
    ("shell", "image"),
    [
        ({"NVIDIA_PYTORCH_VERSION": "25.09", "NVIDIA_BUILD_ID": "1234"}, "nvidia pytorch 25.09 build 1234"),
        ({"NVIDIA_PYTORCH_VERSION": "25.09"}, "nvidia pytorch 25.09"),
        ({"NVIDIA_BUILD_ID": "1234"}, None),
        ({}, None),
    ],
)
def test_an_image_of_nvidia_is_named_by_its_own_variables(shell, image):
    assert container_of(shell) == image
