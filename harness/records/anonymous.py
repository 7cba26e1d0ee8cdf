"""Files of a run as they may be given away: no secrets, and no path that says who ran it and where."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records.redact import MASK, is_secret_name, redact

# Homes of other machines too, as records carry them; the name goes, the rest of the path stays.
_ANY_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"'\\:;,<>|]+|(?<![\w.~/-])/root(?=/|\b)")

_OF_VARIABLES = frozenset({"env", "environment"})


@dataclass(frozen=True)
class Places:
    """Folders of this machine by the name that stands for them, the most specific first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, folders: Iterable[tuple[Path | None, str]]) -> "Places":
        """Each as it was given and with its links resolved; None is passed over."""
        known: dict[str, str] = {}
        for folder, name in folders:
            for path in (folder.absolute(), folder.resolve()) if folder else ():
                if path != Path(path.anchor):
                    known.setdefault(str(path), name)
        return cls(tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def hidden(self, text: str) -> str:
        """``text`` without the folders and without anybody's home."""
        for path, name in self.names:
            text = re.sub(rf"(?<![\w.~-]){re.escape(path)}(?![\w.-])", name, text)
        return _ANY_HOME.sub("~", text)


def shareable(name: str, text: str, places: Places) -> str:
    """The text of the file called ``name``: JSON and JSON lines by value, so that they stay what they are; HTML by path only.

    A page's program would break under masks, and the texts in it come from records that were redacted when written.
    """
    suffix = Path(name).suffix
    if suffix == ".json":
        return _json(text, places, indent=1)
    if suffix == ".jsonl":
        lines = text.removesuffix("\n").split("\n")
        return "".join(_json(line, places, indent=None).removesuffix("\n") + "\n" for line in lines)
    if suffix == ".html":
        return places.hidden(text)
    return places.hidden(redact(text))


def _json(text: str, places: Places, indent: int | None) -> str:
    """A document that cannot be read, such as a line that a kill cut short, is treated as plain text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return places.hidden(redact(text))
    return json.dumps(_clean(value, places), indent=indent, ensure_ascii=False) + "\n"


def _clean(value: object, places: Places, *, variables: bool = False) -> object:
    """``variables``: the keys of ``value`` are names of variables; elsewhere only names in capitals are.

    A setting such as moe_token_dispatcher_type is named like a secret and is none.
    """
    match value:
        case str():
            return places.hidden(redact(value))
        case list():
            return [_clean(item, places) for item in value]
        case dict():
            return {
                places.hidden(key): MASK
                if isinstance(inner, str) and is_secret_name(key) and (variables or key.isupper())
                else _clean(inner, places, variables=key in _OF_VARIABLES)
                for key, inner in value.items()
            }
        case _:
            return value
