"""The exit code of a sweep: the worst of its cells, where running out of memory and being pruned are results."""

from harness.analysis.compare import GateOptions
from harness.analysis.outcome import comparison_outcome
from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.errors import ExitCode

_WORST_FIRST = (ExitCode.RUN_FAILED, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.IMPROVEMENT)


def sweep_exit_code(verdict: SweepVerdict, gate: GateOptions, num_due: int) -> ExitCode:
    """3 for a failed cell, 5 for a regression, 6 where something could not be judged, 7 on request; else 0.

    ``num_due``: runs that are still to be done; a sweep with any has no answer yet.
    """
    codes = {_exit_code(cell, gate) for cell in verdict.cells}
    unused = gate.names_one_golden and not any(cell.golden for cell in verdict.cells)
    if num_due or unused:
        codes.add(ExitCode.INCONCLUSIVE)
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)


def _exit_code(cell: CellVerdict, gate: GateOptions) -> ExitCode:
    if cell.status == "failed":
        return ExitCode.RUN_FAILED
    if cell.status != "ok":
        return ExitCode.OK
    if cell.golden is not None:
        return comparison_outcome(cell.golden, fail_on_improvement=gate.fail_on_improvement)[1]
    required = gate.require_golden or (gate.golden_values_path is not None and not gate.names_one_golden)
    return ExitCode.INCONCLUSIVE if required else ExitCode.OK
