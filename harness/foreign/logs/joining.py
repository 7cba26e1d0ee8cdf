"""Joins lines that `srun --label`, a terminal or a mail program broke, also inside a word or a number.

A line waits only while it ends inside a message that this file knows: an iteration, a failure, or the beginning of one. The
pieces that follow must continue it; if its end never comes, they stay as they were. Other lines pass at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.foreign.logs.seams import START, glue, squeezed

Numbered = tuple[int, str]

_MOST_PIECES = 40  # the longest message at 20 columns
_MOST_CHARACTERS = 8000
_MOST_HELD = 4096

# The system's texts behind a failed call, as glibc writes them.
_STRERROR = (
    r"(?:Connection timed out|Cannot allocate memory|Invalid argument|No such device|No such file or directory|No route to host"
    r"|Network is unreachable|Connection refused|Operation not permitted|Permission denied|Remote I/O error|Input/output error)"
)
# Messages of a known beginning and end, that may break anywhere in between: a part of the beginning, to be fast, and both.
_SPANS = tuple(
    (needle, re.compile(begin), re.compile(end))
    for needle, begin, end in (
        ("emory", r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError",
         r"by PyTorch but unallocated\.|reserved in total by PyTorch\)|more than 1EB memory|Requested size: [\d.]+ (?:bytes|[KMGT]iB)"),
        ("preemptively", r"Allocation was preemptively", r"Requested size: [\d.]+ (?:bytes|[KMGT]iB)"),
        ("--memory_limit", r"out of memory under", r"\d bytes"),
        ("DefaultCPU", r"DefaultCPUAllocator", r"\d bytes"),
        ("DataLoader", r"DataLoader worker", r"signal: (?:Killed|Aborted|Terminated|Segmentation fault)|shared memory"),
        ("Watchdog", r"Watchdog caught", r"before timing out"),
        ("ProcessGroupNCCL", r"\[[EWIF][\d:. ]{0,40}ProcessGroupNCCL\.cpp", r":\d+\] ?(?:\[(?:PG |Rank )[^\]]{0,200}\]\s*\S|[^\s\[])"),
        ("watchdog at", r"detected by watchdog at work", r"completed (?:NCCL )?work: -?\d"),
        ("WorkNCCL", r"WorkNCCL\(", r"\)"),
        ("enqueued", r"[Ll]ast enqueued", r"completed (?:NCCL )?work: -?\d"),
        ("Duplicate", r"Duplicate GPU", r"on CUDA device [0-9a-f]"),
        ("ibv_", r"Call to ibv_", rf"{_STRERROR}$|remote GID \S*[^\s.:](?:\s|$)"),
        ("NCCL error", r"NCCL error in", r"NCCL version \d|for details\)"),
        ("srun: error", r"srun: error:(?:\s?[\w.-]{0,100}$| [^\s:]{1,100}:(?: t|\s?$))", r"Out Of Memory|Exited with exit code \d|Killed|Terminated|Bus error|Aborted|Segmentation fault"),
        ("Cuda failure", r"NCCL WARN Cuda failure", r"'[a-z ]{3,60}'"),
        ("Detected", r"error: Detected\b", r"oom[-_ ]?kill event"),
        ("Got completion", r"Got completion from peer", r" with st"),
        ("NVRM", r"NVRM: Xid", r"\): \d{1,3},"),
        ("failed (exitcode", r"failed \(exitcode:", r"local_rank: \d"),
        ("error: ***", r"error: \*\*\* (?:JOB|STEP)", r"\*\*\*"),
        ("Rank", r"Error: ?Rank\b", r"node: \S"),
        ("Unexpected", r"Unexpected result\b", r"\(message='[^']*'\)"),
        ('File "', r"^\s*File \"", r"\", line \d+, in \S"),
        ("rank ", r"^\s*rank\s{0,8}:", r"\)"),
        ("exitcode", r"^\s*exitcode\s{0,8}:", r"\)"),
        ("Step Time", r"^\s*Step Time", r"TFLOP/s/GPU"),
    )
)  # fmt: skip
_FIELDS = re.compile(
    r"\biteration\s{1,20}\d{1,12}\s{0,20}/\s{0,20}\d{1,12}\s{0,20}\||\[Rank \d{1,7}\] \(after \d{1,9} iterations?\) memory \("
)
_LAST_FIELD = re.compile(r"number of nan iterations:\s{0,8}\d{1,9}\s{0,4}\|\s*$|mem-alloc-retires: \d{1,9}\s*$")
# What may follow a closed field, an unfinished name, and an unfinished value.
_NEXT_FIELD = re.compile(r"\s*(?:[A-Za-z][\w ()/-]{0,60}(?::[^|]{0,40})?(?:\||$)|\|)")
_REST_OF_NAME = re.compile(r"[\w ()/-]{0,60}(?::|\||$)")
_REST_OF_VALUE = re.compile(r"\s*[\d.eE+naifNAIF-]{0,40}\s*(?:\||$)")
_NUMBER_AT_END = re.compile(r":\s*[\d.eE+-]{1,20}\s*$")
_MEGABYTES_AT_END = re.compile(r"\d\.\d{1,16}\s*$")
# A line that ends inside one of these.
_PHRASES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "RuntimeError: CUDA out of memory. Tried to allocate", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
    "Traceback (most recent call last):", "Step Time : ", "] iteration ", "Duplicate GPU detected : rank", "NCCL error in: ",
    "failure detected by watchdog at work", "Call to ibv_", "slurmstepd: error: *** JOB ", "slurmstepd: error: *** STEP ", "slurmstepd: error: Detected ",
    "srun: error: ", "exitcode  : ", "rank      : ", "CANCELLED AT ", "DUE TO TIME LIMIT", "DUE TO NODE FAILURE", "Unexpected result ", "found NaN in local", "found Inf in local", "Bad grad_norm detected", "DataLoader worker (pid ",
    "MemoryLimitError: out of memory under --memory_limit. Tried to allocate ",
    "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: ",
    "Segmentation fault", "Fatal Python error: Aborted", "Fatal Python error: Segmentation fault", "Fatal Python error: Bus error", "std::bad_alloc", "DefaultCPUAllocator: can't allocate memory: you tried to allocate",
    "last enqueued NCCL work: ", "oom-kill event", "oom_kill event", "Out Of Memory", "device-side assert", "illegal memory access",
    "No space left on device", "No module named 'transformer_engine'", "No module named 'apex'", "No module named 'megatron'", "Connection closed by peer", "Connection closed by remote peer",
    "Connection reset by peer", "NCCL communicator was aborted", "uncorrectable ECC error", "NVRM: Xid (", "fallen off the bus",
    "Exited with exit code ", "ncclUnhandledCudaError", "ncclSystemError: System call", "ncclInvalidUsage: This usually",
    "unhandled system error", "invalid usage (run with", "Cannot allocate memory",
    "Failed to CUDA calloc", "NCCL WARN Cuda failure ", "CUBLAS_STATUS_ALLOC_FAILED", "[after training is done]", "[exiting program at iteration ",
    "torch.AcceleratorError: CUDA error: ", "CUDA error: out of memory", "CUDA error: an illegal memory access", "CUDA error: misaligned address",
    "CUDA error: device-side assert", "CUDA error: unspecified launch failure", "CUDA error: uncorrectable ECC error",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "torch.distributed.DistBackendError: NCCL error in: ", "AssertionError: Rank ", "File \"",
    "host      : ", "KeyError: ", "ValueError: ", "IndexError: ", "TypeError: ", "AttributeError: ", "ModuleNotFoundError: No module named '", "FileNotFoundError: ",
    "RuntimeError: CUDA error: ", "RuntimeError: Unexpected result ",
    "failed (exitcode: ", "NCCL Error ", "Got completion from peer ",
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
)  # fmt: skip
_LEAST = 3  # letters of a beginning, or fewer where they begin a word
_BEGINNINGS: dict[str, tuple[str, ...]] = {}
for _phrase in _PHRASES:
    for _size in range(1, len(_phrase)):
        _BEGINNINGS[_phrase[:_size]] = (*_BEGINNINGS.get(_phrase[:_size], ()), _phrase)
_SIZES: dict[str, tuple[int, ...]] = {}  # of the beginnings with these last letters
for _beginning in sorted((each for each in _BEGINNINGS if len(each) >= _LEAST), key=len, reverse=True):
    _SIZES[_beginning[-_LEAST:]] = (*_SIZES.get(_beginning[-_LEAST:], ()), len(_beginning))
_BEGUN_WORD = re.compile(r"(?:^|[^\w'])(\w{1,2})$")
# The beginning of a line, broken: a time, a rank's prefix, the name of an error, the number of an iteration.
_CUT_TIME = re.compile(r"\s*\[(?:\d[\d :.,T-]{0,30}(?:\]\s{0,4})?)?$")
_CUT_GLOG = re.compile(
    r"\s*\[[EWIF](?:\d{1,4}(?: [\d:.]{0,18})?)?(?: ?(?:\d{1,8} )?(?:[A-Za-z]\w{0,60}(?:\.\w{0,3})?)?)?$"
)
_GLOG = re.compile(r"\s*\[[EWIF]\d{0,4} ?[\d:. ]{0,30}(?:$|[A-Za-z]\w{0,60}(?:\.(?:c|cp|cpp|p|py)?(?::|$)|$))")
_CUT_RANK = re.compile(r"\s*\[(?:r|ra|ran|rank|rank\d{1,6}\]?)$")
_CUT_MEMORY = re.compile(r"\s*\[(?:R(?:a|an|ank[\w\s\](]{0,60}\)?[\w\s]{0,20}\(?\w{0,2})?)?$")
_MEMORY = "[Rank0](after0iterations)memory("
_CUT_NAME = re.compile(r"(?:[A-Z]\w{0,100}|[a-z_]\w{0,100}\.[\w.]{0,150})$")
_CUT_NUMBER = re.compile(r"\biteration\s{0,20}(?:\d{1,12}\s{0,20}/?\s{0,20}(?:\d{1,12}\s{0,20})?)?$")
# A message that may have ended here, and the only pieces that continue it: an address, a host, the name of a function.
_MAY_END = tuple(
    (re.compile(text), re.compile(piece))
    for text, piece in (
        (r"Call to ibv_\w+ failed with .*timed out$", r",(?: ?o|$)| ?on dev "),
        (r"Call to ibv_\w+ failed with .*remote GID [0-9A-Fa-f:.]{0,45}$", r"[0-9A-Fa-f:.]{1,45}(?:\s|$)"),
        (r"both on CUDA device [0-9a-f]{0,12}$", r"[0-9a-f]{1,12}$"),
        (r"^\s*host\s{0,8}:\s?[\w.-]{0,250}$", r"[\w.-]{1,250}$"),
        (r"^\s*File \".*\", line \d+, in [\w<>]+$", r"[a-z0-9_][\w>]{0,100}$"),
    )
)
_NAME = re.compile(r"[A-Za-z_][\w.]{0,150}(?:Error|Exception|Interrupt|Exit)(?::|$)")
_TIME = re.compile(r"\s*\[\d[\d :.,T-]{0,30}(?:\]\s{0,4}(?:i\w{0,8}\s?.*)?)?$")
_PREFIX = re.compile(r"\s*\[(?:rank|default)\d{1,6}\]:[ ]?")
_RANK = re.compile(r"\s*\[rank(?:\d{1,6}(?:\](?::.*)?)?)?$")


def _is_in_span(text: str) -> bool:
    """Return whether the text ends inside a message with a known end."""
    for needle, begin, end in _SPANS:
        if needle in text:
            begun = list(begin.finditer(text))
            if begun and end.search(text, begun[-1].end()) is None:
                return True
    return False


def _cut_phrases(text: str) -> Iterator[str]:
    """Yield the rests of the phrases in whose middle the text ends."""
    begun = _BEGUN_WORD.search(text[-_LEAST:]) if len(text) >= _LEAST else None
    few = (len(begun[1]),) if begun else () if len(text) >= _LEAST else (len(text),)
    for size in (*few, *_SIZES.get(text[-_LEAST:], ())):
        if size <= len(text):
            yield from (phrase[size:] for phrase in _BEGINNINGS.get(text[-size:], ()))


def _rests(text: str, piece: str) -> list[str]:
    """Return the rests of cut phrases that the piece continues."""
    new = squeezed(piece)
    cut = ((rest, squeezed(rest)) for rest in _cut_phrases(text.strip()))
    return [rest for rest, whole in cut if whole and (new.startswith(whole) or whole.startswith(new))]


def _is_inside_a_word(text: str, piece: str) -> bool:
    """Return whether the piece continues a word of a known phrase, an address or a name."""
    rests = _rests(text, piece)
    return (bool(rests) and not any(rest.startswith(" ") for rest in rests)) or _may_continue(text, piece)


def _may_continue(text: str, piece: str | None) -> bool:
    """Return whether the text may go on, with ``piece`` if there is one."""
    if not any(needle in text for needle in ("ibv_", "both on", "host ", 'File "')):
        return False
    return any(end.search(text) and (piece is None or rest.match(piece)) for end, rest in _MAY_END)


def is_open(text: str) -> bool:
    """Return whether the next piece may continue the text, which begins a line."""
    bare = text.strip()
    if ("|" in text or "memory (" in text) and _FIELDS.search(text):
        return _LAST_FIELD.search(text[-60:]) is None
    first = bare[:1]
    is_cut = (
        _CUT_NAME.match(bare)
        if first != "["
        else _CUT_TIME.match(bare) or _CUT_RANK.match(bare) or _CUT_MEMORY.match(bare) or _CUT_GLOG.match(bare)
    )
    return (
        is_cut is not None
        or _is_in_span(text)
        or (
            (len(bare) < _LEAST or bare[-_LEAST:] in _SIZES or not bare[-_LEAST:].isalnum()) and any(_cut_phrases(bare))
        )
        or ("iteration" in text[-60:] and _CUT_NUMBER.search(text[-60:]) is not None)
        or _may_continue(text, None)
    )


def _continues(text: str, piece: str) -> bool:
    """Return whether ``piece`` continues an open text."""
    whole, new = text + piece, squeezed(piece)
    if _rests(text, piece):
        return True
    if START.match(piece):
        is_cut_before_a_time = text.strip() == "[" or text.rstrip().endswith("CANCELLED AT")
        return is_cut_before_a_time or (new.startswith("iteration") and _CUT_TIME.match(text) is not None)
    if ("|" in text or "memory (" in text) and (fields := _FIELDS.search(text)):
        return _continues_fields(text, piece, is_memory="memory" in fields[0])
    if _may_continue(text, piece):
        return True
    if _is_in_span(text):
        return True
    return (
        (_CUT_NUMBER.search(text[-60:]) is not None and re.match(r"[\s\d/|]", piece) is not None)
        or (_CUT_TIME.match(text) is not None and _TIME.match(whole) is not None)
        or (_CUT_RANK.match(text) is not None and _RANK.match(whole) is not None)
        or (_CUT_GLOG.match(text) is not None and _GLOG.match(whole) is not None)
        or (_CUT_MEMORY.match(text) is not None and _begins_memory(whole))
        or _makes_a_name(text, piece)
    )


def _begins_memory(text: str) -> bool:
    """Return whether the text is a part of, or begins with, the words before a rank's memory."""
    words = re.sub(r"\d+", "0", squeezed(text))
    return _MEMORY.startswith(words) or words.startswith(_MEMORY)


