"""Memory made to run out in every way that can be made, and what is said of each text."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from harness.analysis.oom.classify import Ending, classify
from harness.analysis.oom.verdict import OomClass
from harness.launch.environment import ALLOCATOR_ALIAS
from harness.launch.environment_rows import ALLOCATOR
from harness.records.redact import redact
from harness.runner.gpu_check.case import Case, Unfinished, case_name
from harness.runner.gpu_check.checks import Check, judged
from harness.runner.gpu_check.programs import Program
from harness.runner.gpu_check.runs import Runs

PROGRAM = "oom_class.py"


@dataclass(frozen=True)
class Way:
    """A way of oom_class.py and the class that its text belongs to; None: with these settings it fits."""

    name: str
    expected: OomClass | None
    expandable_segments: bool = False
    needs_gpu: bool = True

    @property
    def case(self) -> str:
        """The name of its case."""
        return case_name("oom", self.name, *(("expandable",) if self.expandable_segments else ()))


WAYS = (
    Way("capacity", "capacity"),
    Way("larger_than_device", "bad_size"),
    Way("fragmentation", "fragmentation"),
    Way("fragmentation", None, expandable_segments=True),
    Way("other_process", "other_process"),
    Way("outside_allocator", "outside_allocator"),
    Way("library", "outside_allocator"),
    Way("cuda_graph_pools", "cuda_graph_pools"),
    Way("self_imposed_limit", "self_imposed_limit"),
    Way("bad_size", "bad_size"),
    Way("host_memory", "host_memory", needs_gpu=False),
)


def make_ooms(runs: Runs) -> Iterator[Case]:
    """Every way once; each is a process of its own, so that the next finds the GPU empty."""
    for way in WAYS:
        if way.case in runs.kept:
            yield runs.kept[way.case]
        elif way.needs_gpu and runs.target.is_rehearsal:
            yield Case(way.case, checks=(Check("classified", "skipped", "needs a GPU to run out of its memory"),))
        else:
            yield _made(runs, way)


def _made(runs: Runs, way: Way) -> Case:
    program = runs.program(way.case, PROGRAM, (way.name,), allocator_settings(expandable=way.expandable_segments))
    if isinstance(program, Unfinished):
        return program.case(way.case)
    path = program.folder / "oom.json"
    if program.exit_code != 0 or not path.is_file():
        return Case(way.case, checks=(not_made(program),), seconds=program.seconds)
    found = {
        name: redact(value) if isinstance(value, str) else value for name, value in json.loads(path.read_text()).items()
    }
    check, facts = classified(way, found)
    return Case(way.case, checks=(check,), seconds=program.seconds, facts={"oom": {**found, **facts}})


def allocator_settings(*, expandable: bool) -> dict[str, str]:
    """Under both names: of two that differ, torch takes the one that a shell may have."""
    return dict.fromkeys((ALLOCATOR, ALLOCATOR_ALIAS), f"expandable_segments:{expandable}")


def not_made(program: Program) -> Check:
    """The program itself failed, so that nothing can be said of what it should have made."""
    return judged("made", holds=False, found=f"exit {program.exit_code}: {program.said or 'no output'}")


def classified(way: Way, found: dict[str, object]) -> tuple[Check, dict[str, object]]:
    """Whether the text's class is the expected one, and what is kept beside the raw text."""
    text = found.get("text")
    told: dict[str, object] = {"expandable_segments": way.expandable_segments, "expected": way.expected}
    if not isinstance(text, str):
        return judged("classified", holds=way.expected is None, found="it fitted"), {**told, "found": None}
    verdict = classify(text, Ending(expandable_segments=way.expandable_segments))
    says = f"{verdict.oom_class} ({verdict.confidence}), expected {way.expected or 'that it fits'}: {verdict.reason}"
    facts = {**told, "found": verdict.oom_class, "confidence": verdict.confidence, "reason": verdict.reason,
             "figures": asdict(verdict.figures) if verdict.figures else None}  # fmt: skip
    return judged("classified", holds=verdict.oom_class == way.expected, found=says), facts
