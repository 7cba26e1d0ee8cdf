"""torch's own allocator answers today as recorded, which tests/predict/test_allocator.py compares with the replay."""

import json

import pytest

from tests.scripted_cuda.allocator_answers import answers_of
from tests.scripted_cuda.allocator_sequences import ACCEPTED, REFUSED, SETTINGS, read_answers

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

# Each text in a process of its own would take minutes. What an earlier one set stays, but for these; so no text relies on it.
ASKS = """
import json, sys, torch
said = {}
for text in json.load(sys.stdin):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        torch._C._accelerator_setAllocatorSettings(text)
        said[text] = None
    except Exception as error:
        said[text] = str(error)
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,max_non_split_rounding_mb:20")
print(json.dumps(said))
"""


@pytest.mark.parametrize("name", SETTINGS)
def test_torch_answers_block_by_block_as_recorded(tmp_path, name):
    assert answers_of(tmp_path, SETTINGS[name]) == read_answers(name)


def test_torch_refuses_the_values_that_it_is_said_to_refuse(machine, tmp_path):
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps([*ACCEPTED, *REFUSED]))
    with texts.open() as asked:
        process = machine(num_devices=1).started("-c", ASKS, stdin=asked)
        out, err = process.communicate(timeout=300)
    said = json.loads(out.splitlines()[-1]) if out else err
    assert [text for text in ACCEPTED if said[text]] == []
    assert [text for text, words in REFUSED.items() if words not in (said[text] or "")] == []