def _continues_fields(text: str, piece: str, *, is_memory: bool) -> bool:
    last = text.rpartition("|")[2]
    if not piece.strip():
        return True
    if not last.strip():
        return _NEXT_FIELD.match(piece) is not None
    if ":" not in last:
        return _REST_OF_NAME.match(piece) is not None
    if is_memory and "max reserved" in last and _MEGABYTES_AT_END.search(last):
        return "|" in piece and _REST_OF_VALUE.match(piece) is not None
    return _REST_OF_VALUE.match(piece) is not None


def _makes_a_name(text: str, piece: str) -> bool:
    match = _NAME.match(text + piece) if _CUT_NAME.match(text) else None
    return match is not None and match.end() > len(text)


@dataclass(slots=True)
class _Held:
    """A line that waits for its end: ``text`` of all pieces. The first ``settled`` belong together, the rest if the end comes."""

    prefix: str
    text: str
    pieces: list[Numbered]
    settled: int = 1
    settled_text: str = ""

    def lines(self) -> Iterator[Numbered]:
        """Yield the joined line, and the pieces that turned out to be lines of their own."""
        yield self.pieces[0][0], self.prefix + self.settled_text
        yield from self.pieces[self.settled :]

    def join(self, number: int, piece: str, *, exact: bool) -> bool:
        """Add a piece; return whether there was room for it."""
        if len(self.pieces) >= _MOST_PIECES or len(self.text) + len(piece) > _MOST_CHARACTERS:
            return False
        self.text = glue(self.text, piece, exact=exact)
        self.pieces.append((number, piece))
        if _is_settled(self.text):
            self.settled, self.settled_text = len(self.pieces), self.text
        return True


