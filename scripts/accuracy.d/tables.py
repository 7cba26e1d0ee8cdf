"""Errors as markdown."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from published import Compared


@dataclass(frozen=True)
class ClassError:
    """Errors of the cases of one class, as shares of what was measured."""

    kind: str
    num_cases: int
    mean: float
    mean_absolute: float
    largest: float
    num_in_range: int


def by_class(compared: Iterable[Compared]) -> list[ClassError]:
    """One row per class, and one over all."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for row in compared:
        groups[row.case.kind].append(row)
    rows = [_of_class(kind, members) for kind, members in sorted(groups.items())]
    return [*rows, _of_class("all", [row for members in groups.values() for row in members])]


def _of_class(kind: str, members: list[Compared]) -> ClassError:
    errors = [row.error for row in members]
    sizes = [abs(error) for error in errors]
    return ClassError(kind, len(errors), mean(errors), mean(sizes), max(sizes), sum(row.is_in_range for row in members))


def class_table(rows: Iterable[ClassError]) -> list[str]:
    """One line per class."""
    lines = ["| class | cases | mean error | mean abs | largest | in range |", "|---|---:|---:|---:|---:|---:|"]
    return lines + [
        f"| {r.kind} | {r.num_cases} | {_p(r.mean)} | {r.mean_absolute * 100:.1f} % | {r.largest * 100:.1f} % | "
        f"{r.num_in_range} |"
        for r in rows
    ]


def case_table(compared: Iterable[Compared]) -> list[str]:
    """One line per case, largest error first."""
    lines = [
        "| case | hardware | recompute | predicted GB | measured GB | error | peak at |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for row in sorted(compared, key=lambda r: -abs(r.error)):
        lines.append(
            f"| {row.case.name} | {row.case.hardware}{' LTS' if row.case.software == 'LTS' else ''} | {row.case.spec.recompute.text} | {row.predicted / 1e9:.3f} | "
            f"{row.measured / 1e9:.3f} | {_p(row.error)} | {row.prediction.stages[-1].peak} |"
        )
    return lines


def left_out_table(left_out: Mapping[str, str]) -> list[str]:
    """Reasons, each with the number of runs."""
    counts: dict[str, int] = defaultdict(int)
    for reason in left_out.values():
        counts[reason] += 1
    lines = ["| left out because | runs |", "|---|---:|"]
    return lines + [f"| {reason} | {n} |" for reason, n in sorted(counts.items(), key=lambda item: -item[1])]


def _p(share: float) -> str:
    return f"{share * 100:+.1f} %"
