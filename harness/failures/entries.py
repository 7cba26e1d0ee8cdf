"""Reads failures.yaml: which failure a text shows, and what it says about the cause."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast, get_args

from harness.failures.verdict import NOT_MEMORY, THRESHOLDS, Confidence, OomClass, OomVerdict, impossible_bytes, table
from harness.foreign.logs.sieve import any_of
from harness.units import first_line

FailureKind = Literal["oom", "signal", "error", "peer"]
# Strongest evidence first: a rank that runs out of memory makes the others fail, not the reverse. ``peer``: the rank
# lost the others, or was ended from outside.
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
Retry = Literal["", "never", "after_repair", "at_once"]
RETRIES: tuple[Retry, ...] = get_args(Retry)
SRUN = 3  # srun also kills the other tasks after a failure, with the same messages
_LEAST = 3  # characters of a word
_COMMON = ("rror: ", "failed")  # words that begin a search in vain in most lines about errors
_BEFORE, _AFTER = 1000, 4000  # characters around a word that are searched: no pattern takes long on a long line


@dataclass(frozen=True, slots=True)
class Sign:
    """``weight``: -1 names the cause, 0 is of the process itself, 1 to ``SRUN`` report it. ``task``: Slurm's."""

    kind: FailureKind
    weight: int = 0
    rank: int | None = None
    exit_code: int | None = None
    entry: str = ""
    task: int | None = None


@dataclass(frozen=True)
class Entry:
    """An entry of failures.yaml, which explains the fields."""

    id: str
    patterns: tuple[str, ...]
    oom_class: OomClass
    sure: Confidence
    sign: Sign | None
    cause: str
    advice: str
    example: str
    retry: Retry = ""

    @property
    def title(self) -> str:
        """``Slurm node lost``."""
        return " ".join({"gpu": "GPU", "slurm": "Slurm"}.get(word, word) for word in self.id.split("_"))

    def match(self, text: str) -> re.Match[str] | None:
        """Match the first pattern; of a very long text, search only around the pattern's word."""
        return next((match for pattern in self.patterns if (match := _search(pattern, text))), None)

    def verdict(self, request_bytes: int | None = None, more: str = "") -> OomVerdict:
        """Return what the entry says; ``more`` ends the cause."""
        cause = f"{self.cause}{more}"
        return OomVerdict(self.oom_class, self.sure, cause, request_bytes, advice=self.advice, entry=self.id)


_SPECIAL = frozenset("\\.[](){}?*+^$|")
_GROUP = re.compile(r"\((?:[^()])*\)(?:\?|\{[^}]*\})?")
_ANY = re.compile(r"\[[^]]*\](?:\?|\{[^}]*\})?|\\[A-Za-z](?:\?|\{[^}]*\})?|\.\{[^}]*\}\??|[.^$]|[^\0](?:\?|\{[^}]*\})")


@cache
def word_of(pattern: str) -> str:
    """Return the longest rare text that every match contains. ValueError: there is none, or something has no bound."""
    if not _SPECIAL.intersection(pattern):
        return pattern
    bare = re.sub(r"\\(\W)", lambda match: chr(0xE000 + ord(match[1])), pattern)
    is_bounded = not re.search(r"[*+]|,\}", bare)
    while bare != (outer := _GROUP.sub("\0", bare)):
        bare = outer
    parts = re.split("\0", _ANY.sub("\0", bare))
    word = max(parts, key=lambda part: (len(part) >= _LEAST and not part.endswith(_COMMON), len(part)))
    if not is_bounded or "|" in bare or len(word) < _LEAST:
        raise ValueError(f"{pattern!r}: needs bounds, no | outside of groups, and {_LEAST} characters in every match")
    return "".join(chr(ord(each) - 0xE000) if each >= "\ue000" else each for each in word)


def _search(pattern: str, text: str) -> re.Match[str] | None:
    at = text.find(word_of(pattern))
    return re.compile(pattern).search(text, max(0, at - _BEFORE), at + _AFTER) if at >= 0 else None


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries, in the order in which they count."""
    return tuple(map(_entry, table()["entries"]))


@cache
def signs() -> tuple[Entry, ...]:
    """Return the entries whose line alone shows a failure."""
    return tuple(each for each in entries() if each.sign)


@cache
def _words() -> re.Pattern[bytes]:
    pools = (pattern for row in table()["pools"] for pattern in row["pattern"])
    return any_of(map(word_of, (*pools, *(pattern for each in entries() for pattern in each.patterns))))


def first_match(text: str, *, of_signs: bool = False) -> tuple[Entry, re.Match[str]] | None:
    """Return the first entry that matches, with its match; ``of_signs``: of those whose line alone shows a failure."""
    if not _words().search(text.encode(errors="replace")):
        return None
    found = ((each, match) for each in (signs() if of_signs else entries()) if (match := each.match(text)))
    return next(found, None)


def _entry(row: dict[str, Any]) -> Entry:
    pattern, oom_class = row["pattern"], cast(OomClass, row.get("class", "not_oom"))
    kind, _, weight = row.get("sign", "" if oom_class in NOT_MEMORY else "oom").partition(" ")
    return Entry(
        row["id"],
        (pattern,) if isinstance(pattern, str) else tuple(pattern),
        oom_class,
        row.get("sure", "high"),
        Sign(kind, int(weight or 0)) if kind else None,
        row["cause"],
        row.get("next", ""),
        row["example"],
        row.get("retry", ""),
    )


def signal_number(exit_code: int) -> int:
    """Return the signal that ended a process: negative as Python counts, above 128 as shells do; no signal: below 1."""
    return -exit_code if exit_code < 0 else exit_code - 128


def fault_in(texts: Iterable[str]) -> Entry | None:
    """Return the fault of the machines that a text names; None where a text says that the program may be the cause."""
    listed = tuple(texts)
    found = (each for each in entries() if each.retry and any(map(each.match, listed)))
    first = min(found, key=lambda each: RETRIES.index(each.retry), default=None)
    return None if first is None or first.retry == "never" else first


def is_of_peer(text: str) -> bool:
    """Return whether a process says that it lost the others, or that it waited for them in vain."""
    found = first_match(text)
    return found is not None and found[0].sign is not None and found[0].sign.kind == "peer"


def pools_in(text: str) -> str:
    """Return the name of the memory pools that a line shows and that exclude expandable segments; empty for none."""
    if not _words().search(text.encode(errors="replace")):
        return ""
    return next((row["name"] for row in table()["pools"] if any(_search(each, text) for each in row["pattern"])), "")


def entry(identifier: str) -> Entry:
    """Return an entry by its id; StopIteration for an unknown one."""
    return next(each for each in entries() if each.id == identifier)


def known(text: str) -> OomVerdict | None:
    """Return the verdict of the first entry that matches. Slurm's own text stays as the reason."""
    found = first_match(text)
    if found is None:
        return None
    each, match = found
    groups = match.groupdict()
    asked = int(groups["bytes"]) if groups.get("bytes") else None
    most = THRESHOLDS["impossible_host_bytes"] if each.oom_class == "host_memory" else impossible_bytes()
    if asked is not None and asked > most:
        return OomVerdict("bad_size", "high", f"the request is for {asked} bytes, which no device has", asked)
    verdict = each.verdict(asked, f": {groups['what']}" if groups.get("what") else "")
    return replace(verdict, reason=first_line(text)[:300]) if text.startswith("Slurm: ") else verdict
