"""Writes recipes/README.md: the reference of recipe, suite and sweep files."""

import types
from typing import Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from harness.experiment.gpu import GPUS, PRECISIONS, Frozen
from harness.experiment.recompute import MODULES
from harness.experiment.user_buffers import METHODS, NAMED, UserBuffers
from harness.recipes.axes import SHORT_NAMES
from harness.recipes.find import recipes_dir
from harness.recipes.meanings import MEANINGS
from harness.recipes.recipe import PointKey, RecipeHeader
from harness.recipes.settings import SECTION_MODELS, TOP_SECTIONS
from harness.recipes.suite import THRESHOLD_METRICS, ExpectedOutcome
from harness.recipes.suite_file import read_suite, suite_files
from harness.recipes.sweep_file import read_sweep_file, sweep_files

SUITE_EXAMPLE = """\
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

_SUITE_TEXT = """\
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


def suite_section() -> str:
    """Markdown, ending in a newline. Lists the suites of this checkout."""
    return _SUITE_TEXT.format(
        example=SUITE_EXAMPLE,
        metrics=", ".join(f"`{name}`" for name in THRESHOLD_METRICS),
        outcomes=", ".join(f"`{name}`" for name in get_args(ExpectedOutcome)),
        files="\n".join(_suite_rows()),
    )


def _suite_rows() -> list[str]:
    directory = recipes_dir()
    suites = [read_suite(path.stem, directory) for path in suite_files(directory)]
    return [f"| `{suite.name}` | {len(suite.cases)} | {suite.title} | {suite.source} |" for suite in suites]


SWEEP_EXAMPLE = """\
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

_SWEEP_TEXT = """\
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


def sweep_section() -> str:
    """Markdown, ending in a newline. Lists the sweep files of this checkout."""
    return _SWEEP_TEXT.format(
        example=SWEEP_EXAMPLE, short=", ".join(f"`{name}`" for name in SHORT_NAMES), files="\n".join(_sweep_rows())
    )


def _sweep_rows() -> list[str]:
    directory = recipes_dir()
    rows = []
    for path in sweep_files(directory):
        sweep = read_sweep_file(path.stem, directory)
        rows.append(f"| `{path.stem}` | {sweep.title} | {sweep.source} |")
    return rows


EXAMPLE = """\
name: tiny
family: mine
title: A model of my own
model:
  num_layers: 4
  hidden_size: 256
  ffn_hidden_size: 896
  num_attention_heads: 8
  vocab_size: 2048
points:
  - task: pretrain
    gpu: cpu
    compute_dtype: fp32
    num_gpus: 2
    parallelism: {pipeline_model_parallel_size: 2}
    batch: {micro_batch_size: 1, global_batch_size: 4, seq_length: 512}
    recompute: core_attn
    kernels: {gradient_accumulation_fusion: false}
    measure: {max_steps: 12, skip_first_percent_time: 0.2}
    source: my own
"""
"""The smallest recipe that runs anywhere; a test reads and resolves it."""

_INTRO = """\
# Recipes

This file is generated: `python -m harness.recipes.reference > recipes/README.md`.

A recipe is a model and its operating points: `recipes/<family>/<name>.yaml`. `mbr-perf recipes list` shows all,
`recipes show NAME` one, `recipes validate [FILE...]` checks files and reports every problem with its line. Comparisons
of several settings are [sweep files](#sweep-files), nightly jobs are [suites](#suites), which `recipes suites [NAME]`
lists.

## Add a recipe

1. Write `recipes/<family>/<name>.yaml`; `name` and `family` repeat the file's and the folder's name. A file anywhere else
   works too: `-mr path/to/my.yaml`.
2. State where the figures come from in `sources` and in each point's `source`.
3. Give it a `cpu` point that keeps the model's character at a small size, so that it runs on any machine.
4. `mbr-perf recipes validate`.

```yaml
{example}```

## How values meet

Default < `model` and `defaults` < the point's `profile` (or each of a list, in order) < the point < command line, field
by field. `recompute` is one value and always replaced whole. An option that is not given says nothing. `null` under `env` takes a variable away.
`mbr-perf run --dryrun --explain` prints who said each value.

`-ng` other than a point's: the next larger point of the same GPU type and precision (else the largest) is used and the
global batch size follows the number of data-parallel copies, unless `-gb` is given.

A point whose `source` names a function of Megatron-Bridge equals what Bridge's `run_script.py` runs at that commit.
`scripts/audit-bridge-recipes BRIDGE_CHECKOUT` compares all of them with a checkout; differences that stay are listed with
their reasons in `scripts/audit-bridge-recipes.d/kept.yaml`.

YAML is read strictly: no duplicate keys, anchors, merge keys or tags; only `true` and `false` are booleans; numbers are
written so that YAML 1.1 and 1.2 agree (`1.0e-3`, not `1e-3`); text that looks like a number, date or time is quoted.

## recompute

| text | meaning |
|---|---|
| `none` | every activation is kept |
| `core_attn`, `mlp,core_attn` | these modules of every layer are recomputed |
| `full:uniform:N` | all layers, in units of N |
| `full:block:N` | the first N layers of each pipeline chunk |

Modules: {modules}.
A mapping with megatron-core's fields is read too (`recompute_granularity`, `recompute_method`, `recompute_num_layers`,
`recompute_modules`, `distribute_saved_activations`), and NeMo's `activations_checkpoint_granularity`, `_method` and
`_num_layers` and Megatron-LM's `recompute_activations: true`; each translation is noted when the recipe is used.
"""


