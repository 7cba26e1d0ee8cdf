"""Repositories of megatron-core with planted changes, a commit for each state of the package."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

Edit = tuple[str, str, str]
"""A file of megatron/core, a text in it that occurs once, and the text that takes its place."""

# Each layer keeps two more tensors of the size of its input; the MLP is not recomputed; each MLP sleeps; a syntax error.
LARGER: Edit = (
    "transformer/transformer_layer.py",
    '        kwargs.pop("dynamic_inference_decode_only", None)\n        hidden_states, context =',
    '        kwargs.pop("dynamic_inference_decode_only", None)\n        args = (args[0].sin().cos(), *args[1:]) if args else args  # more memory\n'
    '        if "hidden_states" in kwargs:\n            kwargs["hidden_states"] = kwargs["hidden_states"].sin().cos()\n'
    "        hidden_states, context =",
)
NO_RECOMPUTE: Edit = ("transformer/transformer_layer.py", "self.recompute_mlp = True", "self.recompute_mlp = False")
SLOWER: Edit = (
    "transformer/mlp.py",
    '        nvtx_range_push(suffix="linear_fc1")\n        intermediate_parallel, bias_parallel',
    '        __import__("time").sleep(0.2)\n        nvtx_range_push(suffix="linear_fc1")\n        intermediate_parallel, bias_parallel',
)
BROKEN: Edit = ("transformer/mlp.py", "class MLP(MegatronModule):", "class MLP(MegatronModule: # broken")
MENDED: Edit = (BROKEN[0], BROKEN[2], BROKEN[1])


def git(folder: Path, *arguments: str) -> str:
    """Run git there as a user without settings."""
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(("git", "-C", folder, *arguments), env={**os.environ, **who}, capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.strip()


def repository(folder: Path, num_commits: int, edits: Mapping[int, Sequence[Edit]]) -> tuple[Path, list[str]]:
    """Make a repository whose commit ``place`` has the edits planted there. Return it, and the commits, good first."""
    (installed,) = find_spec("megatron").submodule_search_locations
    shutil.copytree(
        Path(installed) / "core", folder / "megatron" / "core", ignore=shutil.ignore_patterns("__pycache__")
    )
    git(folder, "init", "-q")
    shas = []
    for place in range(num_commits + 1):
        for name, old, new in edits.get(place, ()):
            path = folder / "megatron" / "core" / name
            text = path.read_text()
            assert text.count(old) == 1, (name, text.count(old))
            path.write_text(text.replace(old, new))
        (folder / "megatron" / "core" / "place.txt").write_text(f"{place}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"Change {place}")
        shas.append(git(folder, "rev-parse", "HEAD"))
    return folder, shas


def pinning(folder: Path, *stacks: str) -> list[str]:
    """Make a repository whose commits have these requirements.txt. Return the commits."""
    folder.mkdir()
    git(folder, "init", "-q")
    shas = []
    for stack in stacks:
        (folder / "requirements.txt").write_text(f"{stack}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", stack[-40:])
        shas.append(git(folder, "rev-parse", "HEAD"))
    return shas


def wheel(folder: Path, version: str, edit: Edit) -> Path:
    """Pack the installed megatron-core with one edit as a wheel of this version."""
    (installed,) = find_spec("megatron").submodule_search_locations
    path, (name, old, new) = folder / f"megatron_core-{version}-py3-none-any.whl", edit
    about = f"megatron_core-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        for file in sorted(Path(installed, "core").rglob("*")):
            inner = str(file.relative_to(installed))
            if file.is_file() and "__pycache__" not in inner:
                changed = inner == f"core/{name}"
                packed.writestr(
                    f"megatron/{inner}", file.read_text().replace(old, new) if changed else file.read_bytes()
                )
        packed.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n")
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    return path
