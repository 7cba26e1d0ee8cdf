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


# Requests of a training step; the snapshot's history holds them all.
RECORDS = """
import sys, torch
from tests.scripted_cuda.allocator_sequences import training
torch.cuda.memory._record_memory_history(max_entries=100_000)
live = {}
for name, *of in training(20, side=False):
    if name == "alloc":
        live[of[0]] = torch.empty(of[1], dtype=torch.uint8, device="cuda")
    elif name == "free":
        del live[of[0]]
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
print(*(torch.cuda.memory_stats()[f"{name}_bytes.all.current"] for name in ("allocated", "active", "reserved")))
"""


def test_what_if_on_a_snapshot_says_what_torch_reserves_under_the_other_settings(machine, tmp_path):
    here, settings = machine(num_devices=1), ("", "expandable_segments:True", "roundup_power2_divisions:4")
    real, sums = [], []
    for number, each in enumerate(settings):
        done = here.run("-c", RECORDS, tmp_path / f"{number}.pickle", more={"PYTORCH_CUDA_ALLOC_CONF": each})
        peaks, last = (list(map(int, line.split())) for line in done.stdout.splitlines())
        real.append(peaks)
        sums.append(last)
    asked = [word for each in settings[1:] for word in ("--what_if", each)]
    answer = here.mbr_perf("snapshot", tmp_path / "0.pickle", *asked, "--json")
    (device,), what_if = (json.loads(answer.stdout)[name] for name in ("devices", "what_if"))
    allocated, active, reserved = sums[0]
    free = sum(device[f"{name}_bytes"] for name in ("releasable", "stranded", "private_free"))
    read = [device[f"{name}_bytes"] for name in ("allocated", "pending", "reserved")]
    assert [*read, free] == [allocated, active - allocated, reserved, reserved - active]
    assert [[row["allocated_bytes"], row["reserved_bytes"]] for row in what_if["rows"]] == real
    assert (what_if["recorded_reserved_bytes"], what_if["notes"]) == (real[0][1], [])


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
