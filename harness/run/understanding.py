"""Understands a request once: recipe, machine, rules, launch."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, raise_all
from harness.experiment.effective import EffectiveRecompute, effective_recompute, settled_implementation
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software, parse_assume
from harness.launch.environment import Host, secrets_in, secrets_in_name
from harness.launch.plan import LaunchPlan, LaunchRequest
from harness.launch.rendezvous import Nodes, without_asking
from harness.launch.replay import LAUNCHERS, Plan
from harness.recipes.problems import Problems, nearest
from harness.recipes.recipe import Request
from harness.recipes.resolve import Resolved, resolve
from harness.records.batches import LaunchSettings
from harness.records.goldens import GateOptions
from harness.records.redact import redact
from harness.run.machine import settled_gpu, software_for


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The experiment, how to launch it, and how to judge it. ``asked.gpu`` is empty until the machine has settled it."""

    asked: Request
    force: frozenset[str] = frozenset()
    gate: GateOptions = field(default_factory=GateOptions)
    repeats: int = 1
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    nodes: Nodes = field(default_factory=Nodes)
    run_dir: Path | None = None
    results_dir: Path | None = None


@dataclass(frozen=True)
class Settled(Resolved):
    """A resolved request in which nothing is left to the machine, and the software it is judged for."""

    software: Software


@dataclass(frozen=True)
class Understood(Settled):
    """A request that may start: no rule forbids it."""

    findings: tuple[Finding, ...]
    effective: EffectiveRecompute
    launch: LaunchRequest
    plan: Plan

    @property
    def host(self) -> Host:
        """The machine that the plan is for."""
        return self.launch.host

    def in_folder(self, run_dir: Path) -> "Understood":
        """The same request, planned for another run folder. Nothing is read, resolved or judged again."""
        launch = replace(self.launch, run_dir=run_dir)
        return replace(self, launch=launch, plan=LAUNCHERS[launch.settings.launcher](launch))


def understand(request: RunRequest, host: Host, run_dir: Path, *, dryrun: bool = False) -> Understood:
    """Resolve, settle what the machine decides, judge by the rules, and plan. Starts and writes nothing.

    ``dryrun``: nodes that were not given are filled in. BadRequestError with every problem found.
    """
    settled, secrets = looked_over(request, host)
    spec, implementation = settled.spec, settled_implementation(settled.spec)
    problems, launcher = Problems(), request.launch.launcher
    problems.found += [*secrets, *launcher_problems(request.launch)]
    launch = LaunchRequest(
        spec=spec,
        run_dir=run_dir,
        host=host,
        nodes=without_asking(spec, request.nodes) if dryrun else request.nodes,
        settings=request.launch,
    )
    plan: Plan | None = None
    with problems.collecting():
        plan = LAUNCHERS[launcher](launch) if launcher in LAUNCHERS else None
    env = {v.name: v.value for v in plan.env} if isinstance(plan, LaunchPlan) else None
    findings = check(
        spec, settled.software, env=env, implementation=implementation, force=request.force, sources=settled.sources
    )
    problems.found += [rule_problem(finding) for finding in findings if finding.blocks]
    problems.raise_if_any()
    assert plan is not None  # otherwise there were problems
    effective = effective_recompute(spec, implementation, settled.software)
    return Understood(**vars(settled), findings=findings, effective=effective, launch=launch, plan=plan)


def settle(request: RunRequest, host: Host, assume: str | None = None, known: Settled | None = None) -> Settled:
    """Resolve, with the GPU type and the layers' implementation settled by this machine or by ``assume``.

    ``known``: what was settled here before for the same GPU type, so that the machine is asked once.
    """
    settled, secrets = looked_over(request, host, assume, known)
    raise_all(secrets)  # already here, because what is refused later may be recorded
    return settled


def looked_over(
    request: RunRequest, host: Host, assume: str | None = None, known: Settled | None = None
) -> tuple[Settled, list[BadRequestError]]:
    """As :func:`settle`, and beside it what may not be recorded, for whoever has more to tell of the request.

    BadRequestError, secrets among it, for what cannot be resolved.
    """
    if known is not None:
        request = replace(request, asked=replace(request.asked, gpu=known.spec.gpu))
    assumed_gpu = parse_assume(assume, Software()).gpu if assume is not None else None
    gpu, why = settled_gpu(request.asked.gpu or assumed_gpu or "", host)
    resolved, secrets = _resolved(replace(request.asked, gpu=gpu))
    spec, notes = resolved.spec, tuple(map(redact, resolved.notes))
    sources = {name: redact(source) for name, source in resolved.sources.items()}  # paths of recipes
    if not request.asked.gpu and assumed_gpu:
        sources["gpu"] = "--assume"
    elif not request.asked.gpu:
        sources["gpu"] = "this machine"
        notes = (f"running on {gpu}: {why}", *notes)
    software, assumed = (known.software, ()) if known else software_for(spec.gpu, host, assume)
    notes = (*notes, *assumed)
    if spec.kernels.transformer_impl == "auto":
        local = spec.gpu_type.is_cpu or software.transformer_engine is None
        impl = "local" if local else "transformer_engine"
        spec = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"transformer_impl": impl})})
        sources["kernels.transformer_impl"] = "gpu cpu" if spec.gpu_type.is_cpu else "installed software"
        if local and not spec.gpu_type.is_cpu:
            notes = (
                *notes,
                "transformer-engine is not installed: megatron-core's local layers run, not the fused ones",
            )
    return Settled(spec, sources, notes, software), secrets


def _resolved(asked: Request) -> tuple[Resolved, list[BadRequestError]]:
    """With the secrets in it: variables, and the recipe's name, by which folders are called."""
    in_name = secrets_in_name("-mr", asked.model_recipe_name)
    try:
        resolved = resolve(asked)
    except BadRequestError as error:
        told = error.problems if isinstance(error, ManyProblemsError) else [error]
        raise_all([*told, *in_name, *secrets_in(given_env(asked))])
        raise
    return resolved, [*in_name, *secrets_in(resolved.spec.env)]


def given_env(asked: Request) -> dict[str, str]:
    """Variables of ``-E`` and ``--set env.NAME=``, whatever else the request says."""
    words = (*asked.env, *(text.removeprefix("env.") for text in asked.set_values if text.startswith("env.")))
    return {name.strip(): value for name, _, value in (word.partition("=") for word in words)}


def launcher_problems(launch: LaunchSettings) -> list[BadRequestError]:
    """Empty for a launcher that there is, which takes recorded runs where there are some."""
    name = launch.launcher
    if name in LAUNCHERS:
        is_idle = launch.replay_from is not None and name != "replay"
        told = f"--from {launch.replay_from}: only with --launcher replay"
        return [BadRequestError(told, remedy="add it, or leave --from out")] if is_idle else []
    return [BadRequestError(f"--launcher {name!r}: no such launcher", remedy=nearest(name, (*LAUNCHERS, "slurm")))]


def rule_problem(finding: Finding) -> BadRequestError:
    """A violated rule as an error: its id, what is wrong, the fix, and megatron-core's own words for searching."""
    own = f"\n  megatron-core would say: {finding.mcore_text}" if finding.mcore_text else ""
    forced = "" if finding.id == "MCORE" else f"\n  (--force {finding.id} runs it all the same)"
    return BadRequestError(f"{finding.id}: {finding.message}", remedy=f"{finding.fix}{own}{forced}")
