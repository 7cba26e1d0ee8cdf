"""The rules that hold the design up, on the source itself."""

import ast
import re
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"
SOURCES = sorted(HARNESS.rglob("*.py"))
DRAWERS = {"utils", "util", "helpers", "helper", "misc", "common", "base", "core", "manager"}
MAX_LINES = 400
HEAVY = {"torch", "megatron", "transformer_engine", "pynvml"}


@pytest.fixture(scope="module")
def trees():
    """Every part of each module's syntax, the module first."""
    return {path: tuple(ast.walk(ast.parse(path.read_text()))) for path in SOURCES}


def is_engine(path):
    return (HARNESS / "engine") in path.parents


def name_of(path):
    return str(path.relative_to(ROOT))


def test_stages_depend_downwards_only():
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_there_are_no_drawers():
    """The stand-ins for transformer-engine and Megatron-Bridge use the names of the packages that they stand in for."""
    folders = ("harness", "recipes", "scripts", "tests", "results")
    left_out = {"stand_in", "scripted_bridge", "__pycache__", "runs"}
    own = [
        path
        for name in folders
        for path in (ROOT / name).rglob("*")
        if not left_out & set(path.parts) and path.is_file()
    ]
    named = [name_of(path) for path in own if {path.stem, *path.relative_to(ROOT).parts[:-1]} & DRAWERS]
    assert named == []


def test_every_package_is_in_the_guide():
    guide = (HARNESS / "README.md").read_text()
    packages = {path.parent.name for path in HARNESS.glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in guide} == set()


@pytest.mark.parametrize("folder", [ROOT / "tests", HARNESS])
def test_every_file_and_folder_that_a_guide_names_exists(folder):
    """Its path ends as the guide has it, or begins at the repository's folder; <name> stands for any name."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w<>.-]*|[\w/]+\.(?:py|c|sh))`", (folder / "README.md").read_text()))
    patterns = {name: re.sub("<.+?>", "*", name) for name in named}
    assert {name for name, like in patterns.items() if not [*folder.rglob(like), *ROOT.glob(like)]} == set()


def test_every_module_that_a_docstring_names_exists():
    """A dotted name that begins with a folder of harness/ names a module, or what stands in one."""
    rooms = "|".join(path.parent.name for path in HARNESS.glob("*/__init__.py"))
    documents = {p: " ".join(re.findall(r'"""(.*?)"""', p.read_text(), re.S)) for p in SOURCES}
    named = {
        (name_of(path), dotted)
        for path, text in documents.items()
        for dotted in re.findall(rf"`(?:harness\.)?((?:{rooms})\.(?!json|yaml)[a-z_.]+)", text)
    }
    assert {each for each in named if not is_a_module(each[1])} == set()


def is_a_module(dotted):
    first, second, *_ = dotted.split(".")
    return (HARNESS / first / f"{second}.py").is_file() or (HARNESS / first / second).is_dir()


@pytest.mark.parametrize("folder", ["harness", "tests"])
def test_files_stay_small(folder):
    lines = {name_of(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_says_what_it_is_for(trees):
    assert [name_of(path) for path, nodes in trees.items() if not ast.get_docstring(nodes[0])] == []


def reads_the_environment(nodes):
    """Whether code touches os.environ, os.getenv or os.putenv under any name it was imported as."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv"):
            return True
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {"environ", "getenv"} & {a.name for a in node.names}
        ):
            return True
    return False


def test_only_the_environment_room_and_ranks_read_the_environment(trees):
    readers = [path for path, nodes in trees.items() if not is_engine(path) and reads_the_environment(nodes)]
    programs = {"harness/capture/shim.py"}  # stands in for a launcher
    assert {name_of(path) for path in readers} - programs == {"harness/launch/environment.py"}


def imports_of(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def test_only_ranks_import_the_training_stack_even_inside_functions(trees):
    heavy = {name_of(path): HEAVY & set(imports_of(nodes)) for path, nodes in trees.items() if not is_engine(path)}
    assert {name: found for name, found in heavy.items() if found} == {}


def test_nothing_swallows_every_exception(trees):
    """`except Exception` is for the one place whose answer is whatever megatron-core raised."""
    broad = [
        name_of(path)
        for path, nodes in trees.items()
        for node in nodes
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)  # it only tidies up
    ]
    assert set(broad) <= {"harness/engine/config_probe.py"}


def test_nothing_is_left_to_do_later():
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
    assert [name_of(p) for p in SOURCES if any(word in p.read_text() for word in words)] == []


def test_no_module_is_for_documents_alone():
    """A document stands beside the value that it shows, or is that value."""
    assert [name_of(path) for path in SOURCES if path.stem == "document"] == []
