"""What two nights were measured with, and where they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.history.series import Night

COMMIT, HOST = "commit", "host"
# What is news from one night to the next only where the figure changed too.
EVERYDAY = (COMMIT, HOST)


@dataclass(frozen=True)
class Change:
    """One thing that is not the same.

    ``name`` is that of a package, ``driver``, ``device``, ``container``, a variable with its ``$``, or of :data:`EVERYDAY`.
    """

    name: str
    before: str | None
    after: str | None

    @property
    def text(self) -> str:
        """For people: ``torch 2.9.1 -> 2.10.0``."""
        before, after = (_short(self.name, value) for value in (self.before, self.after))
        return f"{self.name} {before} -> {after}"


def setup_of(night: Night) -> dict[str, str | None]:
    """What the night's figure was measured with, by name."""
    last = night.last
    hosts = sorted({record.hostname for record in night.counted or night.records})
    return {
        **last.versions,
        "driver": last.driver_version,
        "device": last.device_name,
        "container": last.container,
        COMMIT: last.git_commit,
        HOST: ", ".join(hosts),
        **{f"${name}": value for name, value in last.environment.items()},
    }


def changes(before: Night, after: Night) -> tuple[Change, ...]:
    """What differs between two nights, software first, the everyday last; not what one of them does not know."""
    old, new = setup_of(before), setup_of(after)
    either = (*new, *(name for name in old if name not in new))
    known = [name for name in either if _knows(before, name) and _knows(after, name)]
    names = [name for name in known if old.get(name) != new.get(name)]
    ordered = sorted(names, key=lambda name: (name in EVERYDAY, name.startswith("$")))
    return tuple(Change(name, old.get(name), new.get(name)) for name in ordered)


def _knows(night: Night, name: str) -> bool:
    """Ranks tell versions, driver and devices, a launch its variables: where none ever ran, nothing is known of them."""
    if name in EVERYDAY:
        return True
    return bool(night.last.environment if name.startswith("$") else night.last.versions)


def notable(found: Sequence[Change]) -> tuple[Change, ...]:
    """Those that are not everyday."""
    return tuple(change for change in found if change.name not in EVERYDAY)


def _short(name: str, value: str | None) -> str:
    if value is None:
        return "none"
    return value[:10] + ("+" if value.endswith("+") else "") if name == COMMIT else value
