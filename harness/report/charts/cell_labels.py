"""What each cell of a sweep is called in pictures."""

from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.report.charts.look import shortened


def labels(verdict: SweepVerdict) -> dict[str, str]:
    """What each cell is called in pictures: its name, shortened, with its number where two would look alike."""
    short = {cell.name: shortened(cell.name) for cell in verdict.cells}
    seen = list(short.values())
    return {
        cell.name: _marked(
            short[cell.name] if seen.count(short[cell.name]) == 1 else f"#{cell.index} {short[cell.name]}", cell
        )
        for cell in verdict.cells
    }


def _marked(text: str, cell: CellVerdict) -> str:
    return f"{text} (control)" if cell.is_control else text
