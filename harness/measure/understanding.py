"""Resolves a request once (recipe, machine, rules, launch), or checks it without a launch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import BadRequestError, Problems, SeveralMatchError, nearest, raise_all, with_cure
from harness.experiment.effective import EffectiveRecompute, effective_recompute, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding, Launcher
from harness.experiment.software import Software, parse_assume
from harness.launch.environment import Host, child_environment, secrets_in
from harness.launch.environment_rows import ALLOCATOR, EXPORTS, STOPS, exports
from harness.launch.machine import settled_gpu, software_for
from harness.launch.plan import LaunchPlan, LaunchRequest, Nodes, node_problems, without_asking
from harness.launch.replay import LAUNCHERS, Plan
from harness.predict.allocator_settings import notes_of, require_taken
from harness.records.gating import GateOptions, LaunchSettings
from harness.records.job import CLUSTERS
from harness.records.redact import redact
from harness.resolve.recipe import ASSUMED, Request
from harness.resolve.resolve import Resolved, on_gpu_point, resolve


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """An experiment, its launch and its judging. ``starts``: mbr-perf starts the job; `plan` and `check` start none."""

    asked: Request
    starts: bool = False
    force: frozenset[str] = frozenset()
    gate: GateOptions = field(default_factory=GateOptions)
    repeats: int = 1
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    nodes: Nodes = field(default_factory=Nodes)
    run_dir: Path | None = None
    results_dir: Path | None = None


@dataclass(frozen=True)
class Settled(Resolved):
    """A resolved request without open settings, and the software that it is judged for.

    ``from_point``: missing options of `Request` that the recipe's only matching GPU point provides. ``secrets``:
    problems with values that must not be recorded.
    """

    software: Software
    from_point: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    secrets: tuple[BadRequestError, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Understood(Settled):
    """A request that may start, because no rule forbids it."""

    findings: tuple[Finding, ...]
    effective: EffectiveRecompute
    launch: LaunchRequest
    plan: Plan

    @property
    def host(self) -> Host:
        return self.launch.host

    def in_folder(self, run_dir: Path) -> "Understood":
        """Return the same request in another run folder, without reading, resolving or judging again."""
        launch = replace(self.launch, run_dir=run_dir)
        return replace(self, launch=launch, plan=LAUNCHERS[launch.settings.launcher](launch))


def understand(request: RunRequest, host: Host, run_dir: Path, *, dryrun: bool = False) -> Understood:
    """Resolve, settle, apply the rules, and plan. ``dryrun`` fills in nodes. BadRequestError with all problems."""
    settled = settle(replace(request, starts=True), host, takes_secrets=True)
    spec, problems, launcher = settled.spec, Problems(), request.launch.launcher
    problems.found += [*settled.secrets, *launcher_problems(request.launch)]
    nodes = without_asking(spec, request.nodes) if dryrun else request.nodes
    launch = LaunchRequest(spec, run_dir, host, nodes, request.launch)
    plan: Plan | None = problems.tried(lambda: LAUNCHERS[launcher](launch)) if launcher in LAUNCHERS else None
    env = plan.variables if isinstance(plan, LaunchPlan) else None
    if env and (value := env.get(ALLOCATOR)) and not spec.gpu_type.is_cpu:
        problems.tried(lambda: require_taken(value, where=ALLOCATOR))  # it may be the shell's, which nothing has read
    judge = partial(check, software=settled.software, env=env, force=request.force)
    findings = judge(spec)
    cure = () if problems.found else mending(settled, findings, judge)
    problems.found += with_cure([rule_problem(finding) for finding in findings if finding.blocks], cure)
    problems.raise_if_any()
    assert plan is not None  # otherwise there were problems
    effective = effective_recompute(spec, settled_implementation(spec), settled.software)
    return Understood(**with_note_on_steps(settled), findings=findings, effective=effective, launch=launch, plan=plan)


def settle(
    request: RunRequest,
    host: Host,
    assume: str | None = None,
    known: Settled | None = None,
    *,
    gpu_point: bool = False,
    takes_secrets: bool = False,
) -> Settled:
    """Resolve the request. This machine or ``assume`` settles the GPU type and the implementation of the layers.

    ``known``: an earlier result for the same GPU type, so that the machine is queried once. ``gpu_point``: on a machine
    without a GPU, use the recipe's only matching GPU point. ``takes_secrets``: the caller refuses them, with more.
    """
    given = request.asked
    if known is not None:
        given = replace(given, **{"gpu": known.spec.gpu, **known.from_point})  # type: ignore[arg-type]
    assumed_gpu = parse_assume(assume, Software()).gpu if assume is not None else None
    named = given.gpu or assumed_gpu or ""
    asked, from_point, notes = replace(given, gpu=named.lower()), dict[str, str](), tuple[str, ...]()
    if not named and gpu_point:
        asked, from_point, notes = _on_assumed_gpu(given, host)
    elif not named:
        gpu, why = settled_gpu(host)
        asked, notes = replace(given, gpu=gpu), (f"running on {gpu}: {why}",)
    resolved, secrets = _resolved(asked, host, starts=request.starts)
    raise_all([] if takes_secrets else [*secrets])  # here, because a request that is refused later may be recorded
    spec, notes = resolved.spec, (*notes, *map(redact, resolved.notes))
    sources = {name: redact(source) for name, source in resolved.sources.items()}  # paths of recipes
    if not given.gpu and not from_point:
        sources["gpu"] = "--assume" if assumed_gpu else "this machine"
    sources |= dict.fromkeys(from_point, "the only matching GPU point of the recipe")
    software, assumed = (known.software, ()) if known else software_for(spec.gpu, host, assume)
    notes = (*notes, *assumed, *(() if spec.gpu_type.is_cpu else notes_of(spec, software, assume)))
    settled = Settled(spec, sources, notes, software, from_point=from_point, secrets=secrets)
    return _with_layers(settled)


def _with_layers(settled: Settled) -> Settled:
    """Settle which layers run: transformer-engine's on a GPU where it is installed, else megatron-core's local ones."""
    spec, is_cpu, notes = settled.spec, settled.spec.gpu_type.is_cpu, settled.notes
    if spec.kernels.transformer_impl != "auto":
        return settled
    layers = "local" if is_cpu or settled.software.transformer_engine is None else "transformer_engine"
    if layers == "local" and not is_cpu:
        notes += ("transformer-engine is not installed: megatron-core's local layers run",)
    spec = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"transformer_impl": layers})})
    sources = settled.sources | {"kernels.transformer_impl": "gpu cpu" if is_cpu else "installed software"}
    return replace(settled, spec=spec, sources=sources, notes=notes)


def _on_assumed_gpu(asked: Request, host: Host) -> tuple[Request, dict[str, str], tuple[str]]:
    """Return the request for the GPU of its log, this machine or its only GPU point, that point's options, a note."""
    logs = [asked.source.path] if asked.source is not None and asked.source.kind == "megatron_args" else []
    gpu, note = assumed_gpu(logs, host)
    return _on_gpu_point(asked) if gpu == "cpu" else (replace(asked, gpu=gpu), {}, (note,))


