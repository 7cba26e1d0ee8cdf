"""Which rows of the rule table the installed megatron-core can be asked about."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Rows whose text TransformerConfig raises with nothing but a CPU, in the releases that they hold in.
RAISED_BY_CONFIG = {
    "R06", "R07", "R08", "R09", "R11", "R12", "R16", "R17", "R18", "R20", "R21", "R23", "F01", "F03", "F04", "F11", "G05", "G06",
    "G07", "G08", "G09", "G10", "G11", "G12", "G14", "G15", "G16", "G18", "P01", "P03", "P04", "P05", "P10", "P11",
    "P12", "P13", "P14", "P15", "P16", "P17", "P18b", "P19", "P20", "P21a", "P21b", "P21c", "P22", "P23a", "P28a",
    "L05", "L06", "L07", "L16", "P25a", "P28b", "P28c", "P28d", "P28e", "P28f", "P28g", "P34a", "P34b",
}  # fmt: skip


def installed_megatron_core() -> str:
    try:
        return version("megatron-core")
    except PackageNotFoundError:
        return "none"


def is_of_installed_release(case: Any) -> bool:
    """A row that names no release is of all."""
    release = installed_megatron_core().split(".")[:2]
    return "mcore" not in case.keeps and ("mcore" not in case.breaks or case.breaks["mcore"].split(".")[:2] == release)
