"""Figures of source files: sizes, circles of imports, copies of an option's default."""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grimp

Default = tuple[str, object]


@dataclass(frozen=True)
class Source:
    """One module: its size, the lines of each function, and the defaults that its fields and parameters have."""

    path: Path
    num_lines: int
    function_lines: tuple[int, ...]
    option_defaults: tuple[Default, ...]
    defaults: tuple[Default, ...]


def python_files(folder: Path) -> tuple[Path, ...]:
    """Files that git tracks, or would track, below a folder."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", f"{folder}/*.py")
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(path for path in map(Path, sorted(set(listed))) if path.is_file())


def sources(folder: Path) -> tuple[Source, ...]:
    """Return every module with code in it; an ``__init__.py`` with a docstring alone has none."""
    read = ((path, path.read_text()) for path in python_files(folder))
    parsed = ((path, text, ast.parse(text)) for path, text in read)
    return tuple(_source(*each) for each in parsed if each[0].name != "__init__.py" or len(each[2].body) > 1)


def _source(path: Path, text: str, tree: ast.Module) -> Source:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    found = tuple(_defaults(tree))
    options = tuple(default for default, is_option in found if is_option)
    return Source(path, len(text.splitlines()), sizes, options, tuple(default for default, _ in found))


def _defaults(tree: ast.Module) -> Iterator[tuple[Default, bool]]:
    """Yield each default that is a telling constant, with whether a command-line option has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value, "option(" in ast.unparse(node.annotation).lower())]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            given = [*zip(reversed(positional), reversed(node.defaults), strict=False)]
            pairs = [
                (a.arg, value, False) for a, value in (*given, *zip(node.kwonlyargs, node.kw_defaults, strict=True))
            ]
        else:
            continue
        for name, value, is_option in pairs:
            if isinstance(value, ast.Constant) and value.value not in (None, "", False, True, 0, 1):
                yield (name.removesuffix("_s"), value.value), is_option


def default_copies(found: Sequence[Source]) -> int:
    """How often the default of an option is written out, for the option where that is most often."""
    options = {default for source in found for default in source.option_defaults}
    copies = Counter(default for source in found for default in source.defaults if default in options)
    return max(copies.values(), default=0)


def import_circles() -> int:
    """Groups of modules that import each other in a circle, imports inside functions included."""
    graph = grimp.build_graph("harness", cache_dir=None)
    found: list[set[str]] = []
    seen: set[str] = set()
    for module in sorted(graph.modules):
        if module not in seen:
            circle = {module} | {
                other
                for other in graph.find_downstream_modules(module)
                if module in graph.find_downstream_modules(other)
            }
            seen |= circle
            found.extend([circle] if len(circle) > 1 else [])
    return len(found)
