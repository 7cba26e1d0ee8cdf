"""The guides name every option, link to what exists, and show commands that mbr-perf takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from harness.app import app

ROOT = Path(__file__).parents[1]
GUIDES = sorted(
    path for folder in (".", "recipes", "results", "scripts", "harness") for path in (ROOT / folder).glob("README.md")
) + sorted((ROOT / "harness").glob("*/**/README.md"))
COMMAND = typer.main.get_command(app)
# Features by the names of their folders; the guide of a feature lies in it.
FEATURES = ("runs", "sweep", "night", "night/history", "plan", "explain", "diagnose", "diagnose/snapshots", "imports",
            "goldens", "jobs", "results", "catalogue")  # fmt: skip


def commands(command=COMMAND, name=""):
    inside = getattr(command, "commands", None)
    if inside:
        for word, inner in inside.items():
            yield from commands(inner, f"{name} {word}".strip())
    else:
        yield name, command


def anchors(path):
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_has_its_guide(feature):
    guide = ROOT / "harness" / feature / "README.md"

    assert guide.exists()
    assert f"(harness/{feature}/README.md)" in (ROOT / "README.md").read_text()


def test_every_option_is_named_in_a_guide():
    text = "\n".join(path.read_text() for path in GUIDES)
    options = {option for _, command in commands() for parameter in command.params for option in parameter.opts}

    unnamed = [
        option for option in sorted(options) if option.startswith("--") and not re.search(rf"{option}(?![\w])", text)
    ]

    assert unnamed == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_exists(guide):
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", guide.read_text()):
        assert target.startswith("http") or (guide.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", guide.read_text()):
        if not target.startswith("http"):
            assert anchor in anchors(guide.parent / target if target else guide), f"{target}#{anchor}"


def shown(guide):
    """Every line inside a block that runs mbr-perf."""
    for block in re.findall(r"^```\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE):
        yield from (line for line in block.splitlines() if line.removeprefix("scripts/").startswith("mbr-perf "))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_a_guide_shows_exist_with_their_options(guide):
    by_name = dict(commands())
    for line in shown(guide):
        words = shlex.split(line.partition(" #")[0])[1:]
        name = next((name for name in (" ".join(words[:2]), f"{words[0]} show", words[0]) if name in by_name), None)
        assert name, line
        known = {option for parameter in by_name[name].params for option in parameter.opts}
        given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        assert [option for option in given if option not in known] == [], line
