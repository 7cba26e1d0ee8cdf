"""Reads the options of Bridge's `scripts/performance` from their source, and compares them with the committed list."""

import ast
import json
import subprocess
from pathlib import Path

PARSER = "scripts/performance/argument_parser.py"
COMMITTED = Path(__file__).parents[2] / "harness" / "cli" / "bridge_options.json"
_FACTS = ("action", "type", "nargs", "default", "choices")

Option = dict[str, object]


def read(checkout: Path) -> list[Option]:
    """Return name, alias and, where the source gives them, action, type, nargs, default and choices of every option.

    A value that is no literal, such as a converter or a constant, stays as its source text. Nothing of Bridge is imported.
    """
    tree = ast.parse((checkout / PARSER).read_text(encoding="utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    return [_option(call) for call in sorted(calls, key=lambda call: call.lineno)]


def _option(call: ast.Call) -> Option:
    spelt = [ast.literal_eval(argument) for argument in call.args]
    name = next(text for text in spelt if text.startswith("--"))
    facts = {word.arg: _value(word.value) for word in call.keywords if word.arg in _FACTS}
    alias = next((text for text in spelt if text != name), None)
    found = {"name": name, "alias": alias, **{fact: facts.get(fact) for fact in _FACTS}}
    return {fact: value for fact, value in found.items() if value is not None}


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def changes(found: list[Option]) -> list[str]:
    """List options of ``found`` that the committed list lacks, has otherwise, or has although they are gone."""
    ours, theirs = {str(each["name"]): each for each in _committed()}, {str(each["name"]): each for each in found}
    listed = [f"{name} is new: {theirs[name]}" for name in theirs if name not in ours]
    listed += [f"{name} is gone" for name in ours if name not in theirs]
    listed += [f"{n} changed: {ours[n]} is now {theirs[n]}" for n in theirs if n in ours and ours[n] != theirs[n]]
    return listed


def _committed() -> list[Option]:
    options: list[Option] = json.loads(COMMITTED.read_text(encoding="utf-8"))["options"]
    return options


def write(found: list[Option], checkout: Path, path: Path) -> None:
    """Write the list with the commit of the checkout."""
    rows = ",\n".join(f"  {json.dumps(each)}" for each in found)
    path.write_text(
        f'{{\n "source": {json.dumps(PARSER)},\n "commit": {json.dumps(_commit(checkout))},\n "options": [\n{rows}\n ]\n}}\n',
        encoding="utf-8",
    )


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    run = subprocess.run(asked, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"
