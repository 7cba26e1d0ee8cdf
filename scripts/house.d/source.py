"""Figures of source files: lines, words that users read, functions, circles of imports."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import yaml

_DATA = (".json", ".yaml", ".yml", ".csv", ".css", ".txt")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCH = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.Assert | ast.match_case
# Fields of tables that a user reads.
_READ = ("cause", "next", "advice", "doing", "why", "sections", "symptom", "confirm", "fix")


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def tracked(folder: str, *suffixes: str) -> tuple[Path, ...]:
    """Files below ``folder`` that git tracks, or would track."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder)
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(path for path in map(Path, sorted(set(listed))) if path.suffix in suffixes and path.is_file())


def lines_of(folder: str, *suffixes: str) -> int:
    """Lines of the files below ``folder``."""
    return sum(len(path.read_text().splitlines()) for path in tracked(folder, *suffixes))


def data_lines(folder: str) -> int:
    """Lines of data files. A line of JSON counts for each 120 characters: data does not shrink by being packed."""
    texts = (path.read_text() for path in tracked(folder, *_DATA))
    return sum(-(-len(line) // 120) or 1 for text in texts for line in text.splitlines())


def long_lines(folder: str) -> int:
    """Lines above 120 characters. ruff lets a line pass that has no space or ends with a remark for a checker."""
    texts = (path.read_text() for path in tracked(folder, ".py", ".css", ".yaml"))
    return sum(len(line) > 120 for text in texts for line in text.splitlines())


def words_of_text(folder: str) -> int:
    """Words of literals with a space, of docstrings that are a command's help, and of tables."""
    sources = (text for path in tracked(folder, ".py") for text in _texts(_parsed(path)))
    tables = (text for path in tracked(folder, ".yaml") for text in _read(yaml.safe_load(path.read_text())))
    return sum(len(_WORD.findall(text)) for text in (*sources, *tables))


def _read(value: object, *, is_read: bool = False) -> Iterator[str]:
    if isinstance(value, str) and is_read:
        yield value
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _read(each, is_read=is_read or key in _READ)


def _texts(tree: ast.Module) -> Iterator[str]:
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | _FUNCTION) and node.body and isinstance(node.body[0], ast.Expr)
    }
    attributes = {
        id(each.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTION) and _is_command(node):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents | attributes:
            yield node.value if " " in node.value.strip() else ""


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("command" in ast.unparse(each) for each in function.decorator_list)


def functions(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield each function's place, its lines and its complexity, nested functions within the outer one, too."""
    for path in tracked(folder, ".py"):
        for node in ast.walk(_parsed(path)):
            if isinstance(node, _FUNCTION):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{path}:{node.lineno} {node.name}", size, complexity(node)


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Paths through a function: 1, and 1 for each branch, boolean operator, comprehension and its conditions."""
    inner = (node for node in ast.walk(function) if isinstance(node, _FUNCTION) and node is not function)
    nested = {id(node) for each in inner for node in ast.walk(each)}
    count = 1
    for node in ast.walk(function):
        if id(node) in nested:
            continue
        count += isinstance(node, _BRANCH)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        count += 1 + len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return count


def import_circles() -> int:
    """Groups of modules that import each other in a circle, imports inside functions included, those for types not."""
    graph = grimp.build_graph("harness", cache_dir=None, exclude_type_checking_imports=True)
    groups: set[frozenset[str]] = set()
    for module in graph.modules:
        below = graph.find_downstream_modules(module)
        groups.add(frozenset(other for other in below if module in graph.find_downstream_modules(other)))
    return len(groups - {frozenset()})
