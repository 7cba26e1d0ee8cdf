"""A sweep file: what to run, what to vary and how often; read strictly, every fault at its line."""

from dataclasses import dataclass
from pathlib import Path

from harness.recipes.axes import SHORT_NAMES, require_axis
from harness.recipes.file_reader import FileReader, OptionValue, as_text
from harness.recipes.find import SWEEPS, NamedFiles
from harness.recipes.problems import Problems
from harness.recipes.recompute import policy_from_text
from harness.recipes.strict_yaml import Items, Node, read_yaml

AUTO = "auto"
_FILES = NamedFiles(SWEEPS, "sweep file", "--file")
_KEYS = ("title", "source", "request", "over", "grid", "repeats", "control")


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
    path, label = _FILES.find(name_or_path, directory)
    root, problems = read_yaml(path, label), Problems()
    read = _Reader(label, problems).sweep(root)
    problems.raise_if_any()
    assert read is not None  # a file without a sweep has problems
    return read


def sweep_files(directory: Path | None = None) -> tuple[Path, ...]:
    """All sweep files of the recipe directory, by name."""
    return _FILES.all(directory)


class _Reader(FileReader):
    """One pass over the tree of a sweep file."""

    def sweep(self, root: Node) -> SweepFile | None:
        table = self.table(root, "the file")
        if table is None:
            return None
        self.require_known(table, _KEYS)
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

    def request(self, node: Node | None) -> dict[str, OptionValue]:
        table = self.table(node, "request") if node is not None else None
        if table is None:
            return {}
        if "model_recipe_name" not in table.entries:
            self.refuse(table.line, "request.model_recipe_name: missing", "name a recipe")
        return self.options(table, "request")

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
