"""What the harness and a warm parent say to each other: one JSON line per message, over a pair of sockets."""

from typing import Literal

from harness.experiment.gpu import Frozen


class WarmRequest(Frozen):
    """One agent to be forked. ``arguments``: those of `harness.engine.agent`; ``num_ranks``: those of this node.

    ``environment`` is all that the agent gets, ``log`` its standard output and error, ``folder`` where it stands.
    """

    arguments: tuple[str, ...]
    num_ranks: int
    environment: dict[str, str]
    log: str
    folder: str


class WarmAnswer(Frozen):
    """``ready``: everything is imported. ``started``: the agent runs as ``pid``. ``refused``: it does not, ``reason``."""

    kind: Literal["ready", "started", "refused"]
    pid: int | None = None
    reason: str = ""
