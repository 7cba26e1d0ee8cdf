"""A golden file of Megatron-Bridge or Megatron-LM, whichever it is."""

from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.foreign.bridge_golden import MAY_BE_NAN, looks_like_bridge, read_bridge
from harness.records.foreign.golden_json import read_plain
from harness.records.foreign.golden_values import ForeignGolden
from harness.records.foreign.megatron_lm_golden import looks_like_megatron_lm, read_megatron_lm

Format = Literal["auto", "bridge", "megatron-lm"]


def read_foreign_golden(path: Path, form: Format = "auto") -> ForeignGolden:
    """The golden values in the file. BadRequestError for what cannot be read, naming the file and the key."""
    document = read_plain(path, MAY_BE_NAN)
    if document.keys() >= {"fingerprint", "promoted_by", "metrics"}:
        raise BadRequestError(
            f"{path}: a golden of mbr-perf, not of Megatron-Bridge or Megatron-LM",
            remedy="mbr-perf golden export NAME --format bridge writes one that a log can be held against",
        )
    if form == "megatron-lm" or (form == "auto" and looks_like_megatron_lm(document)):
        if form != "auto" and not looks_like_megatron_lm(document) and looks_like_bridge(document):
            raise BadRequestError(
                f"{path}: looks like Megatron-Bridge's, not like Megatron-LM's", remedy="--format auto"
            )
        return read_megatron_lm(path, document)
    if form == "bridge" and looks_like_megatron_lm(document):
        raise BadRequestError(f"{path}: looks like Megatron-LM's, not like Megatron-Bridge's", remedy="--format auto")
    return read_bridge(path, document)
