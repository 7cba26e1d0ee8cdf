"""Errors as markdown."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, median, quantiles

from page import plain, signed, table
from published import Compared

from harness.units import grouped


@dataclass(frozen=True)
class ClassError:
    """Errors of the cases of one class, as shares of what was measured. ``worst`` has its sign."""

    kind: str
    num_cases: int
    num_runs: int
    mean: float
    mean_absolute: float
    median_absolute: float
    p90_absolute: float
    worst: float
    num_under: int
    num_in_range: int


def by_class(compared: Iterable[Compared], kind_of: Callable[[Compared], str]) -> list[ClassError]:
    """Return a row per class, in order of their names."""
    groups = grouped((kind_of(row), row) for row in compared)
    return [class_error(kind, groups[kind]) for kind in sorted(groups)]


def class_error(kind: str, members: list[Compared]) -> ClassError:
    """Return the errors over ``members``, at least one."""
    errors = [row.error for row in members]
    sizes = [abs(error) for error in errors]
    return ClassError(
        kind,
        num_cases=len(errors),
        num_runs=sum(len(row.case.paths) for row in members),
        mean=mean(errors),
        mean_absolute=mean(sizes),
        median_absolute=median(sizes),
        p90_absolute=quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0],
        worst=max(errors, key=abs),
        num_under=sum(error < 0 for error in errors),
        num_in_range=sum(row.is_in_range for row in members),
    )


def class_table(title: str, rows: Iterable[ClassError]) -> list[str]:
    """Return a Markdown line per class."""
    heads = "cases: | runs: | mean: | mean abs: | median abs: | p90 abs: | worst: | too low: | in range:"
    return table(f"{title} | {heads}", (
        (r.kind, r.num_cases, r.num_runs, signed(r.mean), *map(plain, (r.mean_absolute, r.median_absolute, r.p90_absolute)),
         signed(r.worst), r.num_under, r.num_in_range)
        for r in rows
    ))  # fmt: skip


def case_table(compared: Iterable[Compared]) -> list[str]:
    """Return a Markdown line per case, largest error first."""
    cells = []
    for row in sorted(compared, key=lambda r: -abs(r.error)):
        spec = row.case.spec
        gpu = f"{spec.gpu.upper()}{' LTS' if row.case.software == 'lts' else ''}"
        kernel = "local" if row.case.implementation == "local" else spec.kernels.attention_backend
        cells.append((
            row.case.name, gpu, kernel, spec.recompute.text, f"{row.predicted / 1e9:.3f}", f"{row.measured / 1e9:.3f}", signed(row.error),
            "yes" if row.is_in_range else "no", f"{row.rival / 1e9:.3f}" if row.rival else "-",
        ))  # fmt: skip
    heads = "case | GPU | attention | recompute | predicted GB: | measured GB: | error: | in range | Bridge GB:"
    return table(heads, cells)


def reason_table(title: str, reasons: Mapping[str, str]) -> list[str]:
    """Return Markdown lines of reasons, each with the number of runs."""
    return table(f"{title} | runs:", Counter(reasons.values()).most_common())
