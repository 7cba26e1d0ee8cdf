"""What is asked of a launcher: the experiment, its folder, this machine, and how patient to be."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.launch.environment import Host
from harness.launch.rendezvous import Nodes
from harness.spec.experiment import ExperimentSpec

HANG_TIMEOUT_S = 600.0
SAMPLE_INTERVAL_MS = 50


@dataclass(frozen=True)
class LaunchRequest:
    """``timeout_s`` None: as long as it takes. ``hang_timeout_s`` is the floor of the watchdog's patience.

    ``sample_interval_ms`` 0: no GPU memory sampler, and no figure of the memory in use on the device.
    ``replay_from``: the recorded run folder of the replay launcher.
    """

    spec: ExperimentSpec
    run_dir: Path
    host: Host
    nodes: Nodes = field(default_factory=Nodes)
    pass_env: tuple[str, ...] = ()
    timeout_s: float | None = None
    hang_timeout_s: float = HANG_TIMEOUT_S
    sample_interval_ms: int = SAMPLE_INTERVAL_MS
    replay_from: Path | None = None
