"""Compares our recipes with one checkout of Megatron-Bridge; scripts/audit-bridge-recipes starts it."""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import offline_models
import options as bridge_options
from ask import bridge_points
from compare import Audit, audit

from harness.units import grouped

HERE = Path(__file__).parent
_WIDTH = 44  # characters of a value in the table


def main() -> int:
    """Finalise, compare, print; 0 when every difference is listed, 1 when not, 2 when the folder is no checkout."""
    options = _options()
    checkout: Path = options.checkout.resolve()
    megatron = (options.megatron_lm or checkout / "3rdparty" / "Megatron-LM").resolve()
    for path, remedy in (
        (checkout / "src/megatron/bridge/perf_recipes", "give a checkout of Megatron-Bridge 0.6 or newer"),
        (checkout / bridge_options.PARSER, "give a checkout of Megatron-Bridge 0.6 or newer"),
        (megatron / "megatron/core", "git submodule update --init 3rdparty/Megatron-LM, or give --megatron_lm PATH"),
    ):
        if not path.exists():
            print(f"{path}: no such file or folder\n  {remedy}", file=sys.stderr)
            return 2
    listed = bridge_options.read(checkout)
    if options.refresh_options:
        bridge_options.write(listed, checkout, bridge_options.COMMITTED)
        print(f"{len(listed)} options written to {bridge_options.COMMITTED}")
        return 0
    if options.only_check_paths:
        return 0
    with tempfile.TemporaryDirectory(prefix="audit-bridge-recipes-") as name:
        folder = Path(name)
        if not _finalise(options.bridge_python, checkout, megatron, folder):
            return 3
        found = audit(folder / "resolved")
        if options.record:
            _record(folder / "resolved", options.record)
    _show(found)
    changes = bridge_options.changes(listed)
    for change in changes:
        print(f"scripts/performance: {change}")
    return 0 if found.passed and not changes else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/audit-bridge-recipes", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of Megatron-Bridge")
    parser.add_argument("--megatron_lm", type=Path, help="Megatron-LM's checkout; else 3rdparty/Megatron-LM there")
    parser.add_argument("--record", type=Path, help="also write the resolved configurations to this .tar.xz file")
    parser.add_argument(
        "--refresh_options",
        action="store_true",
        help="only rewrite mbr-perf's list of the options of scripts/performance",
    )
    parser.add_argument("--bridge_python", default="", help=argparse.SUPPRESS)
    parser.add_argument("--only_check_paths", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _finalise(python: str, checkout: Path, megatron: Path, folder: Path) -> bool:
    """Run `finalise.py` in Bridge's environment, without a network; its narration goes to stderr when it fails."""
    requests, hub = folder / "requests.json", folder / "huggingface"
    requests.write_text(json.dumps([point.request for point in bridge_points()]))
    offline_models.write(hub / "hub", checkout / "src/megatron/bridge/recipes")
    environment = {
        **os.environ, "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{megatron}",
    }  # fmt: skip
    command = [python, str(HERE / "finalise.py"), str(requests), str(folder / "resolved")]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"{run.stderr[-4000:]}\nMegatron-Bridge's recipes could not be resolved (above)", file=sys.stderr)
    return run.returncode == 0


def _record(folder: Path, archive: Path) -> None:
    def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(folder.rglob("*.*")):
            tar.add(path, str(path.relative_to(folder)), filter=without_owner)


def _show(found: Audit) -> None:
    groups = grouped(
        ((each.field, each.ours[:_WIDTH], each.theirs[:_WIDTH], each.kept is not None), each)
        for each in found.differences
    )
    print(f"{'field':<40} {'ours':<{_WIDTH}} {'Megatron-Bridge':<{_WIDTH}} points")
    for (field, ours, theirs, listed), rows in sorted(groups.items(), key=lambda item: (item[0][3], item[0][0])):
        places = f"{len(rows)} (listed)" if listed else f"{len(rows)} NOT LISTED: {', '.join(r.point for r in rows)}"
        print(f"{field:<40} {ours:<{_WIDTH}} {theirs:<{_WIDTH}} {places}")
    for name in found.absent:
        print(f"no configuration for {name}")
    for name in found.without_point:
        print(f"no recipe point has {name} as its source")
    for row in found.stale:
        print(f"kept.yaml lists {row.field} of {', '.join(row.points)}, which no longer differs: drop the entry")
    print(
        f"{found.num_points} points, {found.num_fields} fields, {len(found.differences)} differences, "
        f"{len(found.unlisted)} of them not listed in {HERE.name}/kept.yaml"
    )


if __name__ == "__main__":
    sys.exit(main())
