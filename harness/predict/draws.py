"""Sizes that vary from micro-batch to micro-batch, drawn with fixed seeds: sequences' lengths and experts' tokens."""

import random
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import ExperimentSpec

NUM_DRAWS = 5
LENGTHS, ROUTING = "--lengths", "--routing"
# Collators pad a batch to a multiple of this, for products in FP8; sequence and context parallelism cut it again.
_MULTIPLE = 16


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens: a normal distribution, or ``counts``: numbers and how often each occurs, with their mean."""

    mean: float
    spread: float = 0.0
    counts: tuple[tuple[int, int], ...] = ()
    origin: str = field(default="", compare=False)

    @property
    def longest(self) -> tuple[float, str]:
        """The most tokens that are sure to occur, and where they stand. A spread may reach beyond its mean."""
        rows = [(float(value), f"{self.origin}:{line}") for line, (value, _) in enumerate(self.counts, 1)]
        return max(rows, default=(self.mean, self.origin))

    def drawn(self, source: random.Random, num: int) -> list[float]:
        """Draw numbers of tokens."""
        if self.counts:
            values, weights = zip(*self.counts, strict=True)
            return [*source.choices(values, weights, k=num)]
        return [max(0.0, source.gauss(self.mean, self.spread)) for _ in range(num)]


@dataclass(frozen=True)
class Draw:
    """One draw for a rank: shares of the tokens of a whole micro-batch with even routing."""

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
        return min(sum(found) / num_experts / self.routing.mean, capacity or float("inf"))

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
        """Raise BadRequestError for lengths that a sequence cannot have, and for routing that cannot vary."""
        problems, most = Problems(), spec.batch.seq_length
        longest, where = self.lengths.longest if self.lengths else (0.0, "")
        if longest > most:
            problems.add(
                f"{where}: {round(longest)} tokens are more than the sequence length, {most}",
                f"give no lengths above {most}, or longer sequences with -sl",
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
    """Read the values of the options. BadRequestError with what is wrong in either."""
    problems = Problems()
    given = ((LENGTHS, lengths), (ROUTING, routing))
    found = [problems.tried(partial(read_tokens, option, text)) if text else None for option, text in given]
    problems.raise_if_any()
    return Varied(*found)


def read_tokens(option: str, text: str) -> Tokens:
    """Read ``MEAN,SPREAD``, or a file with ``TOKENS,COUNT`` on each line. BadRequestError with the first wrong line."""
    origin = f"{option} {text}"
    form = "give MEAN,SPREAD in tokens, e.g. 1800,700, or a file with TOKENS,COUNT on each line, e.g. 2048,310"
    found = re.fullmatch(r" *(\d+\.?\d*) *, *(\d+\.?\d*) *", text)
    if found and float(found[1]) and float(found[2]):
        return Tokens(float(found[1]), float(found[2]), origin=origin)
    try:
        lines = Path(text).read_text().rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{origin}: neither two numbers above 0 nor a readable file", remedy=form) from error
    rows = [re.fullmatch(r" *(\d{1,12}) *, *0*([1-9]\d{0,11}) *", line) for line in lines]
    if None in rows:
        first = rows.index(None)
        message = f"{origin}:{first + 1}: {lines[first]!r} is not TOKENS,COUNT; wrong lines: {rows.count(None)}"
        raise BadRequestError(message, remedy=form)
    counts = tuple((int(row[1]), int(row[2])) for row in rows if row)
    tokens = sum(value * count for value, count in counts)
    if not tokens:
        raise BadRequestError(f"{origin}: the file has no tokens", remedy=form)
    return Tokens(tokens / sum(count for _, count in counts), counts=counts, origin=origin)
