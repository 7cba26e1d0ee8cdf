"""Who a stack belongs to, worked out once per frame and once per stack however often they recur."""

from typing import Any, NamedTuple

from harness.analysis.snapshots.fields import text
from harness.analysis.snapshots.modules import Frame, module_of, site_of

NO_STACK = "no stack recorded"
_DEEPEST = 400  # frames; torch's own limit on Python frames is lower


class Owner(NamedTuple):
    """The module and the line that memory is put down to."""

    module: str
    site: str


class Stacks:
    """Owners of stacks. Frames and stacks are told apart by identity: the snapshot must stay in memory meanwhile."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._owners: dict[tuple[int, ...], Owner] = {}
        self._by_list: dict[int, Owner] = {}

    def owner(self, frames: object) -> Owner:
        """The owner of ``frames``, a list of dicts, innermost first; what is no such list counts as no stack."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return Owner(NO_STACK, "")
        known = self._by_list.get(id(frames))
        if known is None:
            key = tuple(map(id, frames[:_DEEPEST]))
            known = self._owners.get(key)
            if known is None:
                known = self._owners[key] = self._made([self._frame(frame) for frame in frames[:_DEEPEST]])
            self._by_list[id(frames)] = known
        return known

    def _frame(self, value: Any) -> Frame:
        known = self._frames.get(id(value))
        if known is None:
            entry = value if isinstance(value, dict) else {}
            line = entry.get("line")
            number = line if type(line) is int and 0 <= line < 10_000_000 else 0
            known = Frame(text(entry.get("filename")), number, text(entry.get("name")))
            self._frames[id(value)] = known
        return known

    @staticmethod
    def _made(frames: list[Frame]) -> Owner:
        site = site_of(frames)
        return Owner(module_of(frames), site) if site else Owner(NO_STACK, "")
