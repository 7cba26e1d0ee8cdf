"""Prints what a command answers: a page, or a JSON document."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.show.json import Document
    from harness.show.page import Page


def answer(document: "Callable[[], Document]", page: "Callable[[], Page]", *, as_json: bool) -> None:
    """Print the document with ``--json``, else the page. Only that one is made."""
    if as_json:
        from harness.show import json

        json.answer(document())
    else:
        from harness.show.terminal import show_page

        show_page(page())