def _is_settled(text: str) -> bool:
    """Return whether all pieces so far certainly belong together."""
    if ("|" in text or "memory (" in text) and (fields := _FIELDS.search(text)):
        return text.rstrip().endswith("|") or ("memory" in fields[0] and _NUMBER_AT_END.search(text) is not None)
    return not _is_in_span(text)


@dataclass(slots=True)
class Joiner:
    """Feed it the lines of one stream without srun's label, and take whole lines.

    A piece without a prefix continues the line directly before it, with a prefix the last line with the same; so a line
    without one ends at the next line that has one. ``exact``: the stream keeps blanks at the ends of its lines.
    """

    exact: bool = False
    held: dict[tuple[str, str], _Held] = field(default_factory=dict)
    latest: dict[str, tuple[str, str]] = field(default_factory=dict)

    def passes(self, body: str) -> bool:
        """Return whether a line is whole, and none waits: the usual case, made fast."""
        return not self.held and "]:" not in body[:20] and not is_open(body)

    def add(self, number: int, label: str, body: str) -> Iterator[tuple[str, Numbered]]:
        """Take a line of ``label``. Yield labels with whole lines."""
        self.exact = self.exact or (body.endswith(" ") and not body.isspace())
        match = _PREFIX.match(body) if "]:" in body[:20] else None
        prefix, bare = (match[0], body[match.end() :]) if match else ("", body)
        key = (label, prefix.strip())
        at = key if prefix else self.latest.get(label, key)
        held = self.held.get(at) if self.held else None
        if held is not None:
            exact = self.exact or _is_inside_a_word(held.text, bare)
            is_joined = _continues(held.text, bare) and held.join(number, bare, exact=exact)
            if is_joined and is_open(held.text):
                return
            del self.held[at]
            yield from ((label, line) for line in held.lines())
            if is_joined:
                return
        if (before := self.latest.get(label, key)) != key and not before[1] and before in self.held:
            yield from ((label, line) for line in self.held.pop(before).lines())
        self.latest[label] = key
        if not is_open(bare):
            yield label, (number, body)
            return
        if len(self.held) >= _MOST_HELD:
            oldest = next(iter(self.held))
            yield from ((oldest[0], line) for line in self.held.pop(oldest).lines())
        self.held[key] = _Held(prefix, bare, [(number, bare)], settled_text=bare)

    def rest(self) -> Iterator[tuple[str, Numbered]]:
        """Yield what still waits at the end of the stream."""
        waiting = [(label, line) for (label, _), held in self.held.items() for line in held.lines()]
        self.held.clear()
        yield from sorted(waiting, key=lambda each: each[1][0])
