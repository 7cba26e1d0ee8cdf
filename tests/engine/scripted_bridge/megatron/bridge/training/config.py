"""A `ConfigContainer` as far as the scripted loop reads it: sections of settings."""

from pathlib import Path
from types import SimpleNamespace

import yaml
from megatron.bridge.utils.instantiate_utils import InstantiationMode

SECTIONS = ("checkpoint", "ddp", "dist", "logger", "model", "optimizer", "scheduler", "train")


class ConfigContainer(SimpleNamespace):
    """Sections with attributes, as Bridge's dataclasses have them."""

    @classmethod
    def from_yaml(cls, path, mode=InstantiationMode.LENIENT):
        """Read a file that :meth:`to_yaml` or Bridge wrote."""
        tree = yaml.safe_load(Path(path).read_text())
        missing = [name for name in SECTIONS if name not in tree]
        if missing and mode is InstantiationMode.STRICT:
            raise ValueError(f"{path}: no section {', '.join(missing)}")
        return cls(
            **{name: SimpleNamespace(**settings) for name, settings in tree.items() if isinstance(settings, dict)}
        )

    def to_yaml(self, path):
        """Write the sections."""
        tree = {
            "_target_": f"{__name__}.ConfigContainer",
            **{name: dict(vars(value)) for name, value in vars(self).items()},
        }
        Path(path).write_text(yaml.safe_dump(tree))


def runtime_config_update(config):
    """Finalise a configuration, as `pretrain` and `run_script.py --dryrun` do."""
    config.scheduler.lr_decay_iters = config.scheduler.lr_decay_iters or config.train.train_iters
    if config.scheduler.lr_warmup_iters >= config.scheduler.lr_decay_iters:
        raise AssertionError("lr_warmup_iters must be below lr_decay_iters")
