"""Runs Megatron-Bridge's own training loop in a rank, and measures its steps by its callbacks (since Bridge 0.3.0)."""

import inspect
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from megatron.bridge import package_info
from megatron.bridge.training.callbacks import Callback
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.utils.instantiate_utils import InstantiationMode
from megatron.core import parallel_state
from megatron.core.utils import get_model_config

from harness.engine.memory import record_until_out_of_memory, recorded_step
from harness.engine.rank_log import RankLog
from harness.engine.rank_run import adapt, coordinates, finished_step, record_model, synchronize, use_device
from harness.engine.training import StepResult
from harness.experiment.experiment import BridgeEngine, ExperimentSpec

# A run measures training only. Each is set where the release of Bridge has it.
SWITCHED_OFF: tuple[tuple[str, object], ...] = (
    ("checkpoint.save", None),
    ("checkpoint.load", None),  # a job that goes on where another ended would train too few steps
    ("train.eval_iters", 0),
    ("validation.eval_iters", 0),
    ("logger.tensorboard_dir", None),
    ("logger.wandb_project", None),
    ("logger.mlflow_experiment", None),
    ("logger.comet_project", None),
)


def run(spec: ExperimentSpec, log: RankLog, config_file: Path) -> None:
    """Train as ``config_file`` says, with the overrides of ``spec.engine``, and fill ``log``."""
    engine = spec.engine
    if engine.version != package_info.__version__:
        raise RuntimeError(
            f"planned for Megatron-Bridge {engine.version}, but the ranks import {package_info.__version__}"
        )
    device = use_device(spec, log)
    log.fields["versions"] |= {"megatron-bridge": package_info.__version__}
    adapt(spec)
    if spec.measure.snapshot_on_oom:
        record_until_out_of_memory(log.snapshot_path)
    log.enter("build_model")
    further = log.meter.probes or spec.measure.memory_snapshot
    config = configured(config_file, engine, spec.measure.max_steps + further, log)
    with ExitStack() as around_step:
        measured, ended = Measurement(spec, log, device, around_step), "returned"
        try:
            pretrain(config=config, forward_step_func=_forward_step(engine.forward_step), callbacks=[measured])
        except SystemExit as end:  # so Bridge leaves its loop if one of its conditions says so
            ended = f"called sys.exit({end.code})"
    if len(log.steps) < spec.measure.max_steps:
        raise RuntimeError(f"Megatron-Bridge {ended} after {len(log.steps)} of {spec.measure.max_steps} steps")


def _forward_step(text: str) -> Any:
    """Import ``module:name``; a class makes the function."""
    module, _, name = text.partition(":")
    found = getattr(import_module(module), name)
    return found() if inspect.isclass(found) else found


def configured(path: Path, engine: BridgeEngine, num_steps: int, log: RankLog) -> ConfigContainer:
    """Read the configuration, and replace the settings of the request. RuntimeError for one that this Bridge lacks."""
    config = ConfigContainer.from_yaml(str(path), mode=InstantiationMode.STRICT)
    if config.scheduler.lr_decay_iters is None:
        config.scheduler.lr_decay_iters = config.train.train_iters
    config.train.train_iters = num_steps
    off = [name for name, value in SWITCHED_OFF if _replaced(config, name, value)]
    if off:
        log.notes.append(f"not measured, so switched off in Megatron-Bridge: {', '.join(off)}")
    for name, value in engine.overrides.items():
        if _replaced(config, name, list(value) if isinstance(value, tuple) else value) is None:
            raise RuntimeError(f"this Megatron-Bridge ({package_info.__version__}) has no setting {name}")
    return config


def _replaced(config: ConfigContainer, path: str, value: object) -> bool | None:
    """Replace a setting; return whether its value was another, None if there is no such setting."""
    section, _, name = path.rpartition(".")
    owner: Any = config
    for part in section.split("."):
        owner = getattr(owner, part, None)
    inner = getattr(owner, "transformer", None)
    owner = inner if section == "model" and inner is not None and hasattr(inner, name) else owner
    if not hasattr(owner, name):
        return None
    before = getattr(owner, name)
    setattr(owner, name, value)
    return before != value


class Measurement(Callback):
    """Measures each step between device synchronisations, then a further one that the meter or a snapshot needs."""

    def __init__(self, spec: ExperimentSpec, log: RankLog, device: Any, around_step: ExitStack):
        self._measure, self._log, self._device, self._around = spec.measure, log, device, around_step
        self._index, self._began = 0, 0.0

    def on_train_start(self, context: Any) -> None:
        """Read the built model back."""
        log, chunks = self._log, context.model
        if parallel_state.model_parallel_is_initialized():
            log.fields["coordinates"] = coordinates()
        record_model(log, get_model_config(chunks[0]), chunks)
        log.meter.after_setup(chunks, context.optimizer)
        log.enter("step")

    def on_train_step_start(self, _context: Any) -> None:
        """Begin to measure."""
        if self._index < self._measure.max_steps:
            self._log.step_index = self._index
            self._around.enter_context(self._log.meter.watching(self._index))
        else:
            self._log.step_index = None
            self._log.enter("probe")
            self._around.enter_context(self._log.meter.probing())
            if self._measure.memory_snapshot:
                self._around.enter_context(recorded_step(self._log.snapshot_path))("train_step")
        self._log.within_step("train_step")
        synchronize(self._device)
        self._began = time.perf_counter()

    def on_train_step_end(self, context: Any) -> None:
        """Record the step. NonFiniteLossError, but not for a step that Bridge itself skipped."""
        index = self._index
        if index < self._measure.max_steps:
            finished_step(self._log, self._device, index, self._began, lambda: _result(context))
        self._around.close()
        if index == 0:
            self._log.meter.after_first_step()
        self._index += 1

    def on_train_end(self, _context: Any) -> None:
        """Complete the record first, because the end of communication can hang."""
        self._log.fields["counted_flops_per_step"] = self._log.meter.counted_flops
        self._log.step_index = None
        self._log.enter("finish")
        synchronize(self._device)
        self._log.write()


def _result(context: Any) -> StepResult:
    """Return the loss (None except on the last stage) and gradient norm; neither for a step that Bridge skipped."""
    if context.skipped_iter:
        return StepResult(None, None)
    losses, norm = context.loss_dict or {}, context.grad_norm
    loss = losses.get("lm loss", next(iter(losses.values()), None))
    return StepResult(None if loss is None else float(loss), None if norm is None else float(norm))
