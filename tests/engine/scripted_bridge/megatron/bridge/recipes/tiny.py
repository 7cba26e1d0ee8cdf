"""A recipe function."""

from types import SimpleNamespace

from megatron.bridge.training.config import ConfigContainer

from tests.scripted_bridge import container


def tiny_gpt_config():
    """Return the job of the tests as an object."""
    sections = {name: SimpleNamespace(**value) for name, value in container().items() if name != "_target_"}
    return ConfigContainer(**sections)
