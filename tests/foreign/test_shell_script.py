"""Reading the words of a launch script without running it."""

import pytest

from harness.errors import BadRequestError
from harness.foreign.shell_script import read_script


def words(text):
    return [[word.text for word in command] for command in read_script(text, "run.sh").commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 # a comment\n", [["run", "--a", "1"]]),
        ("run --a \\\n  1", [["run", "--a", "1"]]),
        ("run --a=1;run2", [["run", "--a=1"], ["run2"]]),
        ("A=5\nrun --a $A ${A}x", [["run", "--a", "5", "5x"]]),
        ("A='x y'\nrun $A \"$A\"", [["run", "x", "y", "x y"]]),
        ("A=(1 'b c' # no\n 3)\nrun ${A[@]} \"${A[@]}\"", [["run", "1", "b", "c", "3", "1", "b c", "3"]]),
        ("A=(1)\nA+=(2)\nrun ${A[*]}", [["run", "1", "2"]]),
        ('A="--x 1"\nA+=" --y 2"\nA="$A --z"\nrun $A', [["run", "--x", "1", "--y", "2", "--z"]]),
        ("run ${N:-8} ${M:-$N}", [["run", "8", "${M:-$N}"]]),
        ("N=2\nrun $((N * 4 + 1)) $(($N*8))", [["run", "9", "16"]]),
        ("run '$A' \"\\$A\"", [["run", "$A", "$A"]]),
        ("run $UNSET $@", [["run", "$UNSET", "$@"]]),
        ("run --moe-layer-freq ([0]*1+[1]*3)", [["run", "--moe-layer-freq", "([0]*1+[1]*3)"]]),
        ("run --layout Et*3|(tt|)*2L | tee log", [["run", "--layout", "Et*3|(tt|)*2L"], ["tee", "log"]]),
        ("run --a\\\n-b 'c d'", [["run", "--a-b", "c d"]]),
        ("", []),
    ],
)
def test_words_are_those_that_a_shell_passes(text, expected):
    assert words(text) == expected


def test_every_word_has_the_line_on_which_it_was_written():
    script = read_script("A=(\n --a\n 1\n)\nrun ${A[@]} \\\n --b", "run.sh")
    assert [(word.text, word.line) for word in script.commands[0]] == [("run", 5), ("--a", 2), ("1", 3), ("--b", 6)]


@pytest.mark.parametrize(
    ("text", "value", "doubt"),
    [
        ("A=1;B=0\nif [ $A = 2 ]; then\n B=1\nfi", "1", "line 2 decides about it"),
        ("A=1\nif [ $A = 2 ]; then A=3; fi\nB=x$A", "x3", "line 2 decides about it"),
        ("if nvidia-smi; then B=1; fi\nB=2", "2", ""),
        ("for i in 1 2; do B=1; done", "1", "line 1 decides about it"),
        ("B=0\n[ -n $W ] && B=2", "2", "line 2 decides about it"),
        ("A=1\n[[ $A == 1 && -n $W ]] && B=1", "1", "line 2 decides about it"),
        ("which tool || B=1", "1", "line 1 decides about it"),
        ("cd dir && B=1", "1", ""),
        ("case $1 in\n a) B=1;;\n *) B=2;;\nesac", "2", "line 1 decides about it"),
        ('case "$M" in\n  "8B"|"70B")\n    B=1\n    ;;\nesac', "1", "line 1 decides about it"),
    ],
)
def test_what_a_branch_decides_says_so(text, value, doubt):
    last = read_script(f"{text}\nrun $B", "run.sh").commands[-1]
    assert [(word.text, word.doubt) for word in last] == [("run", ""), (value, doubt)]


def test_items_that_a_branch_adds_leave_the_others_certain():
    text = 'A=(--a 1)\nif [ -n "$X" ]; then\n  A+=(--b)\nfi\nrun ${A[@]}'
    assert [(w.text, w.doubt) for w in read_script(text, "run.sh").commands[-1]] == [
        ("run", ""), ("--a", ""), ("1", ""), ("--b", "line 2 decides about it"),
    ]  # fmt: skip


def test_exported_variables_are_known():
    found = read_script("export A=1\nB=2\nexport B\nC=3", "run.sh").exported
    assert {name: word.text for name, word in found.items()} == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("run\nrun 'x", "run.sh:2: a ' without an end"), ("A=(1\n2", "run.sh:1: A=( has no end")],
)
def test_quotes_and_arrays_without_an_end_are_refused_at_their_line(text, message):
    with pytest.raises(BadRequestError, match="end") as refused:
        read_script(text, "run.sh")
    assert message in str(refused.value)


def test_variables_that_grow_without_bound_are_refused():
    doubling = "A=xxxxxxxx\n" + "A=$A$A\n" * 40
    with pytest.raises(BadRequestError, match="grows too long"):
        read_script(doubling, "run.sh")
