"""What the rules say of settings that a diagnosis speaks of: those of the job, and those of every command it prints."""

from harness.analysis.diagnosis.refusals import Rulings
from harness.analysis.diagnosis.values import Case
from harness.errors import BadRequestError, ManyProblemsError
from harness.launch.environment import Host, child_environment
from harness.launch.rendezvous import Nodes, local_ranks
from harness.runner.machine import software_for
from harness.spec.effective import settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.check import check
from harness.spec.rules.finding import Finding


def rulings_on(case: Case, host: Host) -> Rulings:
    """By the software that a run on the job's GPUs would find, as `run` judges it. Without a spec nothing is refused."""
    spec = case.spec
    if spec is None:
        return Rulings()
    software = software_for(spec.gpu, host)[0]

    def refused(asked: ExperimentSpec, env: dict[str, str] | None) -> tuple[Finding, ...]:
        found = check(asked, software, env=env, implementation=settled_implementation(asked))
        return tuple(finding for finding in found if finding.blocks and finding.id not in case.forced)

    def start(asked: ExperimentSpec) -> tuple[Finding, ...]:
        env, problems = _environment(asked, host)
        return (*problems, *refused(asked, env))

    return Rulings(refused(_as_known(case, spec), None), start)


def _as_known(case: Case, spec: ExperimentSpec) -> ExperimentSpec:
    """Of a job of others, without the variables that only the recipe would set."""
    said = dict(case.sources)
    if not case.is_told:
        return spec
    env = {name: value for name, value in spec.env.items() if said.get(f"env.{name}", "").startswith("--")}
    return spec.model_copy(update={"env": env})


def _environment(spec: ExperimentSpec, host: Host) -> tuple[dict[str, str] | None, tuple[Finding, ...]]:
    """The variables that ranks would have, started from this shell; what contradicts the spec among them."""
    nodes = Nodes(nnodes=max(1, -(-spec.num_gpus // spec.gpus_per_node)))
    try:
        found = child_environment(
            spec, host.shell, (), local_ranks(spec, nodes), num_cores=host.num_cores, nnodes=nodes.nnodes
        )
    except ManyProblemsError as error:
        return None, tuple(map(_finding, error.problems))
    except BadRequestError as error:
        return None, (_finding(error),)
    return {variable.name: variable.value for variable in found}, ()


def _finding(problem: BadRequestError) -> Finding:
    return Finding(id="LAUNCH", severity="error", message=problem.message, fix=problem.remedy)