def assumed_gpu(logs: Sequence[str], host: Host) -> tuple[str, str]:
    """Return the GPU type that the logs of a job name, else this machine's, and a note that says so."""
    gpu, why = "", ""
    if logs:
        from harness.foreign.gpu_of_log import gpu_of_log

        gpu, why = gpu_of_log(logs)
    if not gpu:
        gpu, why = settled_gpu(host)
    return gpu, f"{ASSUMED}: {gpu}, because {why}; change with -g"


def _on_gpu_point(asked: Request) -> tuple[Request, dict[str, str], tuple[str]]:
    """The request with the options of the recipe's only matching GPU point, these options, and a note that names it."""
    try:
        chosen, point = on_gpu_point(asked)
    except SeveralMatchError:
        raise_all(secrets_in(given_env(asked), *asked.job_words))
        raise
    options = {name: getattr(chosen, name) for name in ("gpu", "task", "compute_dtype", "variant")}
    given = {name: value for name, value in options.items() if value and not getattr(asked, name)}
    note = f"{ASSUMED}: {point.title} ({point.place}), the only GPU point of the recipe that matches; change with -g"
    return chosen, given, (note,)


def _resolved(asked: Request, host: Host, *, starts: bool) -> tuple[Resolved, tuple[BadRequestError, ...]]:
    """Resolve the request. Also return the secrets in its variables and in the recipe's name, which names folders."""
    try:
        if asked.trains_by_bridge:  # imports the planner, which no other request needs here
            from harness.measure.bridge import resolve_for_bridge

            resolved = resolve_for_bridge(asked, host)
        else:
            resolved = resolve(asked, starts=starts)
    except BadRequestError as error:
        raise_all([*error.problems, *secrets_in(given_env(asked), *asked.job_words)])
        raise
    return resolved, tuple(secrets_in(resolved.spec.env, *asked.job_words))


def given_env(asked: Request) -> dict[str, str]:
    """Return the variables of ``-E`` and ``--set env.NAME=``."""
    words = (*asked.env, *(text.removeprefix("env.") for text in asked.set_values if text.startswith("env.")))
    return {name.strip(): value for name, _, value in (word.partition("=") for word in words)}


