"""Cuts a model as the text of ``pipeline_model_parallel_layout`` says.

Its grammar is that of megatron-core's `pipeline_parallel_layer_layout.py`: ``E`` embedding, ``t`` decoder layer, ``m``
MTP layer, ``L`` loss; ``|`` ends a stage; ``x*3`` and ``(xy|)*3`` repeat; commas mean nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from harness.errors import BadRequestError
from harness.experiment.model import MOST, ModelSpec, ParallelismSpec

LAYER_CODES = "ELtm"
_ITEM, _GROUP = re.compile(r"([ELtm|])\*(\d+)"), re.compile(r"\(([^()]*)\)\*(\d+)")
_ITEMS = r"(?:[ELtm|](?:\*\d++)?)++"
_GRAMMAR, _FOREIGN = re.compile(rf"(?:{_ITEMS}|\({_ITEMS}\)\*\d++)*+"), re.compile(r"[^ELtm|()*\d]")


@dataclass(frozen=True)
class Chunk:
    """One model chunk. ``layers`` are the global, 0-based numbers of its decoder layers."""

    layers: tuple[int, ...]
    has_embedding: bool = False
    has_loss: bool = False
    mtp_layers: int = 0


Stages = tuple[tuple[Chunk, ...], ...]


class LayoutError(BadRequestError):
    """The model cannot be cut this way: ``rule`` of the rule table, and megatron-core's text where it has one."""

    def __init__(self, rule: str, message: str, mcore_text: str = "") -> None:
        super().__init__(message, remedy=f"rule {rule}")
        self.rule, self.mcore_text = rule, mcore_text


class LayoutSyntaxError(ValueError):
    """The grammar does not allow this character in this place."""

    def __init__(self, character: str, reason: str) -> None:
        super().__init__(reason)
        self.character = character


def parse_layout(text: str) -> tuple[str, ...]:
    """Return the stages in the order of megatron-core: virtual stage outermost, pipeline rank innermost.

    >>> parse_layout("Et*3|(tt|)*2L")
    ('Ettt', 'tt', 'tt', 'L')
    """
    layout = text.replace(",", "")
    if rest := _GRAMMAR.sub("", layout, count=1):  # it matches at the start of any text
        character = (_FOREIGN.search(rest) or rest)[0]
        raise LayoutSyntaxError(
            character,
            f"{character!r} cannot stand there: write E, t, m, L, |, ',', 'x*N' and '(...)*N', which do not nest",
        )
    return tuple(_GROUP.sub(_repeated, _ITEM.sub(_repeated, layout)).split("|"))


def _repeated(found: re.Match[str]) -> str:
    """Return a part as often as ``*N`` says; LayoutSyntaxError if a model cannot have so many layers."""
    part, digits, most = found[1], found[2], MOST["layers"]
    if len(digits) > len(str(most)) or len(part) * int(digits) > 2 * most:
        raise LayoutSyntaxError("*", f"a layout has at most {most} layers")
    return part * int(digits)


def chunks_of_layout(text: str, num_stages: int) -> int:
    """Return the model chunks per pipeline rank of a layout string; 1 also for a string that is no layout."""
    try:
        return max(1, len(parse_layout(text)) // num_stages)
    except LayoutSyntaxError:
        return 1


def write_layout(stages: Iterable[str]) -> str:
    """Return the text of stages as :func:`parse_layout` returns them, the last of which alone has the loss.

    >>> write_layout(("Ettt", "tt", "tt", "L"))
    'Et*3|(tt|)*2L'
    """
    texts = (re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", stage) for stage in stages)
    groups = ((text, len([*same])) for text, same in groupby(texts))
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in groups).removesuffix("|")


def legal_stages(model: ModelSpec, par: ParallelismSpec, text: str) -> tuple[str, ...]:
    """Return the stages of :func:`parse_layout`; LayoutError for the first problem, as in megatron-core."""
    try:
        flat = parse_layout(text)
    except LayoutSyntaxError as error:
        raise LayoutError(
            "P13", f"pipeline_model_parallel_layout {text!r}: {error}", f"Invalid layer character: {error.character}"
        ) from error
    pp = par.pipeline_model_parallel_size
    if len(flat) % pp:
        raise LayoutError(
            "P12",
            f"pipeline_model_parallel_layout {text!r} has {len(flat)} stages, not a multiple of PP {pp}",
            "pipeline_model_parallel_layout must be divisible by pipeline_model_parallel_size "
            f"(len(layout)={len(flat)}, pipeline_model_parallel_size={pp})",
        )
    _check_vp_of_layout(par, len(flat) // pp)
    _check_contents(flat, pp, model)
    return flat


def _check_vp_of_layout(par: ParallelismSpec, found: int) -> None:
    asked = par.virtual_pipeline_model_parallel_size
    # 1 means no interleaving, so that a layout with one chunk per rank agrees with it.
    if asked is not None and asked != found:
        raise LayoutError(
            "P14",
            f"the layout has {found} chunks per pipeline rank, but virtual_pipeline_model_parallel_size is {asked}",
            "virtual_pipeline_model_parallel_size conflicts with pipeline_model_parallel_layout, "
            f"(self.virtual_pipeline_model_parallel_size={asked},  detected_vpp_size={found})",
        )


def _check_contents(flat: tuple[str, ...], pp: int, model: ModelSpec) -> None:
    layers, num_mtp = "".join(flat), model.mtp_num_layers or 0
    mtp_layers = [stage.count("m") for stage in flat]
    num_layers = f"Number of decoder layers {layers.count('t')}must match num_layers {model.num_layers}"
    checks = {
        "The first layer must be embedding": layers.startswith("E"),
        "The last layer must be loss": layers.endswith("L"),
        "Embedding must be specified exactly once": layers.count("E") == 1,
        "Loss must be specified exactly once": layers.count("L") == 1,
        num_layers: layers.count("t") == model.num_layers,
        "Number of mtp layers in layout must match mtp_num_layers": layers.count("m") == num_mtp,
        "decoder layers must be placed before MTP layers": "t" not in layers.partition("m")[2],
        "the MTP should be always in the last virtual pipeline stage": not any(mtp_layers[:-pp]),
        "All of the MTP layers must be in the same one virtual pipeline stage": {*mtp_layers} <= {0, num_mtp},
    }
    for text, holds in checks.items():
        if not holds:
            said = text.replace(f"{layers.count('t')}must", f"{layers.count('t')} must")  # as megatron-core joins it
            raise LayoutError("P13", f"pipeline_model_parallel_layout: {said}", text)
