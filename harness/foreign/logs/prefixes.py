"""Parses the prefixes that launchers and loggers put before a line: rank, host and time."""

import re
from dataclasses import dataclass

# srun --label puts the task number on every line. It counts as a label only if (nearly) every line begins so.
_LABEL = re.compile(r"\s*(\d{1,6}):(?: |$)")
_MIN_LABELLED_SHARE = 0.9
# torch's own prefix counts over the whole job; torchrun's [default3]: over the node, with --role trainer: [trainer3]:,
# with --role node07: [node07:3]:. Open MPI's [1,3]<stdout>: counts over the job.
_RANK = re.compile(
    r"\s*\[(?:rank(?P<job>\d{1,6})"
    r"|(?:[A-Za-z_]{2,40}|(?!(?i:step|epoch|iter|batch|chunk|layer|pid|line)\w{0,20}:)[A-Za-z][\w-]{0,60}:)(?P<local>\d{1,6})"
    r"(?:\|\d{1,6})?)\]:[ ]?|\[\d+,(?P<mpi>\d{1,6})\]<std(?:out|err)>:[ ]?"
)
_NCCL = re.compile(r"(?P<nccl>[A-Za-z0-9][A-Za-z0-9.-]{0,253}):\d+:\d+ \[\d+\] (?=(?:\S{1,100}:\d{1,6} )?NCCL )")
_NEMO = re.compile(
    r"\[NeMo [A-Z] (?P<time>[\d-]{8,10} [\d:]{8})(?:[^\]]{0,200}?\brank:? ?(?P<job>\d{1,6})\b)?[^\]]{0,200}\]\s?"
)
_TIME = re.compile(
    r"\s*(?P<open>\[)?(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d| [+-]\d\d:\d\d)?)(?(open)\])(?=\W|$)(?:: )?"
)
# Ray's actors, SkyPilot's nodes (their "rank=1" counts nodes), NeMo-Run's and TorchX's roles, Kubernetes' pods,
# Docker's services and syslog put a name before every line; mail and forums quote lines.
_NAMED = re.compile(
    r"\((?:(?P<sky>[\w-]{1,100}), rank=\d{1,6}|[\w-]{1,100}(?:\([^()]{0,200}\))?),? pid=\d{1,10}"
    r"(?:, ip=(?P<ip>[\w.:-]{1,100}))?\) ?"
    r"|\[pod/(?P<pod>[\w.-]{1,253})/[\w.-]{1,100}\] ?"
    r"|(?P<service>[A-Za-z][\w.-]{0,100}-\d{1,4}) {1,20}\| "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<node>[A-Za-z][\w.-]{0,253}) [\w./-]{1,100}(?:\[\d{1,10}\])?: ?"
    r"|(?P<role>[A-Za-z][\w.-]{0,100}/\d{1,5}) (?=\[|Traceback |\s+File \"|[\w.]{1,100}Error: |\s*iteration )"
    r"|std(?:out|err) [FP] |>(?: >)* "
)
# pdsh, clush and the MPI operator put "node07: " before every line. It counts only if (nearly) every line begins so.
_HOST = re.compile(r"([A-Za-z][\w.-]{0,100}\d[\w.-]{0,20}): ")
_LEVEL = r"(?:DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_LOGGER = re.compile(
    rf"\s*(?:{_LEVEL}:[\w.]{{1,200}}:|[-|] (?:[\w.]{{1,200}} [-|] )?{_LEVEL} {{0,8}}[-|] (?:[\w.:<>]{{1,200}} - )?)"
)
_BRACKETED, _DATED, _OTHERS = (_RANK, _NEMO, _TIME, _NAMED), (_TIME, _NCCL), (_LOGGER, _NCCL, _NAMED)
_MOST_PREFIXES = 8


@dataclass(slots=True)  # not frozen: that doubles the time to make one, and there is one per line
class Prefixed:
    """A line's text and the content of its prefixes."""

    text: str
    rank: int | None
    host: str | None = None
    time: str | None = None


class PrefixReader:
    """Reads the prefixes of one stream. The innermost wins: ``1: [default3]:[rank11]: text`` is from rank 11.

    A task of ``srun --label`` is a rank, unless a line shows that the task starts several ranks: then it is a node.
    torchrun's local rank then gives the global rank on the first node only.
    """

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
        self._learn(found, label)
        host = found.host or (outer.host if outer else None) or (named[1] if named else self._node(label))
        rank = self._rank(found, label)
        if rank is None and found.job_rank is None and found.node_rank is None and outer is not None:
            rank = outer.rank
        return Prefixed(found.text, rank, host, found.time)

    def _learn(self, found: "_Peeled", label: int | None) -> None:
        if label is None:
            return
        inner = found.job_rank if found.job_rank is not None else found.node_rank
        self._tasks_are_nodes |= (inner is not None and inner != label) or "torch.distributed.run" in found.text

    def _node(self, label: int | None) -> str | None:
        return f"task {label}" if self._tasks_are_nodes and label is not None else None

    def _rank(self, found: "_Peeled", label: int | None) -> int | None:
        if found.job_rank is not None:
            return found.job_rank
        if found.node_rank is not None:
            return found.node_rank if not label or not self._tasks_are_nodes else None
        return label if label is not None and not self._tasks_are_nodes else self._file_rank


@dataclass(slots=True)
class _Peeled:
    text: str
    job_rank: int | None = None
    node_rank: int | None = None
    host: str | None = None
    time: str | None = None

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


def _peeled(text: str) -> _Peeled:
    """Remove the prefixes. The first character rules out most of them."""
    found = _Peeled(text)
    for _ in range(_MOST_PREFIXES):
        text = found.text.lstrip()
        patterns = _BRACKETED if text[:1] == "[" else _DATED if text[:1].isdecimal() else _OTHERS
        match = next(filter(None, (pattern.match(text) for pattern in patterns)), None)
        if match is None:
            break
        found.text = text[match.end() :]
        for name, value in match.groupdict().items():
            if value:
                found.take(name, value)
    found.text = found.text.strip()
    return found


def _is_hosted(lines: list[str]) -> bool:
    """Return whether (nearly) every line begins with the name of a node."""
    written = [line for line in lines if line.strip()]
    named = sum(_HOST.match(line) is not None for line in written)
    return len(written) > 1 and named >= _MIN_LABELLED_SHARE * len(written)


def _is_labelled(lines: list[str]) -> bool:
    """Return whether the first complete lines have a task's number. A list numbered from 1 is ordinary text."""
    whole = [line for line in lines if line.strip()]
    labels = [int(match[1]) for line in whole if (match := _LABEL.match(line))]
    is_list = len(labels) > 1 and labels == list(range(1, len(labels) + 1))
    return bool(whole) and len(labels) >= _MIN_LABELLED_SHARE * len(whole) and not is_list
