"""The rows of a comparison with foreign golden values, as people read them."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.analysis.foreign.values import METRIC
from harness.analysis.gate import Finding
from harness.report import figures
from harness.units import format_percent


@dataclass(frozen=True)
class _Check:
    """A row that is no metric: how its values and its limit are shown."""

    title: str
    value: Callable[[float], str]
    allowed: Callable[[float], str]


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


_CHECKS = {
    "grad_norm_non_finite": _Check("Gradient norms not finite", lambda value: f"{value:.0f}", lambda _: "0"),
    "loss_correlation": _Check("Loss: correlation", lambda value: f"{value:.4f}", lambda limit: f"at least {limit:g}"),
    "loss_points": _Check("Loss: points out of tolerance", _share, lambda limit: f"at most {_share(limit)}"),
    "loss_final": _Check("Loss: last", lambda value: f"{value:.6g}", lambda limit: f"within {_share(limit)}"),
    "loss_outliers": _Check("Loss: outliers", _share, lambda limit: f"at most {_share(limit)}"),
}


def title(name: str) -> str:
    """What the metric or check is called."""
    return METRIC[name].title if name in METRIC else _CHECKS[name].title


def cells(finding: Finding) -> tuple[str, str, str, str, str]:
    """Title, the log's value, the golden's, the change, and what is allowed."""
    if finding.metric in METRIC:
        metric = METRIC[finding.metric]
        return (
            metric.title,
            figures.figure(metric, finding.current),
            figures.figure(metric, finding.golden),
            figures.change(finding),
            _allowed(finding),
        )
    check = _CHECKS[finding.metric]
    current, golden = (figures.ABSENT if one is None else check.value(one) for one in (finding.current, finding.golden))
    limit = figures.ABSENT if finding.threshold is None else check.allowed(finding.threshold)
    return check.title, current, golden, figures.change(finding), limit


def _allowed(finding: Finding) -> str:
    if finding.threshold is None:
        return figures.ABSENT
    higher = METRIC[finding.metric].better == "higher"
    return format_percent(-finding.threshold if higher else finding.threshold)
