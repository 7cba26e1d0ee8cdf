"""An archive is safe to share: no secrets, no home folders, nothing from outside, and the same bytes each time."""

import json
import os
import tarfile
from pathlib import Path

import pytest

from harness.results.archive import Places, archive, shareable
from tests.commands import refused

NOWHERE = Places(())


@pytest.fixture(name="folder")
def _folder(tmp_path):
    folder = tmp_path / "20260102T000000Z-a-00000000"
    (folder / "logs").mkdir(parents=True)
    (folder / "record.json").write_text('{"environment": {"HF_TOKEN": "abc", "HOME": "/home/ada"}, "n": 1.5}\n')
    (folder / "logs" / "rank_000.log").write_text("loading /home/ada/data\nWANDB_API_KEY=s3cr3t\n")
    return folder


def unpacked(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


def test_every_text_is_redacted_and_json_stays_json(folder, tmp_path):
    written = archive(folder, tmp_path / "a.tar.gz", NOWHERE)
    files = unpacked(written.path)
    assert set(files) == {f"{folder.name}/record.json", f"{folder.name}/logs/rank_000.log"}
    assert json.loads(files[f"{folder.name}/record.json"]) == {
        "environment": {"HF_TOKEN": "***", "HOME": "~"}, "n": 1.5,
    }  # fmt: skip
    assert files[f"{folder.name}/logs/rank_000.log"] == b"loading ~/data\nWANDB_API_KEY=***\n"
    assert (written.files, written.left_out) == (2, ())


def test_the_same_folder_gives_the_same_bytes(folder, tmp_path):
    archive(folder, tmp_path / "a.tar.gz", NOWHERE)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    (folder / "record.json").chmod(0o600)
    archive(folder, tmp_path / "b.tar.gz", NOWHERE)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_links_are_left_out_and_named(folder, tmp_path):
    (tmp_path / "secret").write_text("x")
    links = {
        "again.log": "logs/rank_000.log",
        "circle": "circle",
        "gone": "nowhere",
        "out": "../secret",
        "ranks": tmp_path,
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    written = archive(folder, tmp_path / "a.tar.gz", NOWHERE)
    assert written.left_out == tuple(f"{name}: a link" for name in links)
    assert (written.files, len(unpacked(written.path))) == (2, 2)


def test_a_failed_archive_leaves_no_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tarfile.TarFile.addfile", lambda *_: os.open(tmp_path, os.O_WRONLY))
    refused(lambda: archive(folder, tmp_path / "a.tar.gz", NOWHERE), "a.tar.gz: cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_all_problems_are_named_at_once(folder, tmp_path):
    (tmp_path / "there.zip").touch()
    path = tmp_path / "there.zip"
    refused(lambda: archive(folder, path, NOWHERE), str(path), ".tar.gz", "exists", num=2)


def test_pictures_are_kept_and_other_binaries_are_named(folder, tmp_path):
    (folder / "chart.png").write_bytes(b"\x89PNG\xff")
    (folder / "core").write_bytes(b"\x7fELF\xff")
    written = archive(folder, tmp_path / "a.tar.gz", NOWHERE)
    assert [each.startswith("core: ") for each in written.left_out] == [True]
    assert unpacked(written.path)[f"{folder.name}/chart.png"] == b"\x89PNG\xff"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("/home/ada/x /Users/ada/y", "~/x ~/y"),
        ("file:///home/ada/x", "file://~/x"),
        ("--out=/root/x", "--out=~/x"),
        ("/data/root/x /homes/ada", "/data/root/x /homes/ada"),
        ("/srv/results/runs/1", "RESULTS/runs/1"),
        ("/srv/results2/runs", "/srv/results2/runs"),
    ],
)
def test_paths_contain_neither_user_nor_folder(text, hidden):
    assert Places.of([(Path("/srv/results"), "RESULTS")]).hidden(text) == hidden


def test_a_truncated_heartbeat_is_kept_as_text():
    text = '{"a": "/home/ada/x"}\n{"b": "/home/ada'
    assert shareable("rank_000.progress.jsonl", text, NOWHERE) == '{"a": "~/x"}\n{"b": "~\n'


def test_only_variables_are_redacted_by_their_name():
    text = '{"moe_token_dispatcher_type": "alltoall", "env": {"my_token": "abc"}, "X": {"API_KEY": "abc"}}'
    assert json.loads(shareable("spec.json", text, NOWHERE)) == {
        "moe_token_dispatcher_type": "alltoall", "env": {"my_token": "***"}, "X": {"API_KEY": "***"},
    }  # fmt: skip


def test_a_page_keeps_its_script(tmp_path):
    page = "<script>const o={token:1,key: abc};</script>/home/ada/x"
    assert shareable("report.html", page, NOWHERE) == "<script>const o={token:1,key: abc};</script>~/x"


def test_the_value_of_a_named_pair_is_masked_in_json() -> None:
    pairs = [
        {"name": "HF_TOKEN", "value": "CANARY0123456789ABCDEF"},
        {"name": "LR", "value": "1"},
        {"name": 1, "value": "x"},
    ]
    masked = [pairs[0] | {"value": "***"}, *pairs[1:]]
    assert json.loads(shareable("a.json", json.dumps(pairs), Places.of(()))) == masked
