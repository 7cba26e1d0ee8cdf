"""A job in the words of another program: their values, and what becomes of the words that no setting is read from."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.errors import Problems, closest
from harness.records.reading import PlainValue
from harness.resolve.recipe import UNPREDICTED
from harness.units import shortened

OFF: tuple[PlainValue, ...] = (None, False, 0, "", (), {}, "none")


@dataclass(frozen=True)
class Given:
    """A value as it was written. ``source``: ``train.sh:12: --num-layers``."""

    value: PlainValue
    source: str


@dataclass
class Words:
    """What a file says, by name; ``read``: names that a reader asked for, ``settled``: leaves that `--set` gives."""

    label: str
    given: dict[str, Given] = field(default_factory=dict)
    around: dict[str, Given] = field(default_factory=dict)
    defaults: Mapping[str, PlainValue] = field(default_factory=dict)
    absent: str = "{label}: {name}"
    problems: Problems = field(default_factory=Problems)
    read: set[str] = field(default_factory=set)
    settled: frozenset[str] = frozenset()
    repaired: set[str] = field(default_factory=set)

    def _found(self, names: Iterable[str]) -> list[Given]:
        found = [given for name in names if (given := self.given.get(name) or self.around.get(name))]
        return sorted(found, key=lambda given: given.value is None)

    def peek(self, *names: str) -> PlainValue:
        """Look at the first value of the names; unlike :meth:`value`, this does not mark them as used."""
        values = [*(given.value for given in self._found(names)), *map(self.defaults.get, names)]
        return next((value for value in values if value is not None), None)

    def has(self, *names: str) -> bool:
        """Tell a name that the file writes, also with null, from one with a default only."""
        return bool(self._found(names))

    def place(self, *names: str) -> str:
        """Return where the first of the names with a value is written, as in ``file:line: name``."""
        found = self._found(names)
        name = next((name for name in names if name in self.defaults), names[0])
        return found[0].source if found else self.absent.format(label=self.label, name=name)

    def value(self, *names: str, usual: Any = None) -> Any:
        """Read the first value of the names and mark all as used; ``usual`` without a value."""
        self.read.update(names)
        found = self.peek(*names)
        return usual if found is None else found

    def refuse(self, name: str, message: str, remedy: str) -> None:
        """Add a problem at a name."""
        place = self.place(name).partition(" (absent")[0]
        self.problems.add(f"{place}: {message}", remedy)

    def shown(self, name: str, value: PlainValue) -> str:
        """Return a name as it is written, with its value, for messages."""
        written = self.given[name].source.rpartition(" ")[2]
        if written.startswith("-"):
            words = value if isinstance(value, tuple) else () if isinstance(value, bool) else (value,)
            return shortened(" ".join(map(str, (written, *words))))
        return f"{written} is {text_of(value)}"

    def holds(self, conditions: str) -> bool:
        """Return whether all conditions hold: ``name`` is on, ``name>1``, ``name=a|b``; with ``!`` it is not so."""
        return all(map(self._holds, conditions.split()))

    def _holds(self, condition: str) -> bool:
        name, sign, wanted = re.findall(r"!?([\w.]+)([=>]?)(.*)", condition)[0]
        value = self.peek(name)
        if sign == ">":
            holds = isinstance(value, int) and value > int(wanted)
        else:
            holds = _last_part(value).lower() in wanted.split("|") if sign else value not in OFF
        return holds != condition.startswith("!")

    def fits(self, value: PlainValue, values: Iterable[PlainValue]) -> bool:
        """Return whether a value is one of ``values``; ``=name`` and ``<=name`` there stand for the value of a name."""
        return any(self._equals(value, each) for each in values)

    def _equals(self, value: PlainValue, wanted: PlainValue) -> bool:
        if isinstance(wanted, str) and wanted.startswith("<="):
            most = self.peek(wanted[2:])
            return not (isinstance(value, int) and isinstance(most, int)) or value <= most
        wanted = self.peek(wanted[1:]) if isinstance(wanted, str) and wanted[:1] == "=" else wanted
        if isinstance(value, bool) or isinstance(wanted, bool):
            return value is wanted
        return value == wanted or (value is not None and _last_part(value) == _last_part(wanted))


def _last_part(value: PlainValue) -> str:
    text = str(value).replace("float32", "fp32").replace("bfloat16", "bf16")
    return text.rpartition(".")[2] if isinstance(value, str) else text


def text_of(value: PlainValue) -> str:
    """Return a value as YAML writes it, in at most 60 characters."""
    words = {None: "null", True: "true", False: "false"}
    return shortened(words[value] if value is None or isinstance(value, bool) else str(value))


def suggested(name: str, known: Iterable[str]) -> str:
    """Return what to do about an unknown name: the nearest known one, or to leave it out."""
    close = closest(name, known)
    without = "leave it out if it changes neither memory nor time"
    return f"did you mean {close[0]!r}? Otherwise {without}" if close else without


Kind = Literal["refused", "noted", "small", "unread"]


@dataclass(frozen=True)
class Unread:
    """What becomes of a name that no setting is read from, where the conditions ``where`` hold.

    With one of ``values`` it changes nothing; None: with any. Another value is refused, noted with the reason ``why``,
    or of small effect; one that is ``unread`` is refused only if no reader asked for it. ``instead``: what to do.
    """

    values: Sequence[PlainValue] | None
    why: str = "mbr-perf does not have it"
    instead: str = ""
    kind: Kind = "refused"
    where: str = ""

    @property
    def remedy(self) -> str:
        needed = dict.fromkeys(text_of(each).lstrip("<=") for each in self.values or () if each not in OFF)
        return self.instead or f"must be {' or '.join(needed) or 'off'}"


def unread(
    groups: Iterable[Mapping[str, Any]], prefix: str = "", usual: Callable[[str], Sequence[PlainValue]] = lambda _: OFF
) -> dict[str, list[Unread]]:
    """Return the rows of a table by name. ``usual``: the values of a name whose group has none."""
    rows: dict[str, list[Unread]] = defaultdict(list)
    for group in groups:
        what = {"why": f"mbr-perf does not model {group['what']}"} if "what" in group else {}
        more = what | {key: group[key] for key in ("why", "instead", "where", "kind") if key in group}
        for name in group.get("any", group.get("only", "")).split():
            values = None if "any" in group else group.get("values") or usual(name)
            rows[prefix + name].append(Unread(values, **more))
    return rows


def judge(
    words: Words,
    rows: Mapping[str, Sequence[Unread]],
    unknown: str,
    *,
    sections: Iterable[str] = (),
    also: Iterable[str] = (),
) -> str:
    """Refuse every name that cannot be said here; return a note on others. ``unknown``: why, empty to note them."""
    noted, strange, known = [*also], list[str](), {*rows, *words.read}
    for name, given in words.given.items():
        if name in words.repaired:
            continue
        value = given.value
        if value not in OFF and name not in known and name.partition(".")[0] not in sections:
            if unknown:
                _add(words, name, value, unknown, suggested(name, rows))
            else:
                strange.append(f"{name} ({shortened(str(value))})")
        row = next((row for row in rows.get(name, ()) if _is_broken(row, words, name, value)), None)
        if row is not None and row.kind == "noted":
            noted.append(f"{words.shown(name, value)} ({row.why})")
        elif row is not None and row.kind != "small":
            _add(words, name, value, row.why, row.remedy)
    texts = {
        "mbr-perf does not know these arguments of the log, and what they change is not predicted": ", ".join(strange),
        UNPREDICTED: "; ".join(sorted(noted)),
    }
    return "; ".join(f"{what}: {text}" for what, text in texts.items() if text)


def _add(words: Words, name: str, value: PlainValue, why: str, remedy: str) -> None:
    shown = words.shown(name, value)
    words.problems.add(f"{words.place(name).removesuffix(shown.partition(' ')[0])}{shown}: {why}", remedy)


def _is_broken(row: Unread, words: Words, name: str, value: PlainValue) -> bool:
    is_due = row.kind != "unread" or name not in words.read
    return is_due and row.values is not None and words.holds(row.where) and not words.fits(value, row.values)
