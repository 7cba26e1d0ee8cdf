"""Out of memory: a run that needs too much and the run after it, and the class of every out-of-memory error."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import checks
from case import Case, Check, Unfinished, case_name, judged
from machine import Target
from runs import Ran, Runs, case_of
from shapes import Shape

from harness.failures.classify import Ending, classify
from harness.failures.verdict import OomClass
from harness.launch.environment_rows import ALLOCATOR, ALLOCATOR_ALIAS
from harness.records.redact import redact

# Certain to be too much: with OOM_SAMPLES per micro-batch a layer keeps more than OOM_TENSORS tensors of hidden size.
OOM_SAMPLES = 16
OOM_TENSORS = 16
# The variable under both of its names: torch prefers the one that a shell may have set.
_NATIVE = dict.fromkeys((ALLOCATOR, ALLOCATOR_ALIAS), "expandable_segments:False")
OOM_WIDTHS = ("model.vocab_size=10000000", "model.hidden_size=1048576")  # on a CPU: no system grants 20 TB


@dataclass(frozen=True)
class Way:
    """A way of oom_class.py and the class that its text belongs to."""

    name: str
    expected: OomClass
    needs_gpu: bool = True

    @property
    def case(self) -> str:
        return case_name("oom", self.name)


WAYS = (
    Way("capacity", "capacity"),
    Way("larger_than_device", "bad_size"),
    Way("outside_allocator", "outside_allocator"),
    Way("library", "outside_allocator"),
    Way("cuda_graph_pools", "cuda_graph_pools"),
    Way("self_imposed_limit", "self_imposed_limit"),
    Way("host_memory", "host_memory", needs_gpu=False),
)


def survive_oom(runs: Runs, shape: Shape) -> Iterator[Case]:
    """A request that cannot fit is recorded as out of memory, and the next run on the same GPU is a normal one."""
    oom, after = case_name(shape.name, "oom"), case_name(shape.name, "after_oom")
    if {oom, after} <= set(runs.kept):
        yield from (runs.kept[oom], runs.kept[after])
        return
    yield case_of(oom, runs.run(oom, shape, **oversize(runs.target, shape)), checks.out_of_memory)
    yield case_of(after, runs.run(after, shape, recompute="none"), checks.of_training)


def oversize(target: Target, shape: Shape) -> dict[str, Any]:
    """Return a request that needs half as much again as the GPU has; its weights alone would fit."""
    if target.total_bytes is None:
        return {"recompute": "none", "set_values": OOM_WIDTHS}
    spec = shape.settle(target).spec
    bytes_of_layer = OOM_TENSORS * OOM_SAMPLES * spec.batch.seq_length * spec.model.hidden_size * 2
    layers = ceil(1.5 * target.total_bytes / bytes_of_layer) + 2
    batch = {"micro_batch_size": OOM_SAMPLES, "global_batch_size": OOM_SAMPLES}
    return {"recompute": "none", "num_layers": layers, **batch}


def make_ooms(runs: Runs) -> Iterator[Case]:
    """Go through every way once, each in its own process, so that the next finds the GPU empty."""
    for way in WAYS:
        if way.case in runs.kept:
            yield runs.kept[way.case]
        elif way.needs_gpu and runs.target.is_rehearsal:
            skipped = Check("classified", "skipped", f"{checks.GPU_ONLY}: it runs out of GPU memory")
            yield Case(way.case, checks=(skipped,))
        else:
            yield _made(runs, way)


def _made(runs: Runs, way: Way) -> Case:
    program = runs.program(way.case, "oom_class.py", (way.name,), _NATIVE)
    if isinstance(program, Unfinished):
        return program.case(way.case)
    path = program.folder / "oom.json"
    if program.exit_code != 0 or not path.is_file():
        return Case(way.case, checks=(not_made(program),), seconds=program.seconds)
    read = json.loads(path.read_text())
    found = {name: redact(value) if isinstance(value, str) else value for name, value in read.items()}
    check, facts = _classified(way, found)
    return Case(way.case, checks=(check,), seconds=program.seconds, facts={"oom": {**found, **facts}})


def not_made(program: Ran) -> Check:
    """Return the failed check of a program that did not produce its files."""
    return judged("made", holds=False, found=f"exit {program.exit_code}: {program.output or 'no output'}")


def _classified(way: Way, found: dict[str, object]) -> tuple[Check, dict[str, object]]:
    """Check that the text's class is the expected one; also return what is kept beside the raw text."""
    text = found.get("text")
    facts: dict[str, object] = {"expected": way.expected}
    if not isinstance(text, str):
        return judged("classified", holds=False, found="it fitted"), {**facts, "found": None}
    verdict = classify(text, Ending(expandable_segments=False))
    outcome = f"{verdict.oom_class} ({verdict.confidence}), expected {way.expected}: {verdict.reason}"
    facts |= {"found": verdict.oom_class, "confidence": verdict.confidence, "reason": verdict.reason,
              "figures": asdict(verdict.figures) if verdict.figures else None}  # fmt: skip
    return judged("classified", holds=verdict.oom_class == way.expected, found=outcome), facts
