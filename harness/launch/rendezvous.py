"""Where ranks meet: nodes, address and port of torchrun's static rendezvous."""

import re
import socket
from dataclasses import dataclass, replace

from harness.errors import BadRequestError, raise_all
from harness.experiment.experiment import ExperimentSpec

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500  # torchrun's own
ANY_HOST = "HOST"  # in a dry run: stands for the address of node 0

_ADDRESS = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:\[\]_-]*")


@dataclass(frozen=True)
class Nodes:
    """``--nnodes --node_rank --master_addr --master_port``. Address and port None: chosen by :func:`settle`."""

    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None


@dataclass(frozen=True)
class Rendezvous:
    """The settled meeting place. ``chosen_port``: this program picked the port and may pick another."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    chosen_port: bool

    def with_new_port(self) -> "Rendezvous":
        """Another free port, for when somebody took the first one between choice and use."""
        return replace(self, master_port=free_port())


def free_port() -> int:
    """A TCP port that was free a moment ago on the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def local_ranks(spec: ExperimentSpec, nodes: Nodes) -> int:
    """Ranks on this node: all of them on one node, ``gpus_per_node`` on each of several."""
    return spec.num_gpus if nodes.nnodes == 1 else spec.gpus_per_node


def without_asking(spec: ExperimentSpec, nodes: Nodes) -> Nodes:
    """``nodes`` for a dry run: as many as the GPUs fill, meeting at :data:`ANY_HOST` where no address is given."""
    if nodes.nnodes == 1 and spec.num_gpus > spec.gpus_per_node:
        nodes = replace(nodes, nnodes=-(-spec.num_gpus // spec.gpus_per_node))
    return replace(nodes, master_addr=nodes.master_addr or ANY_HOST) if nodes.nnodes > 1 else nodes


def settle(spec: ExperimentSpec, nodes: Nodes) -> Rendezvous:
    """Fill in address and port; BadRequestError with all of :func:`node_problems`."""
    raise_all(node_problems(spec, nodes))
    if nodes.nnodes > 1:
        port = DEFAULT_PORT if nodes.master_port is None else nodes.master_port
        return Rendezvous(nodes.nnodes, nodes.node_rank, str(nodes.master_addr), port, chosen_port=False)
    chosen = nodes.master_port is None
    port = free_port() if nodes.master_port is None else nodes.master_port
    return Rendezvous(1, 0, nodes.master_addr or LOOPBACK, port, chosen_port=chosen)


def node_problems(spec: ExperimentSpec, nodes: Nodes) -> list[BadRequestError]:
    """What is wrong with the nodes, for this number of GPUs and by themselves."""
    return [*_size_problems(spec, nodes), *_address_problems(nodes)]


def _size_problems(spec: ExperimentSpec, nodes: Nodes) -> list[BadRequestError]:
    if nodes.nnodes < 1:
        return [BadRequestError(f"--nnodes {nodes.nnodes}: at least one node is needed", remedy="--nnodes 1")]
    if nodes.nnodes == 1 and spec.num_gpus > spec.gpus_per_node:
        needed = -(-spec.num_gpus // spec.gpus_per_node)
        return [
            BadRequestError(
                f"num_gpus {spec.num_gpus} is more than the {spec.gpus_per_node} of one node",
                remedy=f"on each node pass --nnodes {needed} --node_rank 0..{needed - 1} --master_addr HOST",
            )
        ]
    if nodes.nnodes > 1 and spec.num_gpus != nodes.nnodes * spec.gpus_per_node:
        total = f"{nodes.nnodes} x {spec.gpus_per_node} = {nodes.nnodes * spec.gpus_per_node}"
        remedy = "change -ng, --nnodes or -gn so that they agree"
        return [BadRequestError(f"num_gpus {spec.num_gpus} is not nnodes x gpus_per_node = {total}", remedy=remedy)]
    return []


def _address_problems(nodes: Nodes) -> list[BadRequestError]:
    problems = []
    if not 0 <= nodes.node_rank < max(1, nodes.nnodes):
        remedy = f"a number from 0 to {max(1, nodes.nnodes) - 1}, another one on each node"
        problems.append(BadRequestError(f"--node_rank {nodes.node_rank} of {nodes.nnodes} nodes", remedy=remedy))
    if nodes.nnodes > 1 and nodes.master_addr is None:
        remedy = "--master_addr HOST, the node of rank 0, the same on every node"
        problems.append(BadRequestError(f"--nnodes {nodes.nnodes} needs an address to meet at", remedy=remedy))
    if nodes.master_addr is not None and not _ADDRESS.fullmatch(nodes.master_addr):
        remedy = "a host name or an IP address"
        problems.append(BadRequestError(f"--master_addr {nodes.master_addr!r} is no address", remedy=remedy))
    if nodes.master_port is not None and not 1 <= nodes.master_port <= 65535:
        remedy = "a number from 1 to 65535"
        problems.append(BadRequestError(f"--master_port {nodes.master_port} is no TCP port", remedy=remedy))
    return problems
