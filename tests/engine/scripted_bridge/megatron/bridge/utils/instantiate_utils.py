"""How strictly a configuration is read."""

from enum import Enum


class InstantiationMode(Enum):
    """Lenient reading, Bridge's default, drops what it cannot instantiate."""

    STRICT = "strict"
    LENIENT = "lenient"
