"""The part of recipes/README.md about sweep files: an example, the keys, what can be varied, and the files there are."""

from harness.recipes.axes import SHORT_NAMES
from harness.recipes.find import recipes_dir
from harness.recipes.sweep_file import read_sweep_file, sweep_files

EXAMPLE = """\
title: Does recompute buy a larger micro-batch?
source: a question of my own
request:
  model_recipe_name: llama3_8b
  gpu: cpu
  num_layers: 4
  memory_limit: 0.08
over:
  recompute: [none, mlp, "full:uniform:1"]
  mb: [1, 2]
grid: true
repeats: 3
"""
"""A sweep file that runs anywhere; a test reads and resolves it."""

_TEXT = """\
## Sweep files

A comparison worth repeating is a file: `recipes/sweeps/<name>.yaml`, or any path. `mbr-perf sweep --file NAME` runs it,
`--dryrun` shows its cells; what the command line says wins. Faults are told with their lines, all at once.

```yaml
{example}```

| key | meaning |
|---|---|
| `title` | what the comparison is about |
| `source` | where it is known from |
| `request` | long names of `mbr-perf run`'s options and their values; `model_recipe_name` is needed |
| `over` | the values of every axis; `recompute: auto` stands for every setting that differs in effect |
| `grid` | `true`: every combination; else one change at a time from the control |
| `repeats` | runs of each cell, interleaved; three or more give intervals of confidence |
| `control` | `AXIS=VALUE ...` of the cell that the others are held against; else the request itself, without recompute where it is varied |

Axes: `recompute`, {short}, any other long option, `env.NAME`, `section.field`.

| file | about | source |
|---|---|---|
{files}
"""


def section() -> str:
    """Markdown, ending in a newline. Lists the sweep files of this checkout."""
    return _TEXT.format(example=EXAMPLE, short=", ".join(f"`{name}`" for name in SHORT_NAMES), files="\n".join(_rows()))


def _rows() -> list[str]:
    directory = recipes_dir()
    rows = []
    for path in sweep_files(directory):
        sweep = read_sweep_file(path.stem, directory)
        rows.append(f"| `{path.stem}` | {sweep.title} | {sweep.source} |")
    return rows