_USER_BUFFERS = """\
## tp_comm_overlap_cfg

The user buffers of `kernels.tp_comm_overlap`: a mapping of GEMMs, or the name of one of Megatron-Bridge's configurations.
A GEMM that is left out keeps Transformer Engine's default. The value is replaced whole, like `recompute`.

```yaml
kernels:
  tp_comm_overlap: true
  tp_comm_overlap_cfg:
    qkv_dgrad: {{method: bulk, num_sm: 4, set_sm_margin: false}}
    proj_fprop: {{method: pipeline, num_sm: 24}}
```

| GEMM | methods |
|---|---|
{gemms}

| method | settings with their defaults |
|---|---|
{settings}

Names:

{names}
"""


def render() -> str:
    """The whole README as Markdown, ending in a newline."""
    parts = [
        _INTRO.format(
            example=EXAMPLE, modules=", ".join(f"`{name}` ({row.reexecutes})" for name, row in MODULES.items())
        ),
        _fields("The file", "file", RecipeHeader),
        "Then `model`, `defaults`, `profiles` (shared settings by name) and `points` (a list).\n",
        _fields("A point", "point", PointKey),
        f"GPU types: {_names(tuple(GPUS))}. Precisions: {_names(tuple(PRECISIONS))}.\n",
        f"Sections of a point, of `defaults` and of a profile: {_names(TOP_SECTIONS)}.\n",
    ]
    parts += [_fields(path, path, model) for path, model in SECTION_MODELS.items()]
    parts += [_user_buffers(), sweep_section(), suite_section()]
    return "\n".join(parts)


def _fields(title: str, section: str, model: type[Frozen]) -> str:
    about = " ".join((model.__doc__ or "").replace("``", "`").split())
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if f"{section}.{name}" not in SECTION_MODELS:
            rows.append(f"| `{name}` | {_type(info)} | {_default(info)} | {MEANINGS[section][name]} |")
    return f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n"


def _user_buffers() -> str:
    """The section about ``kernels.tp_comm_overlap_cfg``."""
    gemms = [
        f"| `{name}` | {' '.join(f'`{method}`' for method in _methods(info))} |"
        for name, info in UserBuffers.model_fields.items()
    ]
    settings = [
        f"| `{_method_of(model)}` | " + ", ".join(
            f"`{key}` {_default(info)}" for key, info in model.model_fields.items() if key != "method"
        ) + " |"
        for model in METHODS
    ]  # fmt: skip
    names = "\n".join(f"- `{name}`" for name in NAMED)
    return _USER_BUFFERS.format(gemms="\n".join(gemms), settings="\n".join(settings), names=names)


def _methods(info: FieldInfo) -> tuple[str, ...]:
    """Methods that a buffer may have."""
    offered = str(info.annotation)
    return tuple(_method_of(model) for model in METHODS if model.__name__ in offered)


def _method_of(model: type[Frozen]) -> str:
    return str(get_args(model.model_fields["method"].annotation)[0])


def _type(info: FieldInfo) -> str:
    return _annotation(info.annotation, tuple(info.metadata)).replace("|", "\\|")


def _annotation(annotation: object, bounds: tuple[object, ...]) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Literal:
        return " ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_annotation(get_args(annotation)[0], ())}"
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_annotation(arm, bounds) for arm in get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        constraints = [c for m in annotation.__metadata__ for c in getattr(m, "metadata", [m])]
        return _annotation(get_args(annotation)[0], (*bounds, *constraints))
    names = {int: "integer", float: "number", str: "text", bool: "true or false", UserBuffers: "mapping or name"}
    name = names[annotation] if isinstance(annotation, type) and annotation in names else str(annotation)
    limits = (_limit(bound) for bound in bounds if annotation in (int, float))
    return " ".join(filter(None, (name, *limits)))


def _limit(bound: object) -> str:
    for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if hasattr(bound, attribute):
            return f"{sign} {getattr(bound, attribute)}"
    return ""


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    if info.default == ():
        return "empty"
    return f"`{_yaml(info.default)}`"


def _yaml(value: object) -> str:
    """A default as it would be written in a recipe: 1.0e-05, not 1e-05, which YAML 1.1 reads as text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text.replace("e-", ".0e-") if isinstance(value, float) and "e-" in text and "." not in text else text


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
