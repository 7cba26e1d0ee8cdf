"""The error of a failed child process: what its stderr holds, and the one line that is quoted of it."""

import subprocess
import sys

import pytest

from harness.records.quoting import MAX_QUOTED, NO_ERROR_TEXT, quoted_error

# What a child does first: on its way out it prints a warning, the leaks of nanobind and an error of a finalizer.
NOISE = """
import atexit, os, sys, warnings

@atexit.register
def leaks():
    os.write(2, b'''nanobind: leaked 2 instances!
 - leaked instance 0x7f3a of type "ir.context"
nanobind: leaked 14 functions!
 - leaked function "get_ptr"
 - ... skipped remainder
nanobind: this is likely caused by a reference counting issue in the binding code.
See https://nanobind.readthedocs.io/en/latest/refleaks.html for details
''')
    warnings.warn('There appear to be 1 leaked semaphore objects')

class Late:
    def __del__(self):
        raise AttributeError('closed already')

late = Late()
"""


def stderr_of(program: str) -> bytes:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        ("raise TypeError('| for function and NoneType')", "TypeError: | for function and NoneType"),
        ("raise KeyError", "KeyError"),
        ("raise ValueError('the stages are:\\n  4 and 5\\nnot 8')", "ValueError: the stages are: 4 and 5"),
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("exec('a b')", "SyntaxError: invalid syntax"),
        ("sys.exit('ImportError: libcudart.so.12')", "ImportError: libcudart.so.12"),
        ("sys.exit('the driver is gone')", "the driver is gone"),
        ("sys.exit('error: no recipe\\n  name one')", "error: no recipe"),
    ],
)
def test_a_child_that_raises_and_then_prints_noise_on_exit_is_quoted_by_its_exception(body, quoted):
    stderr = stderr_of(NOISE + body)
    assert all(
        noise in stderr for noise in (b"nanobind: leaked", b"leaked semaphore", b"AttributeError: closed already")
    )
    assert quoted_error(stderr) == quoted


def test_of_a_chain_the_exception_that_ended_the_process_is_quoted():
    program = "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  raise RuntimeError('no batch') from e"
    assert quoted_error(stderr_of(program)) == "RuntimeError: no batch"


def test_an_exception_that_a_thread_died_of_does_not_hide_the_one_that_ended_the_process():
    program = "import sys, threading\nt = threading.Thread(target=int, args=('x',))\nt.start(); t.join()\nsys.exit('no GPU left')"
    assert quoted_error(stderr_of(program)) == "no GPU left"


def test_an_exception_whose_lines_torch_marks_with_the_rank_is_quoted_without_its_mark():
    lines = ("Traceback (most recent call last):", '  File "a.py", line 1', "TypeError: no meta tensor")
    assert quoted_error("".join(f"[rank0]: {line}\n" for line in lines)) == "TypeError: no meta tensor"


def test_the_text_of_a_cpp_exception_is_quoted_and_not_the_dump_below_it():
    text = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  Expected 2 groups\nStack:\n  frame 0"
    )
    assert quoted_error(text) == "Expected 2 groups"


@pytest.mark.parametrize("silent", ["", "\n \n", b""])
def test_a_child_that_wrote_nothing_is_quoted_as_such(silent):
    assert quoted_error(silent) == NO_ERROR_TEXT


@pytest.mark.parametrize("cut", ["Traceback (most recent call last):", "Exception ignored in: <f>", "\xff"])
def test_a_stderr_that_was_cut_off_is_quoted_as_far_as_it_goes(cut):
    assert quoted_error(cut.encode("latin-1"))


def test_a_quote_is_one_short_line_without_secrets():
    assert quoted_error("ValueError: HF_TOKEN=hf_abcdefghijkl " + 2 * MAX_QUOTED * "x").startswith(
        "ValueError: HF_TOKEN=***"
    )
    assert len(quoted_error(2 * MAX_QUOTED * "x")) == MAX_QUOTED
