"""Checks a request by the rules before anything runs, and words its problems as one sentence."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import BadRequestError, ExitCode, ManyProblemsError, raise_all
from harness.experiment.effective import EffectiveRecompute, effective_recompute, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import LayoutError
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import SEVERITIES, Finding
from harness.experiment.software import Software
from harness.launch.environment import Host, child_environment
from harness.launch.rendezvous import Nodes, local_ranks, node_problems
from harness.records.redact import redact_shapes
from harness.run.megatron_says import megatron_finding
from harness.run.understanding import RunRequest, Settled, launcher_problems, looked_over, rule_problem


@dataclass(frozen=True)
class Checked(Settled):
    """The verdict on a request. ``effective`` is None for a model that cannot be cut as asked.

    ``env``: the variables that its ranks would have, None where something is wrong with them.
    """

    findings: tuple[Finding, ...]
    effective: EffectiveRecompute | None
    env: dict[str, str] | None = None

    @property
    def exit_code(self) -> ExitCode:
        """2 when anything forbids the start."""
        return ExitCode.BAD_REQUEST if any(finding.blocks for finding in self.findings) else ExitCode.OK


def check_request(request: RunRequest, host: Host, *, assume: str | None, ask_megatron: bool) -> Checked:
    """Resolve, then judge by every rule for the installed software, or for what ``assume`` says will be there.

    The installed megatron-core is asked only where nothing else is assumed: its answer would be about another release.
    """
    settled, secrets = looked_over(request, host, assume)
    spec, software = settled.spec, settled.software
    implementation = settled_implementation(spec)
    env, findings = _environment(spec, request, host)
    findings += check(
        spec, software, env=env, implementation=implementation, force=request.force, sources=settled.sources
    )
    if secrets:
        raise_all(_with_others(secrets, findings))
    if ask_megatron and assume is None:
        findings.append(_with_rule(megatron_finding(spec, software, host, env), findings))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Checked(**vars(settled), findings=tuple(findings), effective=_effective(spec, software), env=env)


def _with_others(secrets: list[BadRequestError], findings: Iterable[Finding]) -> list[BadRequestError]:
    """Secrets, which no answer may repeat, and all else that forbids the start."""
    told = {secret.message for secret in secrets}
    return [
        *secrets,
        *(rule_problem(finding) for finding in findings if finding.blocks and finding.message not in told),
    ]


def _with_rule(said: Finding, findings: Iterable[Finding]) -> Finding:
    """megatron-core's refusal, pointing to the rule that knows these words."""
    own = said.mcore_text or ""
    known = [f.id for f in findings if f.mcore_text and f.mcore_text.strip() in own]
    return said.model_copy(update={"fix": f"do what {known[0]} says"}) if known else said


def _effective(spec: ExperimentSpec, software: Software) -> EffectiveRecompute | None:
    try:
        return effective_recompute(spec, settled_implementation(spec), software)
    except LayoutError:
        return None


def _environment(spec: ExperimentSpec, request: RunRequest, host: Host) -> tuple[dict[str, str] | None, list[Finding]]:
    """The variables that ranks would have; what is wrong with them or with the nodes, as findings."""
    nodes = request.nodes if request.nodes.nnodes > 1 else Nodes(nnodes=max(1, -(-spec.num_gpus // spec.gpus_per_node)))
    problems = launcher_problems(request.launch)
    problems += node_problems(spec, request.nodes) if request.nodes.nnodes > 1 else []
    env: dict[str, str] | None = None
    try:
        variables = child_environment(
            spec,
            host.shell,
            request.launch.pass_env,
            local_ranks(spec, nodes),
            num_cores=host.num_cores,
            nnodes=nodes.nnodes,
        )
        env = {variable.name: variable.value for variable in variables}
    except ManyProblemsError as error:
        problems += error.problems
    except BadRequestError as error:
        problems.append(error)
    return env, [Finding(id="LAUNCH", severity="error", message=p.message, fix=p.remedy) for p in problems]


def in_one_sentence(problem: BadRequestError) -> str:
    """``what is wrong (what to do)``; several problems one after the other, secrets masked."""
    if isinstance(problem, ManyProblemsError):
        return "; ".join(in_one_sentence(one) for one in problem.problems)
    return redact_shapes(f"{problem.message} ({problem.remedy})" if problem.remedy else problem.message)
