"""A recipe function."""

from types import SimpleNamespace

from megatron.bridge.training.config import ConfigContainer

from tests.scripted_bridge import container


def tiny_gpt_config():
    """Return the job of the tests as an object."""
    sections = {name: SimpleNamespace(**value) for name, value in container().items() if name != "_target_"}
    return ConfigContainer(**sections)


def hooked_config():
    """Return the job with a hook on its model, as `register_pre_wrap_hook` leaves it."""
    config = tiny_gpt_config()
    config.model.pre_wrap_hook = list
    return config
