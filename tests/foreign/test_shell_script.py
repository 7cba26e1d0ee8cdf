"""Reading the words of a command line, and of a script that only sets variables."""

import pytest

from harness.foreign.shell_script import read_script
from tests.commands import refused


def words(text):
    return [[word.text for word in command] for command in read_script(text, "run.sh").commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 # a comment\n", [["run", "--a", "1"]]),
        ("run --a \\\n  1", [["run", "--a", "1"]]),
        ("run --a=1;run2", [["run", "--a=1"], ["run2"]]),
        ("A=5\nrun --a $A ${A}x", [["run", "--a", "5", "5x"]]),
        ("A='x y'\nrun $A \"$A\" '$A'", [["run", "x", "y", "x y", "$A"]]),
        ('A="--x 1"\nA="$A --z"\nrun $A', [["run", "--x", "1", "--z"]]),
        ("run $UNSET $@", [["run", "$UNSET", "$@"]]),
        ("run --moe-layer-freq ([0]*1+[1]*3)", [["run", "--moe-layer-freq", "([0]*1+[1]*3)"]]),
        ("run --layout Et*3|(tt|)*2L | tee log", [["run", "--layout", "Et*3|(tt|)*2L"]]),
        ("run --a 1 > log 2>&1 &\nrun2", [["run", "--a", "1"], ["run2"]]),
        ("A=(1 # one\n 2\n)\nA+=('x y' --z)\nrun \"${A[@]}\" ${A[*]}", [["run", *(2 * ["1", "2", "x y", "--z"])]]),
        ('A=()\nB=("([0]*1)")\nrun ${A[@]} ${B[@]} ${C[@]}', [["run", "([0]*1)", "${C[@]}"]]),
        ("A+=' 3'\nB=1\nB+=' 2'\nrun \"$A\" $B", [["run", "$A 3", "1", "2"]]),
        ('B=\nrun ${A:-x y} "${A-x y}" ${B:-5} ${B-5}', [["run", "x", "y", "x y", "5"]]),
        (": ${A:=8}\nrun $A", [[":", "8"], ["run", "8"]]),
        ('A="$(cd "$(dirname "$0")" && pwd)"\nB=$((2 * 3))\nrun $A ${B:-4}', [["run", "$A", "$B"]]),
        ("A=${B%.*}\nrun $A $(date +%s)", [["run", "$A", "$(date +%s)"]]),
        ("", []),
    ],
)
def test_words_are_those_that_a_shell_passes(text, expected):
    assert words(text) == expected


def test_every_word_has_the_line_on_which_it_was_written():
    script = read_script("\nrun --a \\\n 1 \\\n --b", "run.sh")
    assert [(word.text, word.line) for word in script.commands[0]] == [("run", 2), ("--a", 2), ("1", 3), ("--b", 4)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A=1\nif [ $A = 2 ]; then\n B=1\nfi", 2), ("for i in 1 2; do B=1; done", 1), ("B=0\n[ -n $W ] && B=2", 2),
        ("which tool || B=1", 1), ("case $1 in\n a) B=1;;\nesac", 1), ("A[0]=1", 1), ("run `date`", 1), ("cat <<END\nrun\nEND", 1), ("main() {\n run\n}", 1), (". ./env.sh", 1),
        ("run --a 'if' for", 0), ("set -e\ncd folder", 0),
    ],
)  # fmt: skip
def test_the_line_that_only_a_shell_can_run_is_known(text, line):
    logic = read_script(text, "run.sh").logic
    assert (logic.line if logic else 0) == line


def test_defaults_that_a_command_takes_are_known():
    commands = read_script("A=${GPUS:-8}\nB=${PORT:-1}\nrun -g $A ${N:-2}", "run.sh").commands
    assert [word.assumed for word in commands[0]] == [(), (), ("GPUS=8",), ("N=2",)]


def test_exported_variables_are_known():
    found = read_script("export A=1\nB=2\nexport B\nC=3\nD=4 run\nunset A", "run.sh").exported
    assert {name: word.text for name, word in found.items()} == {"B": "2", "D": "4"}


def test_quotes_without_an_end_are_refused_at_their_line():
    refused(lambda: read_script("run\nrun 'x", "run.sh"), "run.sh:2: a ' ")
    refused(lambda: read_script("run\nA=(1\n", "run.sh"), "run.sh:2: a ( ")
