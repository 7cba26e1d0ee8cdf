"""The plan of a launch: rendezvous, command lines and limits."""

import re
import shlex
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import EnvVar, Host, child_environment
from harness.records.collect import outcome_of_node
from harness.records.gating import LaunchSettings

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500  # torchrun's own
ANY_HOST = "HOST"  # the address of node 0 in a dry run

_ADDRESS = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:\[\]_-]*")


@dataclass(frozen=True)
class Nodes:
    """``--nnodes --node_rank --master_addr --master_port``. Address and port None: chosen by :func:`build_plan`."""

    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None


def free_port() -> int:
    """Return a TCP port that is free on the loopback interface at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def without_asking(spec: ExperimentSpec, nodes: Nodes) -> Nodes:
    """Complete ``nodes`` for a dry run: as many as the GPUs need, with :data:`ANY_HOST` if there is no address."""
    if nodes.nnodes == 1:
        nodes = replace(nodes, nnodes=spec.num_nodes)
    return replace(nodes, master_addr=nodes.master_addr or ANY_HOST) if nodes.nnodes > 1 else nodes


def node_problems(spec: ExperimentSpec, nodes: Nodes) -> list[BadRequestError]:
    """Check numbers of nodes and GPUs, and the address that all nodes must share."""
    problems, last = Problems(_size_problems(spec, nodes)), max(1, nodes.nnodes) - 1
    if not 0 <= nodes.node_rank <= last:
        remedy = f"pass a number from 0 to {last}, a different number on each node"
        problems.add(f"--node_rank {nodes.node_rank} of {nodes.nnodes} nodes", remedy)
    if nodes.nnodes > 1 and nodes.master_addr is None:
        remedy = (
            "pass --master_addr HOST, the node of rank 0, to each `run`; a sweep needs --launcher slurm or kubeflow"
        )
        problems.add(f"--nnodes {nodes.nnodes} needs --master_addr", remedy)
    if nodes.master_addr is not None and not _ADDRESS.fullmatch(nodes.master_addr):
        problems.add(f"--master_addr {nodes.master_addr!r} is not an address", "pass a host name or an IP address")
    if nodes.master_port is not None and not 1 <= nodes.master_port <= 65535:
        problems.add(f"--master_port {nodes.master_port} is not a TCP port", "pass a number from 1 to 65535")
    return problems.found


def _size_problems(spec: ExperimentSpec, nodes: Nodes) -> list[BadRequestError]:
    if nodes.nnodes < 1:
        return [BadRequestError(f"--nnodes {nodes.nnodes}: at least one node is needed", remedy="--nnodes 1")]
    if nodes.nnodes == 1 and spec.num_gpus > spec.gpus_per_node:
        needed = spec.num_nodes
        return [
            BadRequestError(
                f"num_gpus {spec.num_gpus} is more than the {spec.gpus_per_node} of one node",
                remedy="use --launcher slurm or kubeflow; or `mbr-perf run` on each node with "
                f"--nnodes {needed} --node_rank 0..{needed - 1} --master_addr HOST",
            )
        ]
    if nodes.nnodes > 1 and spec.num_gpus != nodes.nnodes * spec.gpus_per_node:
        total = f"{nodes.nnodes} x {spec.gpus_per_node} = {nodes.nnodes * spec.gpus_per_node}"
        remedy = "change -ng, --nnodes or -gn so that they match"
        return [BadRequestError(f"num_gpus {spec.num_gpus} is not nnodes x gpus_per_node = {total}", remedy=remedy)]
    return []


@dataclass(frozen=True)
class LaunchRequest:
    """One run on this node: its experiment, folder, machine and launch settings."""

    spec: ExperimentSpec
    run_dir: Path
    host: Host
    nodes: Nodes = field(default_factory=Nodes)
    settings: LaunchSettings = field(default_factory=LaunchSettings)


@dataclass(frozen=True)
class LaunchPlan:
    """Ranks of one node under torchrun. ``worker``: the script part of torchrun's command line."""

    run_dir: Path
    python: str
    rendezvous: Nodes
    num_local_ranks: int
    worker: tuple[str, ...]
    sampler: tuple[str, ...] | None
    env: tuple[EnvVar, ...]
    settings: LaunchSettings
    num_steps: int
    without_gpu: bool = False

    @property
    def variables(self) -> dict[str, str]:
        return {variable.name: variable.value for variable in self.env}

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the agent's command line. The rendezvous is static, because c10d unpickles data from strangers."""
        return (self.python, "-m", "harness.engine.agent", *self.agent_arguments)

    @property
    def agent_arguments(self) -> tuple[str, ...]:
        meet = self.rendezvous
        return (
            "--result",
            str(self.agent_file),
            f"--nnodes={meet.nnodes}",
            f"--node-rank={meet.node_rank}",
            f"--nproc-per-node={self.num_local_ranks}",
            "--rdzv-backend=static",
            f"--master-addr={meet.master_addr}",
            f"--master-port={meet.master_port}",
            "--max-restarts=0",
            f"--log-dir={self.run_dir / 'logs' / 'torchrun'}",
            *self.worker,
        )

    @property
    def ranks(self) -> range:
        first = self.rendezvous.node_rank * self.num_local_ranks
        return range(first, first + self.num_local_ranks)

    @property
    def agent_file(self) -> Path:
        """Return the agent's file on how each rank ended; one per node, for run folders that nodes share."""
        return self.run_dir / "ranks" / f"launch{self._suffix()}.json"

    def outcome_file(self, node_rank: int | None = None) -> Path:
        """Return the harness's file on how the launch ended on this node, or on another."""
        number = self.rendezvous.node_rank if node_rank is None else node_rank
        several = self.rendezvous.nnodes > 1
        return outcome_of_node(self.run_dir, number) if several else self.run_dir / "ranks" / "outcome.json"

    @property
    def launcher_log(self) -> Path:
        """Return the log of the agent, and of ranks until they have their own log."""
        return self.run_dir / "logs" / f"launcher{self._suffix()}.log"

    @property
    def sampler_log(self) -> Path:
        return self.run_dir / "logs" / f"sampler{self._suffix()}.log"

    @property
    def sampler_file(self) -> Path | None:
        return Path(self.sampler[self.sampler.index("--out") + 1]) if self.sampler else None

    def _suffix(self) -> str:
        return f"_node_{self.rendezvous.node_rank:03d}" if self.rendezvous.nnodes > 1 else ""

    def node_options(self, node_rank: int) -> tuple[str, ...]:
        """Return the options that a node adds to the request; none on a single node."""
        meet = self.rendezvous
        if meet.nnodes == 1:
            return ()
        port = () if meet.master_port == DEFAULT_PORT else ("--master_port", str(meet.master_port))
        address = ("--master_addr", str(meet.master_addr), *port)
        nodes = ("--nnodes", str(meet.nnodes), "--node_rank", str(node_rank))
        return (*nodes, *address, "--run_dir", str(self.run_dir))

    def render(self) -> str:
        """Return the plan as text: commands to paste into a shell, and the environment with reasons."""
        own = [v for v in self.env if v.source != "inherited"]
        inherited = [v.name for v in self.env if v.source == "inherited"]
        limit = "none" if self.settings.timeout_s is None else f"{self.settings.timeout_s:g} s"
        lines = [
            f"# run folder {self.run_dir}",
            f"# node {self.rendezvous.node_rank} of {self.rendezvous.nnodes}, "
            f"ranks {self.ranks.start} to {self.ranks.stop - 1}",
            f"# time limit {limit}; a rank hangs after {self.settings.hang_timeout_s:g} s without a heartbeat",
            "# environment",
            *(f"export {v.name}={shlex.quote(v.shown)}  # {_origin(v)}" for v in own),
            f"# inherited from your shell: {', '.join(inherited) or 'nothing'}",
        ]
        if self.rendezvous.nnodes > 1:
            lines += ["# options of each node besides those of the request; all nodes must see the run folder"]
            lines += [f"#   {shlex.join(self.node_options(node))}" for node in range(self.rendezvous.nnodes)]
            lines += ["# the other nodes get the same environment and command, each with its own node rank"]
        if self.rendezvous.master_addr == ANY_HOST:
            lines += [f"# {ANY_HOST} stands for the address of node 0"]
        if self.sampler:
            lines += ["# GPU memory sampler", shlex.join(self.sampler) + " &"]
        return "\n".join([*lines, "# ranks", shlex.join(self.argv)]) + "\n"


