"""Reads from built layers what they recompute."""

from collections import Counter
from operator import attrgetter

from megatron.core.transformer.transformer_block import TransformerBlock

from harness.experiment.modules import MODULES, RecomputeModule
from harness.records.rank import LayerRecompute


def read_back(chunks) -> LayerRecompute:
    """Count the decoder layers of this rank on which each module acts. Full recompute is a setting of the block."""
    counts: Counter[str] = Counter()
    num_layers = full_layers = 0
    for chunk in chunks:
        for block in (m for m in chunk.modules() if isinstance(m, TransformerBlock)):
            num_layers += len(block.layers)
            full_layers += _full_layers(len(block.layers), block.config)
            counts.update(name for layer in block.layers for name, row in MODULES.items() if _acts(row, layer))
    return LayerRecompute(num_layers=num_layers, modules=dict(sorted(counts.items())), full_layers=full_layers)


def _acts(row: RecomputeModule, layer) -> bool:
    has_part = not row.part or _at(layer, row.part) is not None
    return has_part and any(_at(layer, switch) for switch in row.switches)


def _at(layer, path: str) -> object:
    try:
        return attrgetter(path)(layer)
    except AttributeError:
        return None


def _full_layers(num_layers: int, config) -> int:
    if config.recompute_granularity != "full":
        return 0
    return num_layers if config.recompute_method == "uniform" else min(config.recompute_num_layers, num_layers)
