"""A console on which data are only text: what would steer a terminal is shown as it would be written in a program."""

import re
from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

# Controls but tab and newline, marks that turn the direction of writing, and bytes that are no UTF-8.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    r"""``text`` with what would steer a terminal as ``\x1b`` or ``\u202e``."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    r"""``text`` as :func:`visible`, with a line break as ``\n``: nothing in it can look like a line of ours."""
    return visible(text).replace("\n", "\\n")


class Console(rich.console.Console):
    """As rich's. Names and messages come from recipes, logs and records, and may hold anything."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``; rich's own movements of the cursor are no text and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
