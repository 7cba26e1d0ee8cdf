"""Small bars as SVG inside a page, for where no picture can be drawn."""

from collections.abc import Sequence

from harness.report.html_page import escape

_BAR, _NAME, _STEP = 360, 250, 20


def svg_bars(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars of (name, value, value as text) on one scale from zero; nothing for no bars."""
    if not bars:
        return ""
    longest = max(value for _, value, _ in bars) or 1.0
    lines = []
    for number, (name, value, text) in enumerate(bars):
        top, wide = number * _STEP, max(value, 0) / longest * _BAR
        lines.append(
            f'<text x="{_NAME - 6}" y="{top + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_NAME}" y="{top + 3}" width="{wide:.1f}" height="14" fill="#0072B2"/>'
            f'<text x="{_NAME + wide + 5:.1f}" y="{top + 14}">{escape(text)}</text>'
        )
    wide, high = _NAME + _BAR + 90, len(bars) * _STEP
    return (
        f"<figure><figcaption><b>{escape(title)}</b></figcaption>"
        f'<svg width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" role="img" font-size="12">{"".join(lines)}</svg></figure>'
    )
