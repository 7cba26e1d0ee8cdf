"""Examples that the help of every command shows: real command lines, to copy."""

import shlex
from collections.abc import Mapping

_PLAN = "plan -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32"

TASKS = (
    ("I have a model and GPUs. Which recompute setting fits, and what does it cost?", _PLAN),
    ("My job ran out of memory, or became slow. Why?", "diagnose train.log"),
    ("I have a training log and golden values. Is it a regression?", "compare --log train.log --golden golden.json"),
    (
        "Which setting is best on this machine? Measure it.",
        "sweep -mr llama3_8b --over recompute='none; mlp' --repeats 3",
    ),
    ("Is tonight's build still as good as yesterday's?", "nightly cpu_smoke --junit junit.xml --html pages"),
)
"""What people come for, and the command for it, without the program's name."""

_EXAMPLES = """
run -mr llama3_8b --recompute_modules core_attn,layernorm
run -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32 --dryrun --explain
run -mr llama3_8b --ab recompute=mlp --repeats 3

check -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32 -tp 8
check --bridge_config run_config.yaml -g h100 --explain
check -mr llama3_8b -g h100 --recompute mlp --assume megatron-core=0.19.2

plan -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32
plan -mr llama3_70b -g h100 -c bf16 -ng 64 --over tp=2,4,8 pp=4,8
plan -mr deepseek_v3 -g h100 -c fp8_sc -ng 1024 --html plan.html --png plan.png

sweep -mr llama3_8b --over recompute='none; mlp; full:uniform:1' --repeats 3
sweep --file cpu_dense --dryrun
sweep --resume SWEEP

recipes export llama3_70b.sft.h100.fp8_cs.32 --as bridge
recipes export llama3_70b.sft.h100.fp8_cs --recompute mlp --as bridge
recipes export qwen3_30b_a3b.pretrain.h100.bf16.16 --as yaml

recipes new --hf Meta-Llama-3-70B -g h100 -ng 64 -tp 4 -pp 4 -o my_llama.yaml
recipes new --megatron_args train.sh -g h100 -o my_job.yaml
recipes new -mr llama3_8b -g h100 --recompute mlp -o my_llama3_8b.yaml

report SWEEP
report SWEEP --format html --out pages
report SWEEP --json

nightly cpu_smoke --junit junit.xml --html pages
nightly h100_nightly --only 'llama3_70b*' --dryrun
nightly --resume NIGHT

compare --log logs/ --golden golden.json --check_loss
compare new.log old.log
compare RUN OTHER_RUN

explain RUN
explain RUN OTHER_RUN
explain RUN HEAD~1:h100/llama3_70b.sft.fp8_cs.32gpu.core_attn

diagnose train.log
diagnose logs/ -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32
diagnose RUN

import --log train.log -mr llama3_8b -g h100
import --log none=a.log mlp=b.log -mr llama3_70b --task sft -g h100 -c fp8_cs
import --log logs/ -mr llama3_8b -g h100 --started_at 2026-01-31T22:00

snapshot oom.pickle
snapshot oom.pickle --what_if expandable_segments:True --what_if max_split_size_mb:128 --device_gib 80
snapshot RUN/ranks/snapshot_000.pickle

doctor
doctor --results_dir /scratch/results
doctor --json

schema
schema run
schema golden list

help
help plan
help golden promote

golden promote RUN RUN RUN --reason 'new driver'
golden promote NIGHT --every --reason 'new driver' --markdown pr.md
golden promote RUN --reason 'first golden' --dryrun

golden list
golden list --retired
golden list --json

golden show h100/llama3_70b.sft.fp8_cs.32gpu.core_attn
golden show golden.json
golden show h100/llama3_70b.sft.fp8_cs.32gpu.core_attn --json

golden diff HEAD~1:h100/llama3_70b.sft.fp8_cs.32gpu.core_attn RUN
golden diff before.json after.json --markdown -
golden diff RUN OTHER_RUN --json

golden retire cpu/llama3_8b.pretrain.fp32.2gpu.mlp --reason 'the point changed'
golden retire golden.json --reason 'wrong driver' --author me
golden retire golden.json --reason 'wrong driver' --json

golden export RUN -o golden.json
golden export h100/llama3_70b.sft.fp8_cs.32gpu.core_attn --format bridge
golden export RUN --json

history show
history show llama3_70b.sft --chart trend.html
history show llama3_70b.sft --metric peak_allocated_bytes --since 2026-01-31

history add RUN
history add SWEEP NIGHT
history add RUN --json

jobs submit JOB
jobs submit JOB --results_dir /scratch/results
jobs submit JOB --json

jobs status JOB
jobs status 4711
jobs status JOB --json

jobs wait JOB
jobs wait JOB --timeout 3600
jobs wait JOB --json

jobs cancel JOB
jobs cancel 4711
jobs cancel JOB --json

recipes list
recipes list --gpu h100
recipes list --json

recipes show llama3_70b
recipes show my_recipe.yaml
recipes show llama3_70b --json

recipes validate
recipes validate my_recipe.yaml
recipes validate --recipes_dir my_recipes --json

recipes suites
recipes suites h100_nightly
recipes suites my_suite.yaml --json

results list
results list --results_dir /scratch/results
results list --json

results show RUN
results show SWEEP --results_dir /scratch/results
results show RUN --json

results doctor
results doctor --results_dir /scratch/results
results doctor --json

results archive RUN -o run.tar.gz
results archive SWEEP -o sweep.tar.gz --max_mib 500
results archive RUN -o run.tar.gz --json

rules list
rules list --severity error
rules list --json

rules show T08
rules show G22
rules show T08 --json
"""


def examples() -> Mapping[str, tuple[str, ...]]:
    """Command lines by command (``golden list``), without the program's name."""
    blocks = [tuple(block.splitlines()) for block in _EXAMPLES.strip().split("\n\n")]
    return {_command(block): block for block in blocks}


def _command(block: tuple[str, ...]) -> str:
    first = shlex.split(block[0])
    return " ".join(first[:2]) if first[0] in _GROUPS else first[0]


_GROUPS = ("golden", "history", "jobs", "recipes", "results", "rules")
