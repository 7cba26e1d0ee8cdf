"""Traces and trains one revision. Both use this environment; only megatron-core, or what it pins, is the revision's."""

import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from harness.batch.launches import fresh_folder, understood_again
from harness.bisect.revisions import copied, pins_at
from harness.bisect.values import BisectPlan, Measured
from harness.errors import BadRequestError, HarnessError, os_errors_reported
from harness.experiment.software import Software
from harness.judge.derive import derive
from harness.judge.plausible import doubts_of
from harness.launch.build import find_build, host_with
from harness.launch.environment import Host
from harness.launch.heartbeats import Progress
from harness.launch.machine import software_for
from harness.launch.plan import LaunchRequest
from harness.launch.required import require_machine
from harness.launch.warm import WarmParents
from harness.measure.launched import launched
from harness.measure.prediction import KeptPrediction, predicted_with
from harness.predict.stages import Composer
from harness.predict.tracer import Tracing, trace_kind
from harness.records.batches import Build
from harness.records.folders import checkout_dir
from harness.records.job import JobRun
from harness.records.quoting import quoted_error
from harness.records.store import RECORD, read_record
from harness.show.progress import CellProgress, Show
from harness.units import first_line


class StoppedError(Exception):
    """A signal ended a run. ``signal``: its number, if known."""

    def __init__(self, signal: int | None) -> None:
        super().__init__()
        self.signal = signal


@dataclass(frozen=True)
class Bench:
    """Where revisions are measured: the folder of the bisect, and this machine."""

    plan: BisectPlan
    folder: Path
    host: Host
    parents: WarmParents
    progress: CellProgress

    def measured(self, place: int, kind: str, number: int) -> Measured:
        """Trace or train the revision once. ``problem`` says why it has no figures. StoppedError after a signal."""
        num_steps = self.plan.spec.measure.max_steps if kind == "run" else 1
        show = self.progress.start(f"{self.plan.revisions[place].name}, {kind} {number + 1}", num_steps)
        try:
            build = self._build(place)
            found = self._traced(build, show) if kind == "trace" else self._trained(build, place, number, show)
        except HarnessError as error:
            found = {"problem": first_line(error.message)}
        measured = Measured.model_validate({"place": place, "kind": kind, "number": number, **found})
        self.progress.finish(measured.text)
        return measured

    def _build(self, place: int) -> Build:
        """Copy megatron-core of the revision, or install its pins. BadRequestError if it cannot be."""
        repo, sha = Path(self.plan.repo), self.plan.revisions[place].sha
        if self.plan.pins:
            return pinned_build(repo, sha, self.plan.pins, self.folder.parents[1] / "environments", self.host)
        folder = self.folder / "revisions" / sha
        version = copied(repo, sha, folder)
        software: Software = software_for(self.plan.spec.gpu, self.host)[0]
        paths = [str(folder.absolute()), *([str(checkout)] if (checkout := checkout_dir()) else [])]
        software = software.model_copy(update={"megatron_core": version})
        return Build(python=self.host.python, path=":".join(paths), software=software)

    def _traced(self, build: Build, show: Show) -> dict[str, object]:
        def shown(done: int, of: int) -> None:
            show(f"{done} of {of} chunks", None, None, None)

        spec = self.plan.spec
        tracing = Tracing(host_with(self.host, build), None, reads_shipped=False, progress=shown)
        implementation, imbalance = kind = trace_kind(spec)
        cases = Composer(spec, implementation, build.software).cases()
        traces = tracing.traces(cases, implementation, imbalance=imbalance)
        if traces.refused:
            return {"problem": first_line(next(iter(traces.refused.values())))}
        kept: KeptPrediction = predicted_with(spec, traces, build.software, use_calibration=False)
        if kept.prediction is None:
            return {"problem": kept.reason or f"no prediction for {kind}"}
        chunks = traces.even.values()
        ops = [op for chunk in chunks for op in chunk.ops]
        inert = ", ".join(sorted({module for chunk in chunks for module in chunk.inert_modules}))
        again = sum(op.flops for op in ops if op.phase == "recompute")
        return {
            "peak_bytes": kept.prediction.peak_bytes,
            "flops": sum(op.flops for op in ops),
            "recompute": f"{spec.recompute.text}: {again:,} FLOPs again{f'; without effect: {inert}' if inert else ''}",
        }

    def _trained(self, build: Build, place: int, number: int, show: Show) -> dict[str, object]:
        sha = self.plan.revisions[place].sha
        run_dir = self.folder / "runs" / sha[:10] / str(number)
        if not (run_dir / RECORD).is_file():
            self._launch(build, fresh_folder(run_dir), show)
        record = read_record(run_dir / RECORD)
        if record.status == "interrupted":
            raise StoppedError(None)
        if record.status != "ok":
            return {"problem": first_line(record.failure, record.status)}
        metrics = derive(record)
        doubts = doubts_of(record, metrics)
        step = metrics.step_time_s
        if step is None or not (step.median > 0 and math.isfinite(step.median)):
            return {"problem": metrics.problems.get("step_time_s", "no step time")}
        return {"seconds": step.median, "suspect": "; ".join(doubts)}

    def _launch(self, build: Build, run_dir: Path, show: Show) -> None:
        plan, host = self.plan, host_with(self.host, build)
        run_id = f"{plan.bisect_id}.{run_dir.parent.name}.{run_dir.name}"
        run = JobRun(run_dir=str(run_dir), run_id=run_id, spec=plan.spec, sources=plan.sources)
        request = LaunchRequest(plan.spec, run_dir.absolute(), host)
        understood = understood_again(run, request, build.software, ())

        def shown(now: Progress) -> None:
            show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s)

        ran = launched(
            understood,
            run.run_id,
            progress=nullcontext(shown),
            kept=KeptPrediction(None, "bisect compares runs with each other"),
            parents=self.parents,
        )
        if ran.signal is not None:
            raise StoppedError(ran.signal)


