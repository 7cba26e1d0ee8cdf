"""The double of the compiled extension fails loudly where it does not know what the real one does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
HERE = Path(__file__).parent


def run(program):
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1]


def test_a_kernel_that_a_release_adds_fails_by_its_name():
    last = run("import transformer_engine_torch as tex; tex.fused_everything_fwd(1, 2)")
    assert last == (
        "NotImplementedError: transformer_engine_torch.fused_everything_fwd: this kernel has no double in tests/real_te"
    )


def test_a_product_of_operands_that_were_not_gathered_fails():
    last = run(
        "import torch, transformer_engine_torch as tex\n"
        "a, b = (torch.empty(64, n, device='meta') for n in (32, 16))\n"
        "tex.generic_gemm(a, True, b, False, None, None, None, None, None, False, None, False, None, 0, False, False)"
    )
    assert last == "ValueError: GEMM of (64, 32) and (64, 16): inner dimensions 32 and 16"


def test_a_user_buffer_refuses_a_tensor_of_another_size():
    last = run(
        "import torch, transformer_engine_torch as tex\n"
        "buffer = tex.CommOverlap((4096, 8192), torch.bfloat16, tex.CommOverlapHelper(), 4)\n"
        "buffer.copy_into_buffer(torch.empty(512, 8192, device='meta', dtype=torch.bfloat16), local_chunk=True)"
    )
    assert last == "ValueError: user buffer of 8388608 elements: (512, 8192) asked for"
