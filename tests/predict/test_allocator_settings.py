"""Settings of torch's allocator are read as torch 2.11 reads them; a value that it refuses is refused."""

import pytest

from harness.experiment.software import Software
from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Device, OutOfDeviceMemoryError
from harness.predict.allocator_settings import AllocatorSettings, asked_settings, is_known, notes_of, settings_of
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from harness.units import GIB, MIB
from tests.commands import refused
from tests.scripted_cuda.allocator_sequences import ACCEPTED, REFUSED


@pytest.mark.parametrize("text", REFUSED)
def test_a_value_that_torch_refuses_is_refused(text):
    refused(lambda: settings_of(text), f"PYTORCH_CUDA_ALLOC_CONF={text}: ")


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_value_that_torch_takes_is_taken(text):
    settings_of(text)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("expandable_segments: True,", AllocatorSettings(expandable_segments=True)),
        ("max_split_size_mb:128,max_split_size_mb:256", AllocatorSettings(max_split_bytes=256 * MIB)),
        ("large_segment_size_mb:64,max_split_size_mb:64",
         AllocatorSettings(large_segment_bytes=64 * MIB, max_split_bytes=64 * MIB)),
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:1",
         AllocatorSettings(garbage_collection_threshold=0.5)),
        ("backend:native,pinned_num_register_threads:8", AllocatorSettings()),
    ],
)  # fmt: skip
def test_what_the_settings_mean(text, settings):
    assert settings_of(text) == settings


@pytest.mark.parametrize(
    ("divisions", "mebibytes"),
    [
        ("[64:8,128:2,>:1]", {0.3: 0.3125, 1.3: 1.375, 5.1: 5.5, 66.1: 72, 130.1: 192, 258.1: 258.10009765625}),
        ("[>:4]", {0.3: 0.30029296875, 5.1: 6, 130.1: 160, 1300.7: 1536}),
        ("[256:8,64:4]", {33.1: 36, 66.1: 80, 130.1: 144, 520.3: 520.30029296875}),
        ("[4:2,16:0]", {1.3: 1.5, 5.1: 6, 66.1: 66.10009765625}),
        ("128", {0.3: 0.30078125, 1.3: 1.3046875, 5.1: 5.125, 66.1: 66.5, 1300.7: 1304}),
    ],
)
def test_sizes_are_rounded_as_torch_rounds_them(divisions, mebibytes):
    settings = settings_of(f"roundup_power2_divisions:{divisions}")
    assert {size: settings.rounded(int(size * MIB)) / MIB for size in mebibytes} == mebibytes


def test_a_number_that_python_would_not_read_is_refused_too():
    refused(lambda: settings_of("max_split_size_mb:" + "9" * 5000), "max_split_size_mb")


def test_torch_reads_the_first_variable_that_is_set_even_to_nothing():
    old, new = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    spec = resolve(Request(model_recipe_name="llama3_8b", gpu="h100", num_gpus=8)).spec

    def asked(environment):
        return asked_settings(spec.model_copy(update={"env": environment}))[0]

    assert asked({new: "expandable_segments:True"}).expandable_segments
    assert not asked({new: "expandable_segments:True", old: ""}).expandable_segments
    assert asked({}).expandable_segments  # as the launcher sets it
    refused(lambda: asked({new: "expandable_segments:1"}), "PYTORCH_ALLOC_CONF=expandable_segments:1: ")


def test_a_collection_without_a_memory_fraction_is_named_as_inert():
    assert "garbage_collection_threshold" in (settings_of("garbage_collection_threshold:0.8").inert or "")
    assert settings_of("garbage_collection_threshold:0.8,per_process_memory_fraction:0.9").inert is None
    assert settings_of("expandable_segments:True").inert is None


def test_the_releases_whose_allocator_was_run_or_read_are_known():
    known = [is_known(each) for each in ("2.11.0+cu130", "2.6.0", "2.10.1", "2.5.1", "2.12.0.dev1")]
    assert known == [True, True, True, False, False]
    spec = resolve(Request(model_recipe_name="llama3_8b", gpu="h100", num_gpus=8)).spec
    assert [len(notes_of(spec, Software(torch=each))) for each in (None, "2.11.0", "2.13.1+cu130")] == [0, 0, 1]


def test_a_request_larger_than_an_expandable_range_is_refused():
    allocator = Allocator(AllocatorSettings(expandable_segments=True), Device(total_bytes=GIB))
    with pytest.raises(OutOfDeviceMemoryError):
        allocator.malloc(2 * GIB)
    assert allocator.reserved == 0


def test_a_refused_request_leaves_what_was_there():
    allocator = Allocator(device=Device(limit_bytes=GIB))
    kept = allocator.malloc(800 * MIB)
    with pytest.raises(OutOfDeviceMemoryError, match=r"300\.00 MiB failed: 800\.00 MiB reserved"):
        allocator.malloc(300 * MIB)
    assert (allocator.reserved, allocator.num_retries) == (800 * MIB, 1)
    allocator.free(kept)
    allocator.malloc(900 * MIB)
    assert (allocator.reserved, allocator.num_retries) == (900 * MIB, 2)
