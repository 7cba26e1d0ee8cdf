"""Lengths of sequences that vary, as micro-batches of them: what fine-tuning without packing gives the allocator."""

import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec

NUM_DRAWS = 5
OPTION = "--lengths"
# Collators pad a batch to a multiple of this, for products in FP8; sequence and context parallelism cut it again.
_MULTIPLE = 16
_MOST = 256  # micro-batches that are drawn for a step; more begin anew
_REMEDY = "give MEAN,SPREAD in tokens, e.g. 1800,700, or a file with a length on each line"


@dataclass(frozen=True)
class Lengths:
    """Tokens of sequences: counts by length, or with ``spread`` a normal distribution around ``mean``."""

    mean: float = 0.0
    spread: float = 0.0
    counts: tuple[tuple[int, int], ...] = ()

    def draws(self, spec: ExperimentSpec) -> list[tuple[tuple[float, ...], ...]]:
        """Return draws with fixed seeds: for both steps, each micro-batch's share of the tokens of the longest one.

        A micro-batch is padded to its longest sequence. Longer ones than ``seq_length`` are cut, as trainers do.
        """
        batch, parallelism = spec.batch, spec.parallelism
        multiple = _MULTIPLE * parallelism.tensor_model_parallel_size * parallelism.context_parallel_size
        most, lengths = batch.seq_length, [length for length, _ in self.counts]
        counted = [*accumulate(count for _, count in self.counts)]

        def drawn(source: random.Random, num: int) -> list[float]:
            if lengths:
                return [*source.choices(lengths, cum_weights=counted, k=num)]
            return [source.gauss(self.mean, self.spread) for _ in range(num)]

        def microbatch(source: random.Random) -> float:
            longest = max(drawn(source, batch.micro_batch_size))
            return min(most, -(-max(1, round(longest)) // multiple) * multiple) / most

        sources = [random.Random(seed) for seed in range(NUM_DRAWS)]  # noqa: S311
        return [tuple(tuple(microbatch(each) for _ in range(_MOST)) for _ in range(2)) for each in sources]


def read_lengths(text: str) -> Lengths:
    """Read ``MEAN,SPREAD`` or a file: a length a line, and behind it how often it occurs. BadRequestError."""
    numbers = [_positive(word) for word in text.split(",")]
    if len(numbers) == 2 and None not in numbers:
        return Lengths(mean=numbers[0] or 0, spread=numbers[1] or 0)
    try:
        lines = Path(text).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(
            f"{OPTION} {text}: neither two numbers above 0 nor a readable file", remedy=_REMEDY
        ) from error
    rows = [(number, line.replace(",", " ").split()) for number, line in enumerate(lines, 1)]
    if not any(words for _, words in rows):
        raise BadRequestError(f"{OPTION} {text}: the file has no lengths", remedy=_REMEDY)
    return Lengths(counts=tuple(_row(text, number, words) for number, words in rows if words))


def _row(file: str, number: int, words: list[str]) -> tuple[int, int]:
    if len(words) > 2 or not all(word.isdecimal() and int(word) for word in words):
        remedy = "give a length, and how often it occurs"
        raise BadRequestError(f"{OPTION} {file}:{number}: {' '.join(words)}: not two counts", remedy=remedy)
    return int(words[0]), int(words[1]) if len(words) > 1 else 1


def _positive(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
