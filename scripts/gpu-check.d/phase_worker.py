"""A rank that weighs its memory phase by phase: ``phase_worker.py RUN_DIR``, under the harness's launcher.

``RUN_DIR/phases.json`` receives bytes in live tensors: ``weights`` and ``gradients`` when they stand, ``optimizer`` what is
alive after the first step, and of the second step the highest level of its ``forward`` and ``backward`` passes and of
its ``optimizer_step``. It is written anew with every phase, so that a rank that dies leaves what it had.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.engine.process import die_with_parent, dump_stacks_on_signal
from harness.engine.rank_log import RankLog
from harness.experiment.experiment import ExperimentSpec
from harness.records.store import write_atomically

if TYPE_CHECKING:
    import torch

    from harness.engine.tracing.ledger import StorageWatch
    from harness.engine.training import Trainer

PHASES = ("weights", "gradients", "optimizer", "forward", "backward", "optimizer_step")


def main() -> int:
    """0 when all phases were weighed."""
    run_dir = Path(sys.argv[1])
    die_with_parent()
    dump_stacks_on_signal()
    spec = ExperimentSpec.model_validate_json((run_dir / "spec.json").read_text())
    if spec.gpu_type.is_cpu:
        from harness.engine.cpu_backend import before_megatron

        before_megatron()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with RankLog(run_dir, rank, world_size) as log:
        weigh(spec, log, Phases(run_dir / "phases.json"))
    return 0


class Phases:
    """The figures so far, on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes = path, dict[str, int]()

    def note(self, phase: str, num_bytes: int) -> None:
        """Of several passes of a phase the highest counts."""
        self._bytes[phase] = max(num_bytes, self._bytes.get(phase, 0))
        write_atomically(self._path, json.dumps(self._bytes) + "\n")


def weigh(spec: ExperimentSpec, log: RankLog, phases: Phases) -> None:
    """Build, train two steps, weigh."""
    from harness.engine import rank_run
    from harness.engine.config import transformer_config
    from harness.engine.model import build_chunks, wrap_ddp
    from harness.engine.rank_run import read_back
    from harness.engine.training import Trainer

    device = rank_run.join(spec, log)
    log.enter("build_model")
    config = transformer_config(spec)
    bare = build_chunks(spec, config)
    phases.note("weights", standing(device, bare))
    chunks = wrap_ddp(spec, config, bare)
    phases.note("gradients", standing(device, chunks))
    log.fields["recompute"] = read_back(chunks)
    log.enter("build_optimizer")
    trainer = Trainer(spec, config, chunks, device)
    log.enter("step")
    with scale_of_steps(device, chunks, trainer.optimizer) as scale:
        log.step_index = 0
        rank_run.measured_step(log, trainer, device, 0)
        phases.note("optimizer", scale.level())
        log.step_index = 1
        weigh_step(trainer, scale, phases, log)
    log.enter("finish")
    rank_run.leave(spec, trainer, device)


def weigh_step(trainer: "Trainer", scale: "GpuScale | ProcessorScale", phases: Phases, log: RankLog) -> None:
    """The second step, cut where a forward pass begins, where its loss is known, and where the optimizer steps."""
    cuts = Cuts(scale, phases, log)
    ours = trainer.forward_step

    def forward_step(batches: object, model: object, *, return_schedule_plan: bool = False) -> Any:
        cuts.enter("forward")
        output, loss_of = ours(batches, model, return_schedule_plan=return_schedule_plan)

        def loss_then_backward(*arguments: object) -> object:
            loss = loss_of(*arguments)
            cuts.enter("backward")
            return loss

        return output, loss_then_backward

    trainer.forward_step = forward_step
    trainer.step(index=1, on_phase=cuts.enter)
    cuts.leave()


class Cuts:
    """Which phase the step is in; its peak is noted when it ends, also by an error."""

    def __init__(self, scale: "GpuScale | ProcessorScale", phases: Phases, log: RankLog) -> None:
        self._scale, self._phases, self._log, self._open = scale, phases, log, ""

    def enter(self, phase: str) -> None:
        """End the phase before, begin this one."""
        self.leave()
        self._open = phase
        self._log.within_step("optimizer_step" if phase == "optimizer_step" else "forward_backward")
        self._scale.reset()

    def leave(self) -> None:
        """End the phase. Time before the first forward pass belongs to none."""
        if self._open in PHASES:
            self._phases.note(self._open, self._scale.peak())
        self._open = ""


def standing(device: "torch.device", chunks: list["torch.nn.Module"], optimizer: object = None) -> int:
    """Return what is alive before the first step: by torch's allocator on a GPU, else by the storages themselves."""
    if device.type == "cuda":
        return GpuScale().level()
    from harness.engine.memory import static_bytes

    return int(static_bytes(chunks, optimizer or SimpleNamespace(param_groups=(), state={})))


@contextmanager
def scale_of_steps(
    device: "torch.device", chunks: list["torch.nn.Module"], optimizer: object
) -> "Iterator[GpuScale | ProcessorScale]":
    """Weigh all steps: what the first one leaves behind counts in the second."""
    if device.type == "cuda":
        yield GpuScale()
        return
    from harness.engine.tracing.ledger import StorageWatch

    with StorageWatch() as watch:
        yield ProcessorScale(standing(device, chunks, optimizer), watch)


class GpuScale:
    """Live tensors in bytes, as torch's allocator counts them anyway. ``peak``: since the last ``reset``."""

    def __init__(self) -> None:
        import torch

        self._cuda, self.reset = torch.cuda, torch.cuda.reset_peak_memory_stats

    def level(self) -> int:
        """Return what is alive now, with nothing under way, and without what only a cycle still holds."""
        gc.collect()
        self._cuda.synchronize()
        return int(self._cuda.memory_allocated())

    def peak(self) -> int:
        """Return the most."""
        return int(self._cuda.max_memory_allocated())


class ProcessorScale:
    """The same, of what stood before the first step, and the storages that steps made since."""

    def __init__(self, standing_bytes: int, watch: "StorageWatch") -> None:
        self._standing, self._watch = standing_bytes, watch

    def level(self) -> int:
        """Return what is alive now."""
        return self._standing + self._watch.ledger.live_bytes

    def reset(self) -> None:
        """Forget the peak."""
        self._watch.peak_bytes = self._watch.ledger.live_bytes

    def peak(self) -> int:
        """Return the most."""
        return self._standing + self._watch.peak_bytes


if __name__ == "__main__":
    sys.exit(main())
