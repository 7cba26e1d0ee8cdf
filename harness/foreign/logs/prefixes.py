"""Parses the prefixes that launchers and loggers put before a line: rank, host and time."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.records.strict_yaml import table_in

_LABEL, _HOST, _RANK, _NCCL, _NEMO, _TIME, _NAMED, _LOGGER = (
    re.compile("|".join(patterns)) for patterns in table_in(Path(__file__).with_suffix(".yaml")).values()
)
_BRACKETED, _DATED, _OTHERS = (_RANK, _NEMO, _TIME, _NAMED), (_TIME, _NCCL), (_LOGGER, _NCCL, _NAMED)
_MIN_LABELLED_SHARE = 0.9
_MOST_PREFIXES = 8


@dataclass(slots=True)  # not frozen: that doubles the time to make one, and there is one per line
class Prefixed:
    """A line's text and the content of its prefixes; ``rank`` follows from the ranks of the job and of the node."""

    text: str
    rank: int | None = None
    host: str | None = None
    time: str | None = None
    job_rank: int | None = None
    node_rank: int | None = None

    def take(self, name: str, value: str) -> None:
        """Take a named group of a pattern; the groups of `_NAMED` are hosts."""
        if name in ("job", "mpi"):
            self.job_rank = int(value)
        elif name == "local":
            self.node_rank = int(value)
        elif name == "time":
            self.time = value
        elif name == "nccl" or (name != "open" and not self.host):
            self.host = value


def _within(found: Prefixed, outer: Prefixed) -> Prefixed:
    found.host = found.host or outer.host
    if found.rank is None and found.job_rank is None and found.node_rank is None:
        found.rank = outer.rank
    return found


class PrefixReader:
    """Reads the prefixes of one stream; the innermost wins. A task of srun is a rank, unless it starts several."""

    def __init__(self, rank: int | None, head: list[str]) -> None:
        self._file_rank = rank
        self._is_labelled = _is_labelled(head)
        self._is_hosted = not self._is_labelled and _is_hosted(head)
        self._tasks_are_nodes = False

    def read(self, line: str, outer: Prefixed | None = None) -> Prefixed:
        """Remove and parse the prefixes. ``outer``: the prefixes of the line, if this record begins inside it."""
        text, label = line, None
        if self._is_labelled and outer is None and (match := _LABEL.match(line)):
            text, label = line[match.end() :], int(match[1])
        named = _HOST.match(line) if self._is_hosted and outer is None else None
        found = _peeled(text[named.end() :] if named else text)
        node = None if label is None else self._node_of_task(label, found)
        found.rank, host = self._rank(found, label), named[1] if named else node
        if outer is not None:
            return _within(found, outer)
        found.host = found.host or host
        return found

    def _node_of_task(self, label: int, found: Prefixed) -> str | None:
        inner = found.job_rank if found.job_rank is not None else found.node_rank
        self._tasks_are_nodes |= (inner is not None and inner != label) or "torch.distributed.run" in found.text
        return f"task {label}" if self._tasks_are_nodes else None

    def _rank(self, found: Prefixed, label: int | None) -> int | None:
        if found.job_rank is not None:
            return found.job_rank
        if found.node_rank is not None:
            return found.node_rank if not label or not self._tasks_are_nodes else None
        return label if label is not None and not self._tasks_are_nodes else self._file_rank


def _peeled(text: str) -> Prefixed:
    """Remove the prefixes. The first character rules out most of them."""
    found = Prefixed(text)
    for _ in range(_MOST_PREFIXES):
        text = found.text.lstrip()
        patterns = _BRACKETED if text[:1] == "[" else _DATED if text[:1].isdecimal() else _OTHERS
        for pattern in patterns:
            if match := pattern.match(text):
                break
        else:
            break
        found.text = text[match.end() :]
        for name, value in match.groupdict().items():
            if value:
                found.take(name, value)
    found.text = found.text.strip()
    return found


def _is_hosted(lines: list[str]) -> bool:
    written = [line for line in lines if line.strip()]
    named = sum(_HOST.match(line) is not None for line in written)
    return len(written) > 1 and named >= _MIN_LABELLED_SHARE * len(written)


def _is_labelled(lines: list[str]) -> bool:
    """Return whether the first complete lines have a task's number. A list numbered from 1 is ordinary text."""
    whole = [line for line in lines if line.strip()]
    labels = [int(match[1]) for line in whole if (match := _LABEL.match(line))]
    is_list = len(labels) > 1 and labels == list(range(1, len(labels) + 1))
    return bool(whole) and len(labels) >= _MIN_LABELLED_SHARE * len(whole) and not is_list
