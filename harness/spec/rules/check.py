"""All rules against one request."""

from collections.abc import Mapping

from harness.errors import BadRequestError
from harness.spec.effective import Implementation, settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import SEVERITIES, Finding
from harness.spec.rules.situation import Situation
from harness.spec.rules.table import RULES, applicable
from harness.spec.software import Software


def check(
    spec: ExperimentSpec,
    software: Software,
    *,
    env: Mapping[str, str] | None = None,
    implementation: Implementation | None = None,
    force: frozenset[str] = frozenset(),
) -> tuple[Finding, ...]:
    """Every rule that ``spec`` violates, errors first. A finding with ``blocks`` means: start nothing.

    ``env`` is the environment the ranks will have; without it only ``spec.env`` is judged. ``implementation`` is the
    settled kernels.transformer_impl. ``force`` names errors to go past; BadRequestError for an id that is no rule.
    """
    _know_all(force)
    situation = Situation(spec, software, implementation or settled_implementation(spec), env)
    findings = [finding for rule in applicable(situation) if (finding := rule.judge(situation))]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return tuple(_forced(finding) if finding.id in force else finding for finding in findings)


def _know_all(force: frozenset[str]) -> None:
    unknown = sorted(force - {rule.id for rule in RULES})
    if unknown:
        raise BadRequestError(
            f"--force {', '.join(unknown)}: no such rule",
            remedy="`mbr-perf rules` lists them; `check` names those violated",
        )


def _forced(finding: Finding) -> Finding:
    return finding.model_copy(update={"overridden": True}) if finding.severity == "error" else finding
