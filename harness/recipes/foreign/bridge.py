"""Reads the job of a Megatron-Bridge `ConfigContainer` file: `--bridge_config`."""

from pathlib import Path

from harness.recipes.foreign.container_fields import container_layer
from harness.recipes.foreign.container_file import read_container
from harness.recipes.recipe import ForeignSource, Request
from harness.recipes.settings import Layer


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the file. BadRequestError with every field that has no counterpart here."""
    del request
    return container_layer(read_container(Path(source.path), source.label))
