"""Files of one kind in a folder of the recipe directory: found by name, or taken from a path."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError
from harness.recipes.find import recipes_dir
from harness.recipes.problems import nearest

_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class NamedFiles:
    """One kind of file. ``folder`` is its place below the recipe directory, ``noun`` and ``asked_by`` open messages."""

    folder: str
    noun: str
    asked_by: str

    def all(self, directory: Path | None = None) -> tuple[Path, ...]:
        """Every file of this kind in the recipe directory, by name."""
        return tuple(sorted((recipes_dir(directory) / self.folder).glob("*.yaml")))

    def find(self, name: str, directory: Path | None = None) -> tuple[Path, str]:
        """The file of that name, or at that path, and how messages call it.

        A path has a separator or ends in .yaml or .yml. BadRequestError with the nearest name where there is none, and
        for a name that leaves the recipe directory through a link.
        """
        if "/" in name or "\\" in name or name.lower().endswith(_ENDINGS):
            self._require_no_folder(name)
            if not Path(name).is_file():
                raise self._wrong(name, "no such file", "check the path, or give a name without .yaml")
            return Path(name), name
        files = {path.stem: path for path in self.all(directory)}
        if name not in files:
            raise self._unknown(name, files)
        path, root = files[name], recipes_dir(directory)
        if not path.resolve().is_relative_to(root.resolve()):
            raise self._wrong(name, f"{path} is a link that leaves {root}", "copy the file instead")
        return path, f"{root.name}/{self.folder}/{path.name}"

    def _unknown(self, name: str, files: dict[str, Path]) -> BadRequestError:
        self._require_no_folder(name)
        if Path(name).is_file():
            fix = f"rename it, or write ./{name}"
            return self._wrong(name, "the file exists, but a path without / ends in .yaml", fix)
        return self._wrong(name, f"no such {self.noun}", nearest(name, files))

    def _require_no_folder(self, name: str) -> None:
        if Path(name).is_dir():
            raise self._wrong(name, f"a folder, not a {self.noun}", "name the .yaml file in it")

    def _wrong(self, name: str, message: str, fix: str) -> BadRequestError:
        return BadRequestError(f"{self.asked_by} {name}: {message}", remedy=fix)
