"""The table of differences that stay, `kept.yaml`."""

from dataclasses import dataclass
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("kept.yaml")


@dataclass(frozen=True)
class Kept:
    """A field that differs on purpose; ``points`` names points, whole recipes, or ``all``."""

    field: str
    points: tuple[str, ...]
    reason: str

    def covers(self, field: str, point: str) -> bool:
        """Return whether a difference of this field at this point is listed."""
        recipe = point.partition(".")[0]
        return field == self.field and any(name in ("all", recipe, point) for name in self.points)


def read_kept(path: Path = TABLE) -> tuple[Kept, ...]:
    """Return the rows of the table; every row gives a reason."""
    rows = yaml.safe_load(path.read_text())["kept"]
    return tuple(
        Kept(row["field"], ("all",) if row["points"] == "all" else tuple(row["points"]), row["reason"]) for row in rows
    )
