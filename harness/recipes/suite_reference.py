"""The part of recipes/README.md about suites: an example, the keys, and the suites there are."""

from typing import get_args

from harness.recipes.find import recipes_dir
from harness.recipes.suite import THRESHOLD_METRICS, ExpectedOutcome
from harness.recipes.suite_file import read_suite, suite_files

EXAMPLE = """\
title: Two cases
source: my own
defaults:
  repeats: 3
  owner: team-x
  thresholds: {tflops_per_gpu: 0.05}
  request: {gpu: cpu, max_steps: 5, eval_time_start_step: 2}
cases:
  - request: {model_recipe_name: llama3_8b, recompute: [none, mlp]}
    thresholds: {peak_allocated_bytes: 0.02}
  - name: moe_under_a_limit
    request: {model_recipe_name: mixtral_8x7b, memory_limit: 0.2}
    golden: optional
    expected: {outcome: oom, until: "2027-01-31", reason: tried for a smaller device}
"""
"""A suite that runs anywhere; a test reads and resolves it."""

_TEXT = """\
## Suites

What a nightly job runs is a file: `recipes/suites/<name>.yaml`, or any path. `mbr-perf nightly NAME` runs it, `--dryrun`
shows its cases. Faults are told with their lines, all at once. A case says what departs from `defaults`: options one by
one, recompute as one value, thresholds by metric.

```yaml
{example}```

| key | of | meaning |
|---|---|---|
| `title`, `source` | file | what the suite is for, and where its cases are from |
| `request` | both | long names of `mbr-perf run`'s options and their values; in a case `recompute` may be a list, one case for each |
| `repeats` | both | runs of the case, 1 where nothing is said |
| `thresholds` | both | allowed worsening by metric, a fraction; else the GPU type's. Metrics: {metrics} |
| `golden` | both | `required`, as where nothing is said: inconclusive without one; `optional`: passes without one |
| `owner` | both | whom to ask |
| `timeout` | both | seconds for one run |
| `name` | case | names its folder; else made of recipe, task, precision, GPUs, variant and recompute, as far as said |
| `expected` | case | a known failure that does not make the night red: `outcome` ({outcomes}), `until`, the last day that it counts, and `reason` |

| suite | cases | about | source |
|---|---|---|---|
{files}
"""


def section() -> str:
    """Markdown, ending in a newline. Lists the suites of this checkout."""
    return _TEXT.format(
        example=EXAMPLE,
        metrics=", ".join(f"`{name}`" for name in THRESHOLD_METRICS),
        outcomes=", ".join(f"`{name}`" for name in get_args(ExpectedOutcome)),
        files="\n".join(_rows()),
    )


def _rows() -> list[str]:
    directory = recipes_dir()
    suites = [read_suite(path.stem, directory) for path in suite_files(directory)]
    return [f"| `{suite.name}` | {len(suite.cases)} | {suite.title} | {suite.source} |" for suite in suites]
