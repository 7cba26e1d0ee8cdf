"""The passes of a pipeline rank, and their order in interleaved 1F1B, as in megatron-core 0.16 `schedules.py`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from harness.predict.schedule import Schedule

Pass = Literal["forward", "backward"]


class Event(NamedTuple):
    """One forward or backward pass of one micro-batch through one model chunk of the rank.

    ``buffers``: hidden states, or gradients of them, that are alive during the pass and belong neither to it nor to a
    micro-batch between its passes: received ahead of use, or not yet let go after sending.
    """

    direction: Pass
    chunk: int
    buffers: int = 0


_MicroBatch = tuple[int, int]  # chunk, and its number in that chunk


class Interleaved:
    """Interleaved 1F1B: counts tensors received before their use, and tensors not yet freed.

    A chunk keeps the input of its latest forward pass (`TransformerBlock.input_tensor`), and with it the gradient of
    that input, until its next forward pass; the loop keeps the last input received during warm-up: two buffers each,
    once the backward pass is over. With groups larger than PP the ring of received tensors may hold one more, which is
    not counted.
    """

    def __init__(self, schedule: "Schedule") -> None:
        self._s = schedule
        self._has_input = tuple(chunk > 0 or not schedule.is_first for chunk in range(schedule.vp_size))
        self._inputs = int(not schedule.is_first)  # the first input is received before the loop
        self._gradients = 0
        self._sent: _MicroBatch | None = None  # whose input gradient was sent last
        self._begun = [0] * schedule.vp_size
        self._finished = [0] * schedule.vp_size
        self._last_of_warmup: _MicroBatch | None = None

    def run(self) -> Iterator[Event]:
        """All passes; no input follows the last one of a step."""
        s = self._s
        num_warmup, num_steady = s.num_warmup, s.num_passes - s.num_warmup
        for k in range(num_warmup):
            yield self._forward(k)
            received = k < s.num_passes - 1 and self._receives(k, forward=True)
            self._inputs += received
            self._last_of_warmup = self._micro_batch(self._awaited(k)) if received else None
        self._gradients += int(not s.is_last)
        for k in range(num_steady):
            if s.extra_warmup:
                # The loss goes backward first, layers are freed as those of the forward pass are saved, and the new
                # logits come last: as if the backward pass were over before the forward pass began.
                yield self._backward(k, unsent_output=0)
            forward = self._forward(num_warmup + k)
            yield forward
            self._inputs += k < num_steady - 1 and self._receives(num_warmup + k, forward=True)
            if not s.extra_warmup:
                ends_here = s.is_last and forward.chunk == s.vp_size - 1
                yield self._backward(k, unsent_output=int(not (ends_here or s.keeps_outputs)))
            self._gradients += self._receives(k, forward=False)
        for k in range(num_steady, s.num_passes):
            yield self._backward(k, unsent_output=0)
            self._gradients += k < s.num_passes - 1 and self._receives(k, forward=False)

    def _forward(self, k: int) -> Event:
        chunk = self._s.chunk_of[k]
        self._inputs -= int(self._has_input[chunk])
        self._begun[chunk] += 1
        return Event("forward", chunk, self._inputs + self._gradients + self._kept())

    def _backward(self, k: int, unsent_output: int) -> Event:
        """Return a backward pass. The next forward pass frees the output of the previous pass."""
        s = self._s
        chunk = s.vp_size - 1 - s.chunk_of[k]
        self._gradients -= int(not (s.is_last and chunk == s.vp_size - 1))
        buffers = self._inputs + self._gradients + self._kept() + unsent_output
        self._sent = (chunk, self._finished[chunk]) if self._has_input[chunk] else None
        self._finished[chunk] += 1
        return Event("backward", chunk, buffers)

    def _kept(self) -> int:
        """Count the inputs of finished micro-batches and their gradients; the gradient sent last may be among them."""
        over = enumerate(zip(self._begun, self._finished, strict=True))
        kept = {
            (chunk, begun - 1) for chunk, (begun, done) in over if begun == done and begun and self._has_input[chunk]
        }
        if self._last_of_warmup and self._last_of_warmup[1] < self._finished[self._last_of_warmup[0]]:
            kept.add(self._last_of_warmup)
        sent = {self._sent} - kept if self._sent else set()
        return sum((2 if each in kept else 1) for each in kept | sent if not self._waits(each))

    def _waits(self, micro_batch: _MicroBatch) -> bool:
        """Return whether the micro-batch waits for the flush, and so has its input and gradient anyway."""
        chunk, number = micro_batch
        return chunk == self._s.vp_size - 1 and number < self._s.num_deferred

    def _awaited(self, k: int) -> int:
        """Return the forward pass whose input is received after pass ``k``: one chunk further for what comes around."""
        s = self._s
        if not s.is_first:
            return k + 1
        chunk, number = self._micro_batch(k - (s.pp_size - 1))
        passes = (i for i, c in enumerate(s.chunk_of) if c == chunk + 1)
        return next(i for n, i in enumerate(passes) if n == number)

    def _micro_batch(self, k: int) -> _MicroBatch:
        chunk = self._s.chunk_of[k]
        return chunk, self._s.chunk_of[:k].count(chunk)

    def _receives(self, k: int, *, forward: bool) -> bool:
        """Whether the rank awaits a message for a later pass after pass ``k`` (`recv_tensor_from_previous_stage`).

        The leading rank of a direction receives from the rank at the other end. That rank is PP - 1 passes behind, and
        its last chunk sends nothing on.
        """
        s = self._s
        leads = s.is_first if forward else s.is_last
        if not leads:
            return True
        behind = k - (s.pp_size - 1)
        return behind >= 0 and s.chunk_of[behind] != s.vp_size - 1
