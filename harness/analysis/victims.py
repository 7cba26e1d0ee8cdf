"""Ranks that failed only because another one had."""

from harness.records.rank import Failure

_PEER_TEXTS = ("Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe", "Socket Timeout")


def is_victim(failure: Failure) -> bool:
    """Whether another rank's end explains this one: a lost connection, or torchrun's SIGTERM to those that are left."""
    if failure.kind == "signal":
        return "SIGTERM" in failure.message
    return failure.kind == "error" and any(text in failure.message for text in _PEER_TEXTS)
