"""YAML and JSON become models; every problem is reported at its line."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.errors import BadRequestError, ManyProblemsError
from harness.experiment.frozen import Frozen
from harness.records.reading import MAX_BYTES, Document
from harness.records.refusing import FileModel, one_of
from harness.records.strict_json import parse_json
from harness.records.strict_yaml import parse_yaml, read_yaml
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
    ["", "[1]", '{"a": 1, "a": 2}', '{"a": ' + "9" * 4301 + "}", "[" * 100_000],
)
def test_json_with_more_than_one_meaning_is_refused_by_its_file(text):
    refused(lambda: parse_json(text, "f.json"), "f.json")


TRAPS = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", 3), "anchor": ("a: &x 1\n", 1), "alias": ("a: 2\nb: *x\n", 2),
    "merge key": ("a:\n  <<: {b: 1}\n", 2), "not a number": ("a: .nan\n", 1), "infinity": ("a: -.inf\n", 1),
    "NaN": ("a: NaN\n", 1), "too long": (f"a: {'9' * 5000}\n", 1), "overflow": ("a: 1.0e+999\n", 1),
    "exponent without point": ("a: 1e-3\n", 1), "yes": ("a: yes\n", 1), "off": ("a: Off\n", 1), "True": ("a: True\n", 1),
    "NULL": ("a: NULL\n", 1), "octal": ("a: 010\n", 1), "new octal": ("a: 0o10\n", 1), "hexadecimal": ("a: 0x1F\n", 1),
    "base 60": ("a: 12:30\n", 1), "date": ("a: 2024-01-31\n", 1), "underscore": ("a: 1_000\n", 1), "plus": ("a: +5\n", 1),
    "no leading digit": ("a: .5\n", 1), "python tag": ("a: !!python/object/apply:os.getcwd []\n", 1),
    "str tag": ("a: !!str 1\n", 1), "number as key": ("1: a\n", 1), "list as key": ("[a]: b\n", 1),
    "boolean as key": ("on: a\n", 1), "line break": ('a: {b: [x, "y\\nz"]}\n', 1), "carriage return": ('a: "\\rz"\n', 1),
    "line separator": ('a: "\u2028z"\n', 1), "block": ("a: |-\n  x\n  y\n", 1), "break in a key": ('"x\\ny": 1\n', 1),
    "escape": ('a: "\\e]0;x"\n', 1), "two documents": ("a: 1\n---\nb: 2\n", 2), "nothing": ("# only a comment\n", 1),
    "tab": ("a:\n\tb: 1\n", 2), "open bracket": ("a: [1, 2\nb: 3\n", 2), "control": ("a: \x01\n", 1),
    "depth": ("a: " + "[" * 24 + "]" * 24 + "\n", 1), "great depth": ("a: " + "[" * 100_000, 1),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_in_a_file_is_refused_at_its_line(tmp_path: Path, trap: str):
    path, (text, line) = tmp_path / "f.yaml", TRAPS[trap]
    path.write_text(text, encoding="utf-8")
    problems = refused(lambda: read_yaml(path, "f.yaml"), num=None)
    assert any(problem.message.startswith(f"f.yaml:{line}: ") for problem in problems)
    assert all(problem.remedy for problem in problems)


def test_all_traps_of_a_file_are_reported_at_once():
    with pytest.raises(ManyProblemsError) as caught:
        parse_yaml("a: yes\nb: 010\na: 2\n", "f.yaml")
    assert [p.message.split(" ")[0] for p in caught.value.problems] == ["f.yaml:1:", "f.yaml:2:", "f.yaml:3:"]


def test_plain_values_have_one_meaning_and_a_line():
    text = "{a: 1, b: -2.5, c: 1.0e-3, d: true, e: null, f: full:uniform:1, g: 'yes', h: \"010\",\n i: [x, 2], j: nodes, k: }"
    parsed = parse_yaml(text, "f")
    assert parsed.value == {
        "a": 1, "b": -2.5, "c": 0.001, "d": True, "e": None, "f": "full:uniform:1", "g": "yes", "h": "010",
        "i": ("x", 2), "j": "nodes", "k": None,
    }  # fmt: skip
    assert (parsed.lines[()], parsed.lines[("h",)], parsed.lines[("i", 1)]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#" * (MAX_BYTES + 1), "larger than 1 MiB"),
        (b"a: 1\nb: \xff\n", r"f\.yaml:2: not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_wrong_request(tmp_path: Path, content, message):
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadRequestError, match=message):
        read_yaml(path, "f.yaml")


@pytest.mark.parametrize("block", [">", ">-", "|", "|+"])
def test_the_break_that_ends_a_block_is_not_of_its_text(block):
    assert parse_yaml(f"a: {block}\n  one line\nb: 1\n", "f.yaml").value == {"a": "one line", "b": 1}


def test_a_number_of_5000_digits_is_refused_in_a_file_of_pyyaml_too():
    refused(lambda: parse_yaml(f"a: {'9' * 5000}\n", "f.yaml", by_pyyaml=True), "f.yaml:1: ", "5000 digits")
