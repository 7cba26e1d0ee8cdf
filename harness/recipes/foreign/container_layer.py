"""A Megatron-Bridge `ConfigContainer` as a layer of settings, each with the line of the file that says it."""

from harness.recipes.foreign.container_fields import FIELDS
from harness.recipes.foreign.container_file import Container
from harness.recipes.settings import Layer, Setting


def container_layer(container: Container) -> Layer:
    """Read every setting of the table of fields. A null, or a setting that the file's version lacks, sets nothing.

    Raises BadRequestError with ``file:line`` for a value that has no counterpart here.
    """
    settings: dict[str, Setting] = {}
    for row in FIELDS:
        found = container.find(*row.names)
        if found is None or (row.only is not None and not container.value(row.only)):
            continue
        value = row.read(container, found.path)
        source = f"{container.label}:{found.line}"
        if row.path == "env" and isinstance(value, dict):
            settings.update({f"env.{name}": Setting(each, source, found.path) for name, each in value.items()})
        elif value is not None:
            settings[row.path] = Setting(value, source, found.path)
    return settings
