"""Without --gpu, a machine with unknown GPUs does not count as one without."""

from dataclasses import replace

import pytest

from harness.launch.environment import this_host
from harness.launch.machine import settled_gpu
from tests.commands import refused


@pytest.fixture(name="answering")
def _answering(program):
    """This machine, with a shell script in the place of the interpreter that asks NVML."""
    return lambda body: replace(this_host(), python=program(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'Segmentation fault' >&2; exit 139", "exit code 139: Segmentation fault"),
        ("echo what", ": what"),
        ("""echo '{"gpus": [{"index": 0, "error": "GPU is lost (NVML 15)"}]}'""", "GPU is lost"),
    ],
)
def test_unknown_gpus_are_no_cpu_run(answering, body, reason):
    refused(lambda: settled_gpu(answering(body)), reason)


def test_a_machine_without_the_driver_is_one_without_gpus(answering):
    gpu, source = settled_gpu(answering("""echo '{"error": "no library (NVML 12)"}'"""))
    assert (gpu, source.endswith(" (no library (NVML 12))")) == ("cpu", True)