def _origin(variable: EnvVar) -> str:
    """Say who set the variable, and why mbr-perf did. The reason is for its own value, not for one of the shell."""
    if variable.source == "your shell":
        return "from your shell"
    return f"set by mbr-perf: {variable.reason}" if variable.source == "table" else variable.reason


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the torchrun plan of this node. BadRequestError lists all problems of nodes, limits and variables."""
    spec, host, run_dir, nodes = request.spec, request.host, request.run_dir.absolute(), request.nodes
    settings, problems = request.settings, Problems([*request.settings.problems, *node_problems(spec, nodes)])
    num_local_ranks = spec.ranks_per_node(nodes.nnodes)
    cores = {"num_cores": host.num_cores, "nnodes": nodes.nnodes}
    env = problems.having(
        problems.tried(lambda: child_environment(spec, host.shell, settings.pass_env, num_local_ranks, **cores))
    )
    out = run_dir / "ranks" / f"nvml_{re.sub(r'[^A-Za-z0-9._-]', '_', host.hostname)}.json"
    is_free = nodes.nnodes == 1 and nodes.master_port is None
    port = free_port() if is_free else nodes.master_port or DEFAULT_PORT
    interval = ("--interval_ms", str(settings.sample_interval_ms))
    sampler = (host.python, "-m", "harness.engine.nvml", "sample", "--out", str(out), *interval)
    return LaunchPlan(
        run_dir=run_dir,
        python=host.python,
        rendezvous=replace(nodes, master_addr=nodes.master_addr or LOOPBACK, master_port=port),
        num_local_ranks=num_local_ranks,
        worker=("-m", "harness.engine.worker", "--run_dir", str(run_dir)),
        sampler=None if spec.gpu_type.is_cpu or not settings.sample_interval_ms else sampler,
        env=env,
        settings=settings,
        num_steps=spec.measure.max_steps,
        without_gpu=spec.gpu_type.is_cpu,
    )
