from itertools import pairwise

import pytest

from harness.experiment.software import Software, parse_assume
from harness.units import parse_version
from tests.commands import refused

ASCENDING = ["0.16.0.dev0", "0.16.0a1", "0.16.0rc1.dev2", "0.16.0rc1", "0.16.0rc2", "0.16", "0.16.0.post1", "0.16.1",
             "0.20.0.dev0", "0.20.0", "1.0", "2.6.0dev0", "2.6", "2.11.0", "2.12"]  # fmt: skip


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ASCENDING)))
def test_versions_are_ordered_as_pep_440_orders_them(older, newer):
    assert parse_version(older) < parse_version(newer)


@pytest.mark.train
@pytest.mark.parametrize(
    "text", ["0.16.1", "2.7.0.post1", "0.18.0rc2", "2.13.0+cpu", "v1.2", "1.0-beta.2", "0.20.0dev"]
)
@pytest.mark.parametrize("other", ["0.16.1", "2.7.0", "0.18", "2.13.0", "1.0", "0.20.0"])
def test_the_order_is_that_of_packaging(text, other):
    from packaging.version import Version

    assert (parse_version(text) < parse_version(other)) == (Version(text) < Version(other.partition("+")[0]))


def test_trailing_zeros_and_local_parts_do_not_count():
    assert parse_version("0.16.0") == parse_version("0.16") == parse_version("0.16.0+cu128")


@pytest.mark.parametrize("text", ["", "newest", "0.16.", "0.16.x", "1!2.0"])
def test_text_that_is_no_version_is_refused(text):
    with pytest.raises(ValueError, match="version"):
        parse_version(text)


def test_assume_replaces_what_it_names_and_keeps_the_rest():
    installed = Software(megatron_core="0.16.1", torch="2.13.0", transformer_engine="2.11")
    assumed = parse_assume("megatron-core=0.19.2, transformer-engine=none,gpu=h100", installed)
    assert assumed == Software(megatron_core="0.19.2", torch="2.13.0", transformer_engine=None, gpu="h100")


def test_assume_names_every_part_that_is_wrong():
    wrong = "mcore=0.19,gpu=h900,torch=new"
    refused(lambda: parse_assume(wrong, Software()), "'mcore'", "megatron-core", "'h900'", "'new'", num=None)
