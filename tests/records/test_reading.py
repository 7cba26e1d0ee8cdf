"""Strict trees as models: one message for each wrong value, at its line, with what to write instead."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.experiment.frozen import Frozen
from harness.records.reading import Document
from harness.records.refusing import FileModel, one_of
from harness.records.strict_json import parse_json
from harness.records.strict_yaml import parse_yaml
from tests.commands import refused


class Round(Frozen):
    kind: Literal["round"]
    radius: int


class Square(Frozen):
    kind: Literal["square"]
    side: int
    turned: bool = False


class Item(FileModel):
    name: str
    count: int | Literal["none"] = 1
    parts: str | tuple[str, ...] = ()
    share: Annotated[float, Field(gt=0)] = Field(default=1.0, description="share of the whole")
    color: Annotated[str, one_of(("red", "green"))] = "red"
    shape: Annotated[Round | Square, Field(discriminator="kind")] | None = None


class Box(FileModel):
    items: tuple[Item, ...]


def boxed(text):
    parsed = parse_yaml(text, "box.yaml")
    return Document("box.yaml", parsed.value, parsed.lines)


def problems_of(*lines):
    """What is wrong in a box of one item."""
    text = "items:\n- name: a\n" + "".join(f"  {line}\n" for line in lines)
    document = boxed(text)
    assert (document.read(Box) is None) == bool(document.problems.found)
    return [str(problem) for problem in document.problems.found]


def problem_of(row):
    """The one problem of a line; it names what stands behind the line in the row."""
    line, *names = row
    [problem] = problems_of(line)
    assert [name for name in names if name not in problem] == []
    return problem


def test_a_sound_file_becomes_its_model():
    document = boxed("items:\n- name: a\n  shape: {kind: round, radius: 2}\n")
    assert document.read(Box) == Box(items=(Item(name="a", shape=Round(kind="round", radius=2)),))


@pytest.mark.parametrize(
    "row",
    [
        ("cuont: 2", "items[0].cuont: ", "'count'"),
        ("count: many", "items[0].count: ", "'none'", "'many'"),
        ("count:", "items[0].count: "),
        ("parts: [x, 1]", "items[0].parts[1]: ", " 1\n"),
        ("share: 0", "items[0].share: ", " 0, ", " 0\n"),
        ("share: half", "items[0].share: ", "'half'"),
        ("color: gren", "items[0].color: ", "'gren'", "'green'"),
        ("shape: {kind: round}", "items[0].shape.radius: "),
        ("shape: {radius: 1}", "items[0].shape.kind: missing"),
        ("shape: {kind: oval, radius: 1}", "items[0].shape.kind: ", "'round'", "'square'", "'oval'"),
        ("shape: {kind: round, radius: 1, turned: true}", "items[0].shape.turned: ", " kind, radius"),
        ("shape: round", "items[0].shape: ", "'round'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_problem_at_its_line(row):
    assert problem_of(row).startswith("box.yaml:3: items[0].")


def test_every_problem_is_reported_at_once_each_at_its_line():
    lines = ("cuont: 2", "color: blue", "shape:", "  kind: square", "  side: wide")
    assert [problem.split(": ")[0] for problem in sorted(problems_of(*lines))] == [
        "box.yaml:3",
        "box.yaml:4",
        "box.yaml:7",
    ]


def test_a_long_text_is_not_printed_whole():
    [problem] = problems_of(f"share: {'x' * 100}")
    assert "is a text of 100 characters" in problem


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": ' + "9" * 4301 + "}", "[" * 100_000, '{"a": -Infinity}'],
)
def test_json_with_more_than_one_meaning_is_refused_by_its_file(text):
    refused(lambda: parse_json(text, "f.json"), "f.json")
