"""The frame of every HTML page, which needs no network and no other file; text as HTML and as Markdown shows it."""

import html
import re
from collections.abc import Sequence

from harness.report.console import visible

_STYLE = """
body { font: 15px/1.45 Arial, Helvetica, sans-serif; color: #111; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } .answer { font-size: 1.05em; border-left: 4px solid #0072B2; padding: .4em .8em; background: #f4f7fa; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { padding: 3px 9px; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
.right { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 2em 0; } figcaption { color: #444; font-size: 13px; max-width: 60em; }
.bad { color: #b03a00; } footer { color: #555; font-size: 12px; overflow-wrap: anywhere; }
"""
# Nothing may be fetched, whatever a name in the page tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; "
_SCRIPTS = "script-src 'unsafe-inline' 'unsafe-eval'; "

# Characters that would start markup, a table cell or HTML.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def escape(text: str) -> str:
    """``text`` as a page shows it; what would steer a terminal that prints the page is legible, too."""
    return html.escape(visible(text))


def html_page(title: str, body: Sequence[str], *, style: str = "", runs_scripts: bool = False) -> str:
    """The page around ``body``, which is HTML already; ``style`` is added to that of all pages."""
    policy = f"{_POLICY}{_SCRIPTS if runs_scripts else ''}img-src data:"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{style}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def as_markdown(text: str) -> str:
    """Text as it stands, on one line: nothing in it becomes a table cell, a link or HTML."""
    return _MARKUP.sub(r"\\\1", visible(" ".join(text.split())))
