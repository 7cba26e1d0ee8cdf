"""Files and names from anywhere: what YAML would do beyond saying values, and ways out of the folders that are ours."""

import json
from pathlib import Path

import pytest

from tests.commands import REPLAYS

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML_ATTACKS = {
    "duplicate key": "name: again",
    "alias": "a: &x 1",
    "alias bomb": BOMB,
    "not finite": "a: .inf",
    "exponent": "a: 1e-3",
    "no": "a: no",
    "octal": "a: 010",
    "base 60": "a: 12:30",
    "program": "a: !!python/object/apply:os.system ['touch {marker}']",
}
ASKED_BY = {"recipe": ("run", "-mr"), "suite": ("nightly",), "sweep": ("sweep", "--file")}


@pytest.mark.parametrize("attack", YAML_ATTACKS)
@pytest.mark.parametrize("kind", ASKED_BY)
def test_no_file_of_ours_may_do_more_than_say_values(mbr_perf, tmp_path, kind, attack):
    path, marker = tmp_path / "file.yaml", tmp_path / "ran"
    path.write_text("name: mine\n" + YAML_ATTACKS[attack].replace("{marker}", str(marker)) + "\n")
    answer = mbr_perf(*ASKED_BY[kind], path, "--dryrun", "--results_dir", tmp_path / "results")
    assert (answer.code, f"{path}:2: " in answer.err) == (2, True), answer.err
    assert not marker.exists()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [false]", "&a 3", "1e-3", "010", ".nan"])
def test_an_option_may_not_either(mbr_perf, text):
    answer = mbr_perf("check", "-mr", "llama3_8b", "-g", "cpu", "--set", f"model.num_layers={text}")
    assert (answer.code, "--set model.num_layers: " in answer.err) == (2, True)


@pytest.mark.parametrize("kind", ASKED_BY)
@pytest.mark.parametrize("name", ["../../../../etc/passwd", "a\0b", "..", "/dev/zero"])
def test_a_name_that_leads_elsewhere_is_a_wrong_request(mbr_perf, tmp_path, kind, name):
    answer = mbr_perf(*ASKED_BY[kind], name, "--dryrun", "--results_dir", tmp_path / "results")
    assert answer.code == 2, answer.err
    assert "root:" not in answer.err
    assert not (tmp_path / "results").exists()


def test_a_link_out_of_the_recipe_directory_is_not_followed(mbr_perf, tmp_path):
    (tmp_path / "outside.yaml").write_text((REPLAYS / "replayed.yaml").read_text())
    for folder in ("llama", "suites", "sweeps"):
        (tmp_path / "recipes" / folder).mkdir(parents=True)
        (tmp_path / "recipes" / folder / "replayed.yaml").symlink_to(tmp_path / "outside.yaml")
    for command in ASKED_BY.values():
        answer = mbr_perf(*command, "replayed", "--recipes_dir", tmp_path / "recipes", "--dryrun")
        assert (answer.code, "replayed.yaml" in answer.err, " link " in answer.err) == (2, True, True), answer.err


@pytest.mark.parametrize("family", ["../llama", "/", "llama/../llama", "\0"])
def test_a_family_is_a_name(mbr_perf, family):
    answer = mbr_perf("run", "-m", family, "-mr", "llama3_8b", "--dryrun")
    assert (answer.code, "error: -m " in answer.err) == (2, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "../../escaped"},
        {"spec": {"recipe": "../../escaped"}},
        {"spec": {"gpu": "../../escaped"}},
        {"spec": {"compute_dtype": "../escaped"}},
    ],
)
def test_a_record_of_somebody_else_writes_nothing_outside(mbr_perf, run, tmp_path, changes):
    record = Path(run("a")) / "record.json"
    document = json.loads(record.read_text())
    document["spec"] |= changes.get("spec", {})
    record.write_text(json.dumps(document | {name: value for name, value in changes.items() if name != "spec"}))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    own = ("--results_dir", tmp_path / "results")
    answers = [
        mbr_perf(
            "golden", "promote", record.parent, "--reason", "x", "--golden_dir", tmp_path / "deep" / "er" / "golden"
        ),
        mbr_perf("history", "add", record.parent, *own),
    ]
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    inside = (tmp_path / "deep" / "er" / "golden", tmp_path / "results" / "history")
    assert [path for path in made if not any(path.is_relative_to(folder) for folder in inside)] == []
    assert 2 in {answer.code for answer in answers} or "run_id" in changes  # no id names a file
    assert {answer.code for answer in answers} <= {0, 2}


@pytest.mark.parametrize("name", ["../../../etc/passwd", "a\0b", "*"])
def test_no_command_takes_a_name_for_what_it_is_not(mbr_perf, tmp_path, name):
    own = ("--results_dir", tmp_path)
    for command in (
        ("compare", name, *own),
        ("explain", name, *own),
        ("report", name),
        ("results", "show", name, *own),
        ("results", "archive", name, "-o", tmp_path / "x.tar.gz", *own),
        ("golden", "show", name, "--golden_dir", tmp_path),
        ("history", name, *own),
        ("jobs", "status", name, *own),
        ("snapshot", name),
    ):
        answer = mbr_perf(*command)
        assert answer.code == 2, (command, answer.err)
        assert "root:" not in answer.out + answer.err
    assert list(tmp_path.iterdir()) == []
