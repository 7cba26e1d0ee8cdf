"""The contract of Bridge's callbacks: `pretrain` fires the events that a callback overrides, in order of registration."""

from dataclasses import dataclass, field
from typing import Any

EVENTS = ("on_train_start", "on_train_step_start", "on_train_step_end", "on_train_end")


@dataclass
class CallbackContext:
    """What an event gets. ``loss_dict``, ``grad_norm`` and ``skipped_iter`` only at the end of a step."""

    state: Any
    model: list
    user_state: dict = field(default_factory=dict)
    optimizer: Any = None
    scheduler: Any = None
    loss_dict: dict | None = None
    grad_norm: float | None = None
    skipped_iter: bool | None = None


class Callback:
    """Does nothing; a subclass overrides the events that it wants."""

    def on_train_start(self, context):
        """After the model is built and in training mode."""

    def on_train_step_start(self, context):
        """Before each step."""

    def on_train_step_end(self, context):
        """After each step."""

    def on_train_end(self, context):
        """After the loop, unless it was left early."""


class CallbackManager:
    """Knows which events have somebody who listens."""

    def __init__(self, callbacks):
        self.user_state: dict = {}
        overridden = lambda one, event: getattr(type(one), event) is not getattr(Callback, event)  # noqa: E731
        self._listening = {event: [getattr(c, event) for c in callbacks if overridden(c, event)] for event in EVENTS}

    def fire(self, event, **context):
        """Call everybody who listens."""
        for listener in self._listening[event]:
            listener(CallbackContext(user_state=self.user_state, **context))