def launcher_problems(launch: LaunchSettings) -> list[BadRequestError]:
    """Problems of --launcher and --from: an unknown launcher, or recorded runs without the replay launcher."""
    name = launch.launcher
    if name in LAUNCHERS:
        is_idle = launch.replay_from is not None and name != "replay"
        problem = f"--from {launch.replay_from}: only with --launcher replay"
        return [BadRequestError(problem, remedy="add --launcher replay, or omit --from")] if is_idle else []
    return [BadRequestError(f"--launcher {name!r}: no such launcher", remedy=nearest(name, (*LAUNCHERS, *CLUSTERS)))]


def mending(
    settled: Settled, findings: Sequence[Finding], judge: Callable[[ExperimentSpec], Sequence[Finding]]
) -> tuple[str, ...]:
    """Return options that mend all ``findings`` of ``judge`` that block; empty without, or where others block, too."""
    broken = {finding.id for finding in findings if finding.blocks}
    if not broken or broken & {"MCORE", "LAUNCH"}:
        return ()
    from harness.experiment.rules.cures import cure

    return cure(settled.spec, judge, settled.sources)


def rule_problem(finding: Finding) -> BadRequestError:
    """Return a violated rule as an error: its id, the problem, the fix, and megatron-core's message."""
    own = f"\n  megatron-core's message: {finding.mcore_text}" if finding.mcore_text else ""
    forced = "" if finding.id == "MCORE" else f"\n  (--force {finding.id} runs it anyway)"
    return BadRequestError(f"{finding.id}: {finding.message}", remedy=f"{finding.fix}{own}{forced}")


def with_exports(settled: Settled, asked: Request) -> Settled:
    """Add a note with the variables that Megatron-Bridge would set for a job of one's own, where the job differs."""
    spec, env = settled.spec, settled.spec.env
    if asked.source is None or asked.trains_by_bridge or spec.gpu_type.is_cpu:
        return settled
    missing = {name: value for name, value in exports(spec).items() if env.get(name) != value}
    if not missing:
        return settled
    words, other = (" ".join(f"{n}={values[n]}" for n in missing if values.get(n)) for values in (missing, env))
    note = f"{EXPORTS} (what Megatron-Bridge would set and the job does not): export {words}"
    return replace(settled, notes=(*settled.notes, redact(note + f"  # instead of {other}" * bool(other))))


def job_launcher(asked: Request) -> Launcher | None:
    """Return what starts a GPU job of one's own, whose environment then is what its file says; None: not known."""
    if asked.source is None or asked.trains_by_bridge or asked.gpu == "cpu":
        return None
    from harness.foreign.open import launcher_of  # 20 ms that no recipe needs

    return launcher_of(asked.source)


def with_stop(settled: Settled, asked: Request) -> Settled:
    """Add a note where the environment of a job of one's own makes Megatron's launcher stop at once."""
    launcher, spec = job_launcher(asked), settled.spec
    if launcher is None:
        return settled
    alike = {finding.id for finding in check(spec, settled.software)}
    found = check(spec, settled.software, env=spec.env, launcher=launcher)
    why = "; ".join(f"{each.id}: {each.message}" for each in found if each.blocks and each.id not in alike)
    return replace(settled, notes=(*settled.notes, f"{STOPS}: {why}")) if why else settled


def with_note_on_steps(settled: Settled) -> dict[str, Any]:
    """The fields, with a note where a run will have too few steps: a plan, which starts nothing, does without it."""
    few = settled.spec.measure.too_few_steps()
    return vars(settled) | {"notes": (*settled.notes, *([few] if few else []))}


def rank_environment(
    spec: ExperimentSpec, host: Host, launch: LaunchSettings, nodes: Nodes
) -> tuple[dict[str, str] | None, list[Finding]]:
    """Return the variables of the ranks, and findings on problems with them or with the nodes."""
    is_given = nodes.nnodes > 1
    nnodes = nodes.nnodes if is_given else spec.num_nodes
    problems = Problems([*launcher_problems(launch), *(node_problems(spec, nodes) if is_given else ())])
    ranks, how = spec.ranks_per_node(nnodes), {"num_cores": host.num_cores, "nnodes": nnodes}
    found = problems.tried(lambda: child_environment(spec, host.shell, launch.pass_env, ranks, **how))
    env = None if found is None else {variable.name: variable.value for variable in found}
    return env, [Finding(id="LAUNCH", severity="error", message=p.message, fix=p.remedy) for p in problems.found]
