"""How an outcome looks on a page: a sign and a word in a colour, so that nobody needs to tell colours apart."""

from harness.report.html_page import escape

# Tints of the palette of Okabe and Ito, on which black text reads well; what is red is also bold.
CELL_STYLE = """
.o-pass { background: #d5efe5; } .o-improvement { background: #d3ebf9; } .o-inconclusive { background: #fbf6c1; }
.o-regression { background: #f6b98f; font-weight: bold; } .o-failed { background: #e8a0a0; font-weight: bold; }
.o-oom { background: #e7bcd3; font-weight: bold; } .o-expected { background: #e4e4e4; font-weight: normal; }
.o-none { background: #fff; color: #777; }
"""
_SIGNS = {
    "pass": "\N{CHECK MARK}", "improvement": "\N{BLACK UP-POINTING TRIANGLE}", "inconclusive": "?",
    "regression": "\N{BLACK DOWN-POINTING TRIANGLE}", "failed": "\N{MULTIPLICATION X}", "oom": "\N{BLACK SQUARE}",
}  # fmt: skip


def outcome_cell(outcome: str, text: str, *, is_expected: bool, link: str = "", beside: str = "") -> str:
    """A table cell: the sign of ``outcome``, ``text`` (linked where there is a ``link``), and small print ``beside``."""
    shown = escape(f"{_SIGNS.get(outcome, '')} {text}")
    linked = f'<a href="{escape(link)}">{shown}</a>' if link else shown
    small = f"<br><small>{escape(beside)}</small>" if beside else ""
    kind = "expected" if is_expected else outcome if outcome in _SIGNS else "none"
    return f'<td class="o-{kind}">{linked}{small}</td>'
