"""Removes secrets and the names of folders from the text of a file that leaves this machine."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records.redact import MASK, is_secret_name, redact

# Home folders, also of other machines, as records contain them. The user's name goes, the rest of the path stays.
_ANY_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"'\\:;,<>|]+|(?<![\w.~/-])/root(?=/|\b)")

_OF_VARIABLES = frozenset({"env", "environment"})


@dataclass(frozen=True)
class Places:
    """Folders of this machine and their placeholders, the most specific first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, folders: Iterable[tuple[Path | None, str]]) -> "Places":
        """Take each folder as given and with its links resolved; skip None."""
        known: dict[str, str] = {}
        for folder, name in folders:
            for path in (folder.absolute(), folder.resolve()) if folder else ():
                if path != Path(path.anchor):
                    known.setdefault(str(path), name)
        return cls(tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def hidden(self, text: str) -> str:
        """Replace the folders and all home folders in ``text``."""
        for path, name in self.names:
            text = re.sub(rf"(?<![\w.~-]){re.escape(path)}(?![\w.-])", name, text)
        return _ANY_HOME.sub("~", text)


def shareable(name: str, text: str, places: Places) -> str:
    """Redact the text of the file ``name``: in JSON and JSON lines, only values; in HTML, only paths.

    Masks would break a page's script, and its texts come from records that were redacted when written.
    """
    suffix = Path(name).suffix
    if suffix == ".json":
        return _json(text, places, indent=1)
    if suffix == ".jsonl":
        return "".join(_json(line, places, indent=None).removesuffix("\n") + "\n" for line in text.splitlines())
    return places.hidden(text if suffix == ".html" else redact(text))


def _json(text: str, places: Places, indent: int | None) -> str:
    try:
        value = json.loads(text)  # of any program, so not as one of mbr-perf's documents
    except (ValueError, RecursionError):
        return places.hidden(redact(text))
    return json.dumps(_clean(value, places), indent=indent, ensure_ascii=False) + "\n"


def _clean(value: object, places: Places, *, variables: bool = False) -> object:
    """Redact a JSON value. ``variables``: all keys of ``value`` name variables; otherwise only keys in capitals do.

    A setting such as moe_token_dispatcher_type looks like the name of a secret, but is not.
    """
    match value:
        case str():
            return places.hidden(redact(value))
        case list():
            return [_clean(item, places) for item in value]
        case dict():
            is_pair = is_secret_name(str(value.get("name", "")))  # {"name": "HF_TOKEN", "value": "..."}
            secret = {key for key in value if is_secret_name(key) and (variables or key.isupper())}
            secret |= {"value"} if is_pair else set()
            return {
                places.hidden(key): MASK
                if isinstance(inner, str) and key in secret
                else _clean(inner, places, variables=key in _OF_VARIABLES)
                for key, inner in value.items()
            }
        case _:
            return value
