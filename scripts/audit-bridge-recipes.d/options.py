"""Reads the options of Bridge's `scripts/performance` from their source, and compares them with the committed list."""

import ast
import json
import subprocess
from pathlib import Path
from textwrap import wrap

PARSER = "scripts/performance/argument_parser.py"
COMMITTED = Path(__file__).parents[2] / "harness" / "cli" / "bridge_options.json"
_WIDTH = 116


def read(checkout: Path) -> list[str]:
    """Return every option as ``NAME ALIAS VALUES``, without an alias or one value. Nothing of Bridge is imported."""
    tree = ast.parse((checkout / PARSER).read_text(encoding="utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    return [_option(call) for call in sorted(calls, key=lambda call: call.lineno)]


def _option(call: ast.Call) -> str:
    spelt = sorted((ast.literal_eval(argument) for argument in call.args), key=lambda text: not text.startswith("--"))
    facts = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
    values = (
        "0" if facts.get("action") == "store_true" else {"?": "?", "*": "*", "+": "*"}.get(str(facts.get("nargs")), "")
    )
    return " ".join(filter(None, (*spelt, values)))


def changes(found: list[str]) -> list[str]:
    """List options of ``found`` that the committed list lacks, has otherwise, or has although they are gone."""
    ours, theirs = ({each.split()[0]: each for each in listed} for listed in (_committed(), found))
    listed = [f"{name} is new: {theirs[name]}" for name in theirs if name not in ours]
    listed += [f"{name} is gone" for name in ours if name not in theirs]
    listed += [f"{n} changed: {ours[n]} is now {theirs[n]}" for n in theirs if n in ours and ours[n] != theirs[n]]
    return listed


def _committed() -> list[str]:
    options: list[str] = json.loads(COMMITTED.read_text(encoding="utf-8"))["options"]
    return options


def write(found: list[str], checkout: Path, path: Path) -> None:
    """Write the list with the commit of the checkout."""
    quoted = ", ".join(json.dumps(each).replace(" ", "\0") for each in found)
    rows = (f"  {row}\n".replace("\0", " ") for row in wrap(quoted, _WIDTH, break_on_hyphens=False))
    head = f' "source": {json.dumps(PARSER)},\n "commit": {json.dumps(_commit(checkout))},\n "options": [\n'
    path.write_text(f"{{\n{head}{''.join(rows)} ]\n}}\n", encoding="utf-8")


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    run = subprocess.run(asked, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"
