from pathlib import Path

import pytest

from harness.errors import BadRequestError, ManyProblemsError
from harness.resolve.strict_yaml import MAX_BYTES, parse_yaml, plain, read_yaml

TRAPS = [
    ("duplicate key", "a: 1\nb: 2\na: 3\n", "f.yaml:3: duplicate key 'a', first on line 1"),
    ("anchor", "a: &x 1\n", "f.yaml:1: anchors and aliases are not allowed (x)"),
    ("alias", "a: &x 1\nb: *x\n", "f.yaml:2: anchors and aliases are not allowed (x)"),
    ("merge key", "a:\n  <<: {b: 1}\n", "f.yaml:2: merge keys are not allowed"),
    ("not a number", "a: .nan\n", "f.yaml:1: '.nan' is ambiguous: it is not a finite number"),
    ("infinity", "a: -.inf\n", "f.yaml:1: '-.inf' is ambiguous: it is not a finite number"),
    ("too long", f"a: {'9' * 5000}\n", f"f.yaml:1: '{'9' * 20}...' is too long a number: it has 5000 digits"),
    ("overflow", "a: 1.0e+999\n", "f.yaml:1: '1.0e+999' is not a finite number"),
    ("exponent without point", "a: 1e-3\n", "f.yaml:1: '1e-3' is ambiguous: YAML 1.1 reads it as text"),
    ("yes", "a: yes\n", "f.yaml:1: 'yes' is ambiguous: YAML 1.1 reads it as a boolean, YAML 1.2 as text"),
    ("off", "a: Off\n", "f.yaml:1: 'Off' is ambiguous: YAML 1.1 reads it as a boolean, YAML 1.2 as text"),
    ("True", "a: True\n", "f.yaml:1: 'True' is ambiguous: only true and false are booleans"),
    ("NULL", "a: NULL\n", "f.yaml:1: 'NULL' is ambiguous: only null is null"),
    ("octal", "a: 010\n", "f.yaml:1: '010' is ambiguous: YAML 1.1 reads a leading zero as octal"),
    ("new octal", "a: 0o10\n", "f.yaml:1: '0o10' is ambiguous: it is not decimal"),
    ("hexadecimal", "a: 0x1F\n", "f.yaml:1: '0x1F' is ambiguous: it is not decimal"),
    ("base 60", "a: 12:30\n", "f.yaml:1: '12:30' is ambiguous: YAML 1.1 reads it in base 60"),
    ("date", "a: 2024-01-31\n", "f.yaml:1: '2024-01-31' is ambiguous: YAML 1.1 reads it as a date"),
    ("underscore", "a: 1_000\n", "f.yaml:1: '1_000' is ambiguous: YAML versions differ on digits with underscores"),
    ("plus", "a: +5\n", "f.yaml:1: '+5' is ambiguous: numbers carry no plus sign"),
    ("no leading digit", "a: .5\n", "f.yaml:1: '.5' is ambiguous: a number has digits on both sides of the point"),
    ("python tag", "a: !!python/object/apply:os.getcwd []\n", "f.yaml:1: tags are not allowed (tag:yaml.org,2002:python/object/apply:os.getcwd)"),
    ("str tag", "a: !!str 1\n", "f.yaml:1: tags are not allowed (tag:yaml.org,2002:str)"),
    ("number as key", "1: a\n", "f.yaml:1: a key is not text"),
    ("list as key", "[a]: b\n", "f.yaml:1: a key is not text"),
    ("boolean as key", "on: a\n", "f.yaml:1: 'on' is ambiguous: YAML 1.1 reads it as a boolean, YAML 1.2 as text"),
    ("line break", 'a: {b: [x, "y\\nz"]}\n', r"f.yaml:1: b: holds a line break, \n"),
    ("carriage return", 'a: "\\rz"\n', r"f.yaml:1: a: holds a line break, \r"),
    ("line separator", 'a: "\u2028z"\n', r"f.yaml:1: a: holds a line break, \u2028"),
    ("block", "a: |-\n  x\n  y\n", r"f.yaml:1: a: holds a line break, \n"),
    ("break in a key", '"x\\ny": 1\n', r"f.yaml:1: a key holds a line break, \n"),
    ("escape", 'a: "\\e]0;x"\n', r"f.yaml:1: a: holds a control character, \x1b"),
    ("two documents", "a: 1\n---\nb: 2\n", "f.yaml:2: a second document"),
    ("nothing", "# only a comment\n", "f.yaml:1: empty document"),
    ("tab", "a:\n\tb: 1\n", "f.yaml:2: not YAML: found character that cannot start any token"),
    ("open bracket", "a: [1, 2\nb: 3\n", "f.yaml:2: not YAML: did not find expected ',' or ']'"),
    ("depth", "a: " + "[" * 20 + "]" * 20 + "\n", "f.yaml:1: more than 12 levels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [t[1:] for t in TRAPS], ids=[t[0] for t in TRAPS])
def test_a_trap_in_a_file_is_refused_at_its_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "f.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequestError) as caught:
        read_yaml(path, "f.yaml")
    problems = caught.value.problems
    assert message in [p.message for p in problems]
    assert all(p.remedy for p in problems)


def test_all_traps_of_a_file_are_reported_at_once():
    with pytest.raises(ManyProblemsError) as caught:
        parse_yaml("a: yes\nb: 010\na: 2\n", "f.yaml")
    assert [p.message.split(" ")[0] for p in caught.value.problems] == ["f.yaml:1:", "f.yaml:2:", "f.yaml:3:"]


def test_plain_values_have_one_meaning():
    text = "{a: 1, b: -2.5, c: 1.0e-3, d: true, e: null, f: full:uniform:1, g: 'yes', h: \"010\", i: [x, 2], j: nodes, k: }"
    assert plain(parse_yaml(text, "f")) == {
        "a": 1, "b": -2.5, "c": 0.001, "d": True, "e": None, "f": "full:uniform:1", "g": "yes", "h": "010",
        "i": ("x", 2), "j": "nodes", "k": None,
    }  # fmt: skip


def test_a_large_file_is_refused_before_it_is_parsed(tmp_path: Path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(BadRequestError, match=r"f\.yaml: larger than 1 MiB"):
        read_yaml(path, "f.yaml")


def test_a_file_that_is_not_utf_8_is_refused_at_its_line(tmp_path: Path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(BadRequestError, match=r"f\.yaml:2: not UTF-8"):
        read_yaml(path, "f.yaml")


def test_control_characters_are_no_yaml():
    with pytest.raises(BadRequestError, match=r"f:1: not YAML"):
        parse_yaml("a: \x01\n", "f")


def test_a_missing_file_is_a_wrong_request(tmp_path: Path):
    with pytest.raises(BadRequestError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml", "none.yaml")


@pytest.mark.parametrize("block", [">", ">-", "|", "|+"])
def test_the_break_that_ends_a_block_is_not_of_its_text(block):
    assert plain(parse_yaml(f"a: {block}\n  one line\nb: 1\n", "f.yaml")) == {"a": "one line", "b": 1}


def test_a_number_of_5000_digits_is_refused_in_a_file_of_pyyaml_too():
    with pytest.raises(BadRequestError, match="is too long a number: it has 5000 digits"):
        parse_yaml(f"a: {'9' * 5000}\n", "f.yaml", by_pyyaml=True)