def require_time(plan: BisectPlan, host: Host) -> None:
    """Raise BadRequestError if this machine cannot train the case."""
    if plan.spec.num_nodes > 1:
        raise BadRequestError(
            f"{plan.case}: {plan.spec.num_nodes} nodes; a bisect by time trains on one machine",
            remedy="bisect memory, work or recompute, which need no GPU, or a case of one node",
        )
    require_machine(plan.spec, host, plan.spec.ranks_per_node(1))


_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--quiet")
_PATIENCE_S = 3600.0  # a stack with torch is gigabytes


def pinned_build(repo: Path, sha: str, file: str, environments: Path, host: Host) -> Build:
    """Return the environment of a revision. Equal pins share one. BadRequestError if pip cannot install them."""
    text = pins_at(repo, sha, file)
    folder = environments / sha256(f"{sys.prefix}\n{text}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        environments.mkdir(parents=True, exist_ok=True)
        lock = environments / f"{folder.name}.lock"
        with os_errors_reported(str(lock), "name a --results_dir on another disk"), lock.open("a") as held:
            flock(held, LOCK_EX)  # waits for another bisect that installs the same
            if not folder.is_dir():
                _install(environments / f"{folder.name}.half", text, folder)
    return find_build(f"{file} at {sha[:10]}:", str(folder), host)


def _install(half: Path, text: str, folder: Path) -> None:
    """Install into ``half``, then rename it. A killed bisect leaves ``half``, which the next one removes."""
    rmtree(half, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(half))
    sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages,) = half.glob("lib/python*/site-packages")
    beneath = "; ".join(("import site", *map("site.addsitedir({!r})".format, sites)))
    (packages / "beneath.pth").write_text(f"{beneath}\n")
    (pins := half / "pins.txt").write_text(text)
    _run(str(half / "bin" / "python"), *_PIP, "-r", str(pins))
    half.rename(folder)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequestError(f"{' '.join(words[:4])}: {error}") from error
    if done.returncode:
        raise BadRequestError(f"{' '.join(words[1:4])}: {quoted_error(done.stderr)}", remedy="correct the pins")
