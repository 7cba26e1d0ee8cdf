"""A file is written whole or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.records.store import write_atomically, write_once


def test_the_file_is_not_readable_by_everyone(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, "x")
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_link_planted_at_the_temporary_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None]
) -> None:
    """The name is drawn by chance; here the attacker has guessed it."""
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "0" * 2 * num_bytes)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".record.json.000000000000.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(tmp_path / "record.json", "theirs")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "record.json").exists()
