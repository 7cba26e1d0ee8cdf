"""A recompute plan: for every model chunk, how many of its layers use which setting."""

from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field, field_validator

from harness.experiment.frozen import Frozen
from harness.experiment.modules import MODULES

FULL = "full"
PLAN = "plan:"
"""What the text of a plan begins with."""


class LayerGroup(Frozen):
    """Layers in a row with one setting: ``none``, module names joined by commas, or ``full``."""

    layers: Annotated[int, Field(ge=1)]
    setting: str

    @field_validator("setting")
    @classmethod
    def _is_known(cls, setting: str) -> str:
        names = setting.split(",")
        unknown = [name for name in names if name not in MODULES]
        if setting not in ("none", FULL) and (unknown or len({*names}) < len(names)):
            raise ValueError(f"no such setting {setting!r}: none, full, or different ones of {', '.join(MODULES)}")
        return setting


PlannedChunk = tuple[LayerGroup, ...]


class PlannedRecompute(Frozen):
    """Recompute by layer. ``stages[pp_rank][vp_stage]``: its layers, those under ``full`` first, MTP layers last."""

    granularity: Literal["planned"] = "planned"
    stages: tuple[tuple[PlannedChunk, ...], ...]

    @field_validator("stages")
    @classmethod
    def _full_comes_first(cls, stages: tuple[tuple[PlannedChunk, ...], ...]) -> tuple[tuple[PlannedChunk, ...], ...]:
        if not stages or len({len(chunks) for chunks in stages}) > 1 or not stages[0]:
            raise ValueError("every stage needs as many chunks as the others, and at least one")
        for stage, chunks in enumerate(stages):
            for chunk, groups in enumerate(chunks):
                if FULL in [group.setting for group in groups[1:]]:
                    raise ValueError(f"stage {stage}, chunk {chunk}: layers under full come first in a chunk")
        return stages

    @property
    def text(self) -> str:
        """Return stages separated by ``;``, chunks by ``/`` and groups by ``+``: ``plan:1xfull+3xnone;4xmlp``."""
        texts = [["+".join(f"{e.layers}x{e.setting}" for e in chunk) for chunk in chunks] for chunks in self.stages]
        return PLAN + ";".join(map("/".join, texts))

    def settings(self, pp_rank: int, vp_stage: int) -> tuple[str, ...]:
        """Return the setting of every layer of a chunk."""
        return tuple(group.setting for group in self.stages[pp_rank][vp_stage] for _ in range(group.layers))

    @property
    def distinct(self) -> tuple[str, ...]:
        groups = (group for chunks in self.stages for chunk in chunks for group in chunk)
        return tuple(dict.fromkeys(group.setting for group in groups))


def grouped_layers(settings: tuple[str, ...]) -> PlannedChunk:
    """Return the groups of a chunk whose layers have these settings."""
    return tuple(LayerGroup(layers=len([*alike]), setting=setting) for setting, alike in groupby(settings))


def parse_plan(text: str) -> PlannedRecompute:
    """Read :attr:`PlannedRecompute.text`; ValueError for anything else."""
    stages = [stage.split("/") for stage in text.removeprefix(PLAN).split(";")]
    return PlannedRecompute(stages=tuple(tuple(map(_parse_chunk, chunks)) for chunks in stages))


def _parse_chunk(text: str) -> PlannedChunk:
    groups = [part.partition("x") for part in text.split("+")] if text else []
    for number, _, setting in groups:
        if not number.isdecimal() or not setting:
            raise ValueError(f"{text!r} is no chunk of a plan; write e.g. 1xfull+3xnone")
    return tuple(LayerGroup(layers=int(number), setting=setting) for number, _, setting in groups)
