"""Sizes that vary from micro-batch to micro-batch, drawn with fixed seeds: sequences' lengths and experts' tokens."""

import random
import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import ExperimentSpec

NUM_DRAWS = 5
LENGTHS, ROUTING = "--lengths", "--routing"
# Collators pad a batch to a multiple of this, for products in FP8; sequence and context parallelism cut it again.
_MULTIPLE = 16
_FORM = "give MEAN,SPREAD in tokens, e.g. 1800,700, or a file with TOKENS,COUNT on each line, e.g. 2048,310"


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens: how often each occurs, or with ``spread`` a normal distribution around ``mean``."""

    mean: float = 0.0
    spread: float = 0.0
    counts: tuple[tuple[int, int], ...] = ()
    origin: str = field(default="", compare=False)

    def too_long(self, most: int) -> str:
        """Say where more than ``most`` tokens stand; empty where nothing is longer. A spread may reach beyond."""
        above = [(f":{line}", value) for line, (value, _) in enumerate(self.counts, 1) if value > most]
        if self.mean > most:
            above = [("", round(self.mean))]
        if not above:
            return ""
        more = f" (so are {len(above) - 1} more of the file)" if above[1:] else ""
        return f"{self.origin}{above[0][0]}: {above[0][1]} tokens are more than the sequence length, {most}{more}"

    @cached_property
    def average(self) -> float:
        if not self.counts:
            return self.mean
        return sum(value * count for value, count in self.counts) / sum(count for _, count in self.counts)

    def drawn(self, source: random.Random, num: int) -> list[float]:
        """Draw numbers of tokens."""
        if self.counts:
            return [*source.choices([value for value, _ in self.counts], [count for _, count in self.counts], k=num)]
        return [max(0.0, source.gauss(self.mean, self.spread)) for _ in range(num)]


@dataclass(frozen=True)
class Draw:
    """One draw for a rank. ``lengths``: of sequences; ``routing``: of the tokens that an expert gets.

    All shares are of the tokens of a whole micro-batch with even routing.
    """

    seed: int
    spec: ExperimentSpec
    lengths: Tokens | None = None
    routing: Tokens | None = None
    # two steps fragment a third as much as four, and more than four add nothing (llama3_70b on 32 H100, native)
    num_steps: int = 4

    def length(self, step: int, microbatch: int) -> float:
        """Return the share of a micro-batch, padded to its longest sequence. What a spread has beyond is cut."""
        if self.lengths is None:
            return 1.0
        batch, p = self.spec.batch, self.spec.parallelism
        multiple = _MULTIPLE * p.tensor_model_parallel_size * p.context_parallel_size
        longest = max(self.lengths.drawn(self._source(step, microbatch), batch.micro_batch_size))
        return min(batch.seq_length, -(-max(1, round(longest)) // multiple) * multiple) / batch.seq_length

    def load(self, step: int, microbatch: int, layer: int) -> float:
        """Return the share of tokens that the rank's experts of a layer get. A capacity drops what exceeds it."""
        moe = self.spec.model.moe
        if self.routing is None or moe is None:
            return 1.0
        num_experts = moe.num_moe_experts // self.spec.parallelism.expert_model_parallel_size
        found = self.routing.drawn(self._source(step, microbatch, layer), num_experts)
        capacity = self.spec.kernels.moe_expert_capacity_factor
        return min(sum(found) / num_experts / self.routing.average, capacity or float("inf"))

    def _source(self, *place: int) -> random.Random:
        return random.Random(f"{self.seed} {place}")  # noqa: S311


@dataclass(frozen=True)
class Varied:
    """What varies in a job: as of :class:`Draw`."""

    lengths: Tokens | None = None
    routing: Tokens | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return (LENGTHS,) * (self.lengths is not None) + (ROUTING,) * (self.routing is not None)

    def check(self, spec: ExperimentSpec) -> None:
        """Raise BadRequestError for lengths that a sequence cannot have, and for routing that cannot vary.

        Routing counts for jobs that force an even load, too: it says what theirs would cost.
        """
        problems = Problems()
        if self.lengths and (why := self.lengths.too_long(spec.batch.seq_length)):
            problems.add(
                why, f"leave out what is longer than {spec.batch.seq_length}, or give longer sequences with -sl"
            )
        has_experts = spec.model.moe is not None and spec.parallelism.expert_model_parallel_size > 1
        if self.routing and (not has_experts or spec.kernels.moe_pad_expert_input_to_capacity):
            message = f"{ROUTING} has no effect: without expert parallelism, or padded to a capacity, no load varies"
            problems.add(message, f"omit {ROUTING}")
        problems.raise_if_any()

    def draws(self, spec: ExperimentSpec) -> tuple[Draw, ...]:
        """Return draws; none where nothing varies."""
        return tuple(Draw(seed, spec, self.lengths, self.routing) for seed in range(NUM_DRAWS)) if self.options else ()


CONSTANT = Varied()


def read_varied(lengths: str | None, routing: str | None) -> Varied:
    """Read the values of the options, as :func:`read_tokens`. BadRequestError with what is wrong in either."""
    problems = Problems()
    given = ((LENGTHS, lengths), (ROUTING, routing))
    found = [problems.tried(partial(read_tokens, option, text)) if text else None for option, text in given]
    problems.raise_if_any()
    return Varied(*found)


def read_tokens(option: str, text: str) -> Tokens:
    """Read ``MEAN,SPREAD``, or a file with ``TOKENS,COUNT`` on each line. BadRequestError with all wrong lines."""
    origin = f"{option} {text}"
    if found := re.fullmatch(r" *(\d+\.?\d*) *, *(\d+\.?\d*) *", text):
        mean, spread = map(float, found.groups())
        if mean and spread:
            return Tokens(mean, spread, origin=origin)
    try:
        lines = Path(text).read_text().rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{origin}: neither two numbers above 0 nor a readable file", remedy=_FORM) from error
    return Tokens(counts=_counts(origin, lines), origin=origin)


def _counts(origin: str, lines: list[str]) -> tuple[tuple[int, int], ...]:
    rows = [re.fullmatch(r" *(\d+) *, *(\d+) *", line) for line in lines]
    wrong = [at for at, row in enumerate(rows) if row is None or not int(row[2])]
    if wrong:
        more = f" (nor are {len(wrong) - 1} more)" if wrong[1:] else ""
        message = f"{origin}:{wrong[0] + 1}: {lines[wrong[0]]!r} is not TOKENS,COUNT{more}"
        raise BadRequestError(message, remedy=_FORM)
    counts = tuple((int(row[1]), int(row[2])) for row in rows if row)
    if not any(value for value, _ in counts):
        raise BadRequestError(f"{origin}: the file has no tokens", remedy=_FORM)
    return counts
