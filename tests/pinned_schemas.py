"""The keys of every JSON document, pinned in tests/data/schemas: a file for each command, a line for each key.

`python -m tests.pinned_schemas` writes the files anew. It refuses to drop a key or one of its types: other programs read them.
"""

import sys
from functools import cache

from jsonschema import Draft202012Validator

from harness.recipes.schema import DOCUMENTS, schema_of
from tests.commands import ROOT

PINNED = ROOT / "tests" / "data" / "schemas"

Keys = dict[str, set[str]]


@cache
def validator(command):
    """Refuse, too, the keys that no type of the command has: only other releases may have more of them."""
    return Draft202012Validator(_closed(schema_of(command)))


def _closed(value):
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    closed = {key: _closed(each) for key, each in value.items()}
    return {**closed, "additionalProperties": False} if isinstance(value.get("properties"), dict) else closed


def keys_of(command) -> Keys:
    """Every key of the documents of a command by its path, which begins with the document's type, and its types."""
    schema, found = schema_of(command), {}
    for form in schema.get("anyOf", [schema]):
        name = form.get("$ref", "").rpartition("/")[2]
        _walk(form, name, schema["$defs"], found, ())
    return found


def _walk(schema, path, types, found, inside) -> None:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in inside:
            _walk(types[name], path, types, found, (*inside, name))
        return
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        _walk(one, path, types, found, inside)
    if "enum" in schema or "const" in schema:
        found.setdefault(path, set()).update(f"'{value}'" for value in schema.get("enum", [schema.get("const")]))
    elif "type" in schema:
        found.setdefault(path, set()).add(schema["type"])
    elif not {"anyOf", "oneOf"} & schema.keys():
        found.setdefault(path, set()).add("anything")
    for key, one in schema.get("properties", {}).items():
        _walk(one, f"{path}.{key}{'' if key in schema.get('required', ()) else '?'}", types, found, inside)
    items = [schema["items"]] if isinstance(schema.get("items"), dict) else schema.get("prefixItems", [])
    for one in items:
        _walk(one, f"{path}[]", types, found, inside)
    if isinstance(schema.get("additionalProperties"), dict):
        _walk(schema["additionalProperties"], f"{path}.*", types, found, inside)


def pinned(command) -> Keys:
    """What the file of the command says."""
    lines = file_of(command).read_text().splitlines()
    return {path: set(types.split(" | ")) for path, _, types in (line.partition(": ") for line in lines)}


def file_of(command):
    """Where the keys of a command are pinned."""
    return PINNED / f"{command.replace(' ', '_')}.txt"


def lost(before: Keys, after: Keys) -> list[str]:
    """Keys that are gone or may be absent now, and those of which some type or value is gone."""
    problems = [f"{path}: gone" for path in before if path not in after]
    for path, kinds in before.items():
        now = after.get(path, kinds)
        missing = [kind for kind in kinds - now if not ("string" in now and kind.startswith("'"))]
        problems += [f"{path}: no longer {kind}" for kind in sorted(missing)]
    return problems


def main() -> None:
    """Write every file. Exit 1 where anything would be lost."""
    PINNED.mkdir(exist_ok=True)
    for command in DOCUMENTS:
        file, found = file_of(command), keys_of(command)
        if problems := lost(pinned(command), found) if file.exists() else []:
            sys.exit(f"{command}: keys only grow\n" + "\n".join(problems))
        file.write_text("".join(f"{path}: {' | '.join(sorted(kinds))}\n" for path, kinds in sorted(found.items())))


if __name__ == "__main__":
    main()
