"""An offline Hugging Face cache that holds nothing but config.json files, written from `model_configs.yaml`."""

import json
import re
from pathlib import Path

import yaml

CONFIGS = Path(__file__).with_name("model_configs.yaml")
_COMMIT = re.compile(r"\"([0-9a-f]{40})\"")
_LATEST = "0" * 40  # stands for the commit of branch main


def write(hub: Path, recipes: Path) -> None:
    """Write the cache at ``hub``; every commit that Bridge's ``recipes`` pin gets the same file as the branch main."""
    commits = {_LATEST, *(c for file in recipes.rglob("*.py") for c in _COMMIT.findall(file.read_text()))}
    given = yaml.safe_load(CONFIGS.read_text())
    for name, fields in given["models"].items():
        text = json.dumps(given["shared"][fields.pop("like")] | fields, indent=1) + "\n"
        folder = hub / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(_LATEST)
        for commit in sorted(commits):
            snapshot = folder / "snapshots" / commit
            snapshot.mkdir(parents=True, exist_ok=True)
            (snapshot / "config.json").write_text(text)
