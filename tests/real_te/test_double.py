"""The double of the compiled extension fails loudly where it does not know what the real one does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
HERE = Path(__file__).parent
REFUSED = {
    # a kernel that a release adds
    "tex.fused_everything_fwd(1, 2)":
        "NotImplementedError: transformer_engine_torch.fused_everything_fwd: this kernel has no double in tests/real_te",
    # a product of operands that were not gathered
    "tex.generic_gemm(empty(64, 32), True, empty(64, 16), False, None, None, None, None, None, False, None, False, None, 0, False, False)":
        "ValueError: GEMM of (64, 32) and (64, 16): inner dimensions 32 and 16",
    # a user buffer and a tensor of another size
    "buffer.copy_into_buffer(empty(512, 8192, dtype=torch.bfloat16), local_chunk=True)":
        "ValueError: user buffer of 8388608 elements: (512, 8192) asked for",
}  # fmt: skip
PROGRAM = """
import functools, sys, torch, transformer_engine_torch as tex
empty = functools.partial(torch.empty, device="meta")
buffer = tex.CommOverlap((4096, 8192), torch.bfloat16, tex.CommOverlapHelper(), 4)
for call in sys.argv[1:]:
    try:
        eval(call)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_what_the_real_one_would_not_take_fails_in_words():
    command = [sys.executable, "-c", PROGRAM, *REFUSED]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(REFUSED.values())
