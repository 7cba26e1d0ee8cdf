"""`mbr-perf schema`, and the keys that other programs rely on."""

import json

import pytest
from jsonschema import Draft202012Validator

from harness.app import app
from tests.pinned_schemas import DOCUMENTS, file_of, keys_of, lost, pinned


def commands(group, *above):
    """Yield every command that takes --json, as it is typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        elif any("--json" in each.opts for each in command.params):
            yield " ".join((*above, name)).replace("history show", "history")


def test_every_command_that_takes_json_has_a_schema():
    import typer.main

    assert set(commands(typer.main.get_command(app))) == set(DOCUMENTS)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_keys_only_grow_and_new_ones_are_pinned(command):
    found = keys_of(command)
    assert lost(pinned(command), found) == []
    assert pinned(command) == found, "python -m tests.pinned_schemas pins the new keys"


def test_every_pinned_file_belongs_to_a_command():
    assert {file.name for file in file_of("run").parent.iterdir()} == {file_of(command).name for command in DOCUMENTS}


def test_a_schema_is_printed_as_json(mbr_perf):
    answer = mbr_perf("schema", "golden", "list")
    schema = json.loads(answer.out)
    Draft202012Validator.check_schema(schema)
    assert (answer.code, schema["$schema"]) == (0, "https://json-schema.org/draft/2020-12/schema")
    assert schema["$defs"]["GoldensDocument"]["required"] == ["schema_version", "goldens", "damaged"]


def test_without_a_command_the_commands_with_a_schema_are_listed(mbr_perf):
    assert mbr_perf("schema").out.splitlines() == list(DOCUMENTS)
    assert json.loads(mbr_perf("schema", "--json").out) == {"schema_version": 1, "commands": list(DOCUMENTS)}


@pytest.mark.parametrize(
    ("typed", "hint"), [("runn", "'run'"), ("golden", ": golden export, golden list"), ("help", "")]
)
def test_an_unknown_command_is_refused_with_the_nearest_names(mbr_perf, typed, hint):
    answer = mbr_perf("schema", typed)
    assert (answer.code, answer.out) == (2, "")
    assert f"schema {typed}: " in answer.err
    assert hint in answer.err


def test_a_later_release_with_more_keys_fits_the_schema(mbr_perf):
    schema = json.loads(mbr_perf("schema", "rules", "list").out)
    document = json.loads(mbr_perf("rules", "list", "--json").out)
    assert Draft202012Validator(schema).is_valid(document | {"more": 1})
    assert not Draft202012Validator(schema).is_valid({"schema_version": 1})
