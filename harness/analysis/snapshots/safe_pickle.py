"""Pickles of plain values only: dicts, lists, tuples, numbers and text. Whatever else one holds is refused unmade."""

import pickle
from typing import IO, Any, NoReturn


class RefusedPickleError(ValueError):
    """The file is no pickle of plain values; nothing that it asked for was looked up or called."""


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every way in which a pickle can name code: globals, extension codes, persistent ids and buffers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Every global comes by here, those of the extension registry as well."""
        raise RefusedPickleError(f"it asks for {_shown(module)}.{_shown(name)}, and a snapshot holds plain values only")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Objects that live outside of the file."""
        del pid
        raise RefusedPickleError("it refers to objects outside of the file, and a snapshot holds plain values only")

    def get_extension(self, code: int) -> NoReturn:
        """The extension registry of Python's own unpickler; C's goes to :meth:`find_class`, or finds no such code."""
        raise RefusedPickleError(f"it uses extension code {code}, and a snapshot holds plain values only")


def load_plain(stream: IO[bytes]) -> object:
    """The value in ``stream``. RefusedPickleError for anything but plain values and for damaged files; MemoryError."""
    try:
        return _PlainUnpickler(stream, buffers=None).load()
    except RefusedPickleError:
        raise
    # What C's unpickler raises for damaged files is not told apart any further by its documentation.
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, OverflowError,
        RecursionError, ImportError,
    ) as error:  # fmt: skip
        raise RefusedPickleError(
            f"it is damaged, cut short or no pickle ({type(error).__name__}: {_shown(str(error))})"
        ) from error


def _shown(text: str) -> str:
    """Text of a file that is not trusted, for people: short, and without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:120])
