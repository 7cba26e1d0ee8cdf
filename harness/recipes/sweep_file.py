"""A sweep file: what to run, what to vary and how often; read strictly, every fault at its line."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from harness.errors import BadRequestError
from harness.recipes.axes import SHORT_NAMES, require_axis
from harness.recipes.find import SWEEPS, recipes_dir
from harness.recipes.option_values import OptionValue, as_text, kind_of, option_value
from harness.recipes.problems import Problems, nearest
from harness.recipes.recompute_text import policy_from_text
from harness.recipes.request import Request
from harness.recipes.strict_yaml import Items, Node, Table, plain, read_yaml

AUTO = "auto"
_KEYS = ("title", "source", "request", "over", "grid", "repeats", "control")
_FOR_RECIPE = ("recipe", "recipe_name", "model_recipe", "model_recipe_name")
_OPTIONS = {name: hint for name, hint in get_type_hints(Request).items() if name != "recipes_dir"}


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """A sweep as a file asks for it; the command line wins over it.

    ``request``: fields of a `Request` that are given. ``over``: the values of every axis, as text, in the file's order;
    recompute may be ``auto`` alone. ``control``: name of the cell that others are held against, where it is not the
    request itself. ``source``: where the comparison is known from.
    """

    title: str
    request: dict[str, OptionValue]
    over: dict[str, tuple[str, ...]]
    grid: bool = False
    repeats: int = 1
    control: str | None = None
    source: str = ""


def read_sweep_file(name_or_path: str, directory: Path | None = None) -> SweepFile:
    """The sweep file of that name in ``sweeps/`` of the recipe directory, or at that path.

    A path has a separator or ends in .yaml or .yml. BadRequestError with every problem, each at its ``file:line``.
    """
    path, label = _found(name_or_path, directory)
    root, problems = read_yaml(path, label), Problems()
    read = _Reader(label, problems).sweep(root)
    problems.raise_if_any()
    assert read is not None  # a file without a sweep has problems
    return read


def sweep_files(directory: Path | None = None) -> tuple[Path, ...]:
    """All sweep files of the recipe directory, by name."""
    return tuple(sorted((recipes_dir(directory) / SWEEPS).glob("*.yaml")))


def _found(name: str, directory: Path | None) -> tuple[Path, str]:
    if "/" in name or "\\" in name or name.lower().endswith((".yaml", ".yml")):
        _require_no_folder(name)
        if not Path(name).is_file():
            raise BadRequestError(f"--file {name}: no such file", remedy="check the path, or give a name without .yaml")
        return Path(name), name
    files = {path.stem: path for path in sweep_files(directory)}
    if name not in files:
        _require_no_folder(name)
        if Path(name).is_file():
            raise BadRequestError(
                f"--file {name}: the file exists, but a path without / ends in .yaml",
                remedy=f"rename it, or write ./{name}",
            )
        raise BadRequestError(f"--file {name}: no such sweep file", remedy=nearest(name, files))
    path, folder = files[name], recipes_dir(directory)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadRequestError(f"--file {name}: {path} is a link that leaves {folder}", remedy="copy the file instead")
    return path, f"{folder.name}/{SWEEPS}/{path.name}"


def _require_no_folder(name: str) -> None:
    if Path(name).is_dir():
        raise BadRequestError(f"--file {name}: a folder, not a sweep file", remedy="name the .yaml file in it")


def _instead(key: str) -> str:
    """A remedy for an unknown key of the file: what belongs to the request is sent there."""
    if key in _FOR_RECIPE:
        return "write model_recipe_name under request"
    return "write it under request" if key in _OPTIONS else nearest(key, _KEYS)


class _Reader:
    """One pass over the tree of a sweep file; collects problems instead of stopping at the first."""

    def __init__(self, label: str, problems: Problems) -> None:
        self.label, self.problems = label, problems

    def refuse(self, line: int, message: str, remedy: str) -> None:
        self.problems.add(f"{self.label}:{line}: {message}", remedy)

    def table(self, node: Node, where: str) -> Table | None:
        if isinstance(node, Table):
            return node
        self.refuse(node.line, f"{where}: must be a mapping", "write key: value pairs")
        return None

    def sweep(self, root: Node) -> SweepFile | None:
        table = self.table(root, "the file")
        if table is None:
            return None
        for key, line in table.key_lines.items():
            if key not in _KEYS:
                self.refuse(line, f"{key}: no such setting", _instead(key))
        for key in ("title", "request", "over"):
            if key not in table.entries:
                self.refuse(table.line, f"{key}: missing", f"add {key}")
        return SweepFile(
            title=self.text(table, "title"),
            source=self.text(table, "source"),
            control=self.text(table, "control") or None,
            request=self.request(table.entries.get("request")),
            over=self.over(table.entries.get("over")),
            grid=self.flag(table, "grid"),
            repeats=self.count(table, "repeats"),
        )

    def text(self, table: Table, key: str) -> str:
        node = table.entries.get(key)
        value = plain(node) if node is not None else ""
        if isinstance(value, str):
            return value
        self.refuse(table.key_lines[key], f"{key}: must be text, is {value!r}", "quote it")
        return ""

    def flag(self, table: Table, key: str) -> bool:
        value = plain(table.entries[key]) if key in table.entries else False
        if isinstance(value, bool):
            return value
        self.refuse(table.key_lines[key], f"{key}: must be true or false, is {value!r}", "write true or false")
        return False

    def count(self, table: Table, key: str) -> int:
        value = plain(table.entries[key]) if key in table.entries else 1
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.refuse(table.key_lines[key], f"{key}: must be a count of at least 1, is {value!r}", "e.g. 3")
        return 1

    def request(self, node: Node | None) -> dict[str, OptionValue]:
        table = self.table(node, "request") if node is not None else None
        if table is None:
            return {}
        if "model_recipe_name" not in table.entries:
            self.refuse(table.line, "request.model_recipe_name: missing", "name a recipe")
        given: dict[str, OptionValue] = {}
        for key, value in table.entries.items():
            if key not in _OPTIONS:
                remedy = "did you mean 'model_recipe_name'?" if key in _FOR_RECIPE else nearest(key, _OPTIONS)
                self.refuse(table.key_lines[key], f"request.{key}: no such option", remedy)
                continue
            read = option_value(value, _OPTIONS[key])
            if read is None:
                says = f"request.{key}: must be {kind_of(_OPTIONS[key])}, is {plain(value)!r}"
                self.refuse(table.key_lines[key], says, "write it as on the command line")
            else:
                given[key] = read
        return given

    def over(self, node: Node | None) -> dict[str, tuple[str, ...]]:
        table = self.table(node, "over") if node is not None else None
        if table is None:
            return {}
        if not table.entries:
            self.refuse(table.line, "over: nothing to vary", "e.g. recompute: [none, core_attn]")
        axes: dict[str, tuple[str, ...]] = {}
        for name, values in table.entries.items():
            line = table.key_lines[name]
            with self.problems.collecting():
                require_axis(name, f"{self.label}:{line}: over")
            twice = SHORT_NAMES.get(name)
            if twice in table.entries:
                self.refuse(line, f"over.{name}: says the same as {twice}", "keep one of them")
            axes[name] = self.values(name, values, line)
        return axes

    def values(self, name: str, node: Node, line: int) -> tuple[str, ...]:
        """One axis' values as text; a single one may stand without brackets."""
        nodes = node.nodes if isinstance(node, Items) else (node,)
        texts = [as_text(each) for each in nodes]
        known = tuple(text for text in texts if text is not None)
        if not known or len(known) < len(texts):
            self.refuse(line, f"over.{name}: must be a list of values", f"e.g. {name}: [..., ...]")
        for text in sorted({text for text in known if known.count(text) > 1}):
            self.refuse(line, f"over.{name}: {text!r} is given twice", "keep one of them")
        if name == "recompute" and known != (AUTO,):
            for text in known:
                with self.problems.collecting():
                    policy_from_text(text, f"{self.label}:{line}: over.recompute")
        return known
