"""Options that several commands take: their types and groups."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import typer

from harness.cli import completion
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.modules import MODULES
from harness.records.launch import HANG_TIMEOUT_S, SAMPLE_INTERVAL_MS

_Group = TypeVar("_Group")

MODEL = "Model and GPUs"
_OWN_JOB = "Your own job (instead of -mr)"
_ENGINE = "Engine"
_SIZES = "Sizes and batch"
_PARALLEL = "Parallelism"
_MEMORY = "Memory"
_RECOMPUTE = "Recompute, offloading, CUDA graphs"
_JUDGE = "Judging"
_LAUNCH = "Launching"
_OUTPUT = "Output"
_NODES = "Several nodes"
_JOBS = "Jobs (with --launcher slurm or kubeflow)"
_SLURM = "Slurm (with --launcher slurm)"
_KUBEFLOW = "Kubernetes (with --launcher kubeflow)"


def option(
    metavar: str, text: str, *names: str, completes: completion.Completer | None = None, min: int | None = None
) -> Any:
    """Return an option with a value. Its long name is its field's, unless ``names`` has one."""
    return typer.Option(*names, help=text, metavar=metavar, autocompletion=completes, min=min)


def flag(text: str, *names: str) -> Any:
    """Return an option without a value, named in the same way."""
    return typer.Option(*names, help=text)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(panel: str | Mapping[str, str] | None = None) -> Callable[[type[_Group]], type[_Group]]:
    """Decorate a frozen dataclass of options. ``panel``: its group in help; of several, by their first option."""

    def decorate(group: type[_Group]) -> type[_Group]:
        title = None if isinstance(panel, Mapping) else panel
        for name, hint in inspect.get_annotations(group).items():
            title = panel.get(name, title) if isinstance(panel, Mapping) else title
            given = copy(hint.__metadata__[0])
            if isinstance(given, typer.models.OptionInfo):
                names = [str(each) for each in (given.default, *(given.param_decls or ())) if each is not ...]
                is_named = any(each.startswith("--") for each in names)
                given.default, given.param_decls = ..., tuple(names if is_named else (f"--{name}", *names))
                given.rich_help_panel = title or None
                group.__annotations__[name] = Annotated[hint.__origin__, given]
        return dataclass(frozen=True, kw_only=True)(group)

    return decorate


# fmt: off
Json = Annotated[bool, flag("One JSON document on stdout.", "--json")]
Explain = Annotated[bool, flag("Print the source of every setting.", "--explain")]
GoldenDir = Annotated[Path | None, option("DIR", "Folder of goldens. Default: results/golden.", "--golden_dir")]
Results = Annotated[Path | None, option("DIR", "Where results are kept. Default: results of the checkout, "
    "else ./results.", "--results_dir")]


@options({
    "model_family_name": MODEL, "bridge_config": _OWN_JOB, "max_steps": _SIZES,
    "tensor_model_parallel_size": _PARALLEL, "memory_limit": _MEMORY, "recompute_modules": _RECOMPUTE})
class ExperimentOptions:
    """What to run."""

    model_family_name: Annotated[str | None, option("FAMILY", "Family; checked against the recipe.", "-m",
        completes=completion.families)] = None
    model_recipe_name: Annotated[str, option("RECIPE", "A recipe name (`mbr-perf recipes list`) or a recipe file.",
        "-mr", completes=completion.recipes)] = ""
    task: Annotated[str | None, option("TASK", f"{', '.join(completion.TASKS)}; pretrain is the default.",
        completes=completion.tasks)] = None
    gpu: Annotated[str | None, option("GPU", f"{', '.join(GPUS)}. Default: this machine's or the log's; without one "
        "cpu, or for plan and check the recipe's GPU point.", "-g", completes=completion.gpus)] = None
    point_gpu: Annotated[str | None, option("GPU", "Use the recipe's operating point of another GPU type.",
        completes=completion.gpus)] = None
    compute_dtype: Annotated[str | None, option("DTYPE", f"{', '.join(PRECISIONS)}; fp32 works on cpu only.", "-c",
        completes=completion.precisions)] = None
    num_gpus: Annotated[int | None, option("N", "GPUs in all. Default: those of the operating point.", "-ng")] = None
    gpus_per_node: Annotated[int | None, option("N", "GPUs per node. Default: those of the GPU type.", "-gn")] = None
    variant: Annotated[str | None, option("NAME", "A named variant of the operating point.", "-cv")] = None
    set_values: Annotated[list[str] | None, option("SECTION.FIELD=VALUE", "Any setting, e.g. --set "
        "kernels.attention_backend=unfused. Repeatable.", "--set")] = None
    env: Annotated[list[str] | None, option("KEY=VALUE", "A variable of the ranks. Repeatable.", "-E")] = None
    recipes_dir: Annotated[Path | None, option("DIR", "Directory of recipe families.")] = None
    force: Annotated[list[str] | None, option("RULE_ID", "Run although this rule forbids it. Repeatable.")] = None
    bridge_config: Annotated[str | None, option("FILE", "A configuration of Megatron-Bridge: run_config.yaml.")] = None
    hf: Annotated[str | None, option("PATH", "A model of Hugging Face: config.json, or its folder.")] = None
    megatron_args: Annotated[str | None, option("FILE|-", "Megatron-LM's command, script or log; -: stdin.")] = None
    max_steps: Annotated[int | None, option("N", "Training steps.", "-ms")] = None
    global_batch_size: Annotated[int | None, option("N", "Samples per step over all GPUs.", "-gb")] = None
    micro_batch_size: Annotated[int | None, option("N", "Samples per micro-batch and GPU.", "-mb")] = None
    seq_length: Annotated[int | None, option("N", "Tokens per sample.", "-sl")] = None
    num_layers: Annotated[int | None, option("N", "Decoder layers.")] = None
    hidden_size: Annotated[int | None, option("N", "Hidden size.")] = None
    seed: Annotated[int | None, option("N", "Seed of weights and data.")] = None
    tensor_model_parallel_size: Annotated[int | None, option("N", "Tensor parallelism (TP). Above 1 it turns sequence "
        "parallelism on, at 1 off.", "-tp")] = None
    pipeline_model_parallel_size: Annotated[int | None, option("N", "Pipeline parallelism (PP).", "-pp")] = None
    context_parallel_size: Annotated[int | None, option("N", "Context parallelism (CP).", "-cp")] = None
    virtual_pipeline_model_parallel_size: Annotated[str | None, option("N|none", "Chunks per stage.", "-vp")] = None
    expert_model_parallel_size: Annotated[int | None, option("N", "Expert parallelism (EP).", "-ep")] = None
    expert_tensor_parallel_size: Annotated[int | None, option("N", "TP of experts (ETP). Default: TP.", "-et")] = None
    memory_limit: Annotated[float | None, option("GIB", "Limit torch's allocator of every rank (on cpu: tensors); a "
        "rank that needs more runs out of memory (exit 4). On cpu, measure with --eval_time_start_step 2.")] = None
    memory_snapshot: Annotated[bool | None, flag("On a GPU: record one more step for `mbr-perf snapshot`.")] = None
    snapshot_on_oom: Annotated[bool | None, flag("On a GPU: record it at OOM; the run is not judged.")] = None
    recompute_modules: Annotated[str | None, option("LIST|none", "Selective recompute of these modules: "
        f"{', '.join(MODULES)}. none keeps every activation.", completes=completion.modules)] = None
    recompute_num_layers: Annotated[int | None, option("N", "Full recompute of N layers; alone it means block, as in "
        "Megatron-Bridge.", "-rl")] = None
    recompute_granularity: Annotated[str | None, option("selective|full", "megatron-core's granularity.")] = None
    recompute_method: Annotated[str | None, option("uniform|block", "All layers in units of N, or the first N.")] = None
    recompute: Annotated[str | None, option("TEXT", "The whole setting in one word: none, core_attn,mlp, "
        "full:uniform:1, full:block:4.", completes=completion.settings)] = None
    distribute_saved_activations: Annotated[bool | None, flag("Split saved layer inputs over TP (full recompute only).",
        "--distribute_saved_activations/--no_distribute_saved_activations")] = None
    activation_offload_layers: Annotated[int | None, option("N", "Offload activations of N layers.", "-ol")] = None
    cuda_graph_impl: Annotated[str | None, option("IMPL", "none, local, transformer_engine or full_iteration.")] = None
    cuda_graph_scope: Annotated[str | None, option("LIST", "attn, mlp, moe, moe_router, ... or full_iteration.")] = None


ENGINES = ("mcore", "bridge")


@options(_ENGINE)
class EngineOptions:
    """Who trains."""

    engine: Annotated[str | None, option("NAME", "mcore (default): mbr-perf's own loop. bridge: pretrain() of the "
        "installed Megatron-Bridge (0.3 or later), with -mr, --bridge_config or --bridge_recipe.")] = None
    bridge_recipe: Annotated[str | None, option("FUNCTION", "With --engine bridge: its recipe function.")] = None
    forward_step: Annotated[str | None, option("MODULE:FUNCTION", "With --engine bridge. Default: Bridge's.")] = None


@options(_JUDGE)
class JudgeOptions:
    """How to judge."""

    golden_values_path: Annotated[Path | None, option("PATH", "A golden or a folder of them. Default: the stored "
        "golden of these settings, if any.")] = None
    require_golden: Annotated[bool, flag("Exit 6 when there is no golden.")] = False
    timing_threshold: Annotated[float | None, option("FRACTION", "Allowed loss of throughput. Default 0.05; on cpu "
        "0.15, 0.10 with three repeats.")] = None
    memory_threshold: Annotated[float | None, option("FRACTION", "Allowed growth of peak memory. Default 0.05; on cpu "
        "0.005.")] = None
    accept_differences: Annotated[list[str] | None, option("NAME", "Compare although this differs: a package, software "
        "(all of them), driver_version, device_name, or a setting. Repeatable.", "--accept_difference")] = None
    fail_on_improvement: Annotated[bool, flag("Exit 7 on an improvement beyond the threshold.")] = False
    skip_first_percent_time: Annotated[float | None, option("FRACTION", "Share of steps that does not count.")] = None
    eval_time_start_step: Annotated[int | None, option("STEP", "First step that counts; overrides the share.")] = None
    eval_time_end_step: Annotated[int | None, option("STEP", "One past the last step that counts.")] = None


@options(_LAUNCH)
class LocalLaunchOptions:
    """How to launch on this node."""

    launcher: Annotated[str, option("NAME", "torchrun, slurm, kubeflow or replay.")] = "torchrun"
    replay_from: Annotated[Path | None, option("RUN", "Recorded run folder of the replay launcher.", "--from")] = None
    timeout_s: Annotated[float | None, option("SECONDS", "Time limit of the run.", "--timeout")] = None
    hang_timeout_s: Annotated[float, option("SECONDS", "A rank this long without a sign of life hangs.",
        "--hang_timeout")] = HANG_TIMEOUT_S
    sample_interval_ms: Annotated[int, option("MS", "How often to sample the GPUs; 0: never.")] = SAMPLE_INTERVAL_MS
    pass_env: Annotated[list[str] | None, option("NAME", "Hand this variable on, unrecorded. Repeatable.")] = None
    results_dir: Results = None


@options(_NODES)
class NodeOptions:
    """Which nodes take part."""

    nnodes: Annotated[int, option("N", "Nodes; run the same command on each.")] = 1
    node_rank: Annotated[int, option("R", "Number of this node; node 0 collects and judges.")] = 0
    master_addr: Annotated[str | None, option("HOST", "Address of node 0.")] = None
    master_port: Annotated[int | None, option("PORT", "Default: a free port; 29500 with several nodes.")] = None


@options({"repeats": _LAUNCH, "run_dir": _NODES})
class LaunchOptions(NodeOptions, LocalLaunchOptions):
    """How to launch, and how often."""

    repeats: Annotated[int, option("N", "Run N times and compare the median of the runs' medians.")] = 1
    run_dir: Annotated[Path | None, option("DIR", "Run folder, the same on every node; needed with --nnodes.")] = None


@options(_OUTPUT)
class RunOutput:
    """What to print."""

    dryrun: Annotated[bool, flag("Print what would run, with its environment; start nothing.", "--dryrun", "--dry_run",
        "-d")] = False
    explain: Explain = False
    as_json: Json = False


@options({"time_limit": _JOBS, "partition": _SLURM, "namespace": _KUBEFLOW})
class ClusterLaunchOptions:
    """What mbr-perf asks a cluster for. None and False: no request."""

    time_limit: Annotated[str | None, option("MINUTES|HH:MM:SS", "The job ends then. Required.", "-t")] = None
    container_image: Annotated[str | None, option("IMAGE", "Run in this container: on Slurm by pyxis, with results "
        "and the checkout mounted; needed on Kubernetes. --slurm_python must find mbr-perf there.", "-i")] = None
    python: Annotated[str | None, option("PATH", "Python on the nodes. Default: python3 in a container, else this one.",
        "--slurm_python")] = None
    pending_timeout_minutes: Annotated[int | None, option("MINUTES", "Cancel a job that has not started by then.",
        "--pending_timeout")] = None
    detach: Annotated[bool, flag("Submit and return; `mbr-perf jobs wait` collects and judges.")] = False
    no_submit: Annotated[bool, flag("Write the job's files and stop; `mbr-perf jobs submit` submits them.")] = False
    partition: Annotated[str | None, option("NAME", "Slurm's --partition.", "-p")] = None
    account: Annotated[str | None, option("NAME", "Slurm's --account.", "-a")] = None
    qos: Annotated[str | None, option("NAME", "Slurm's --qos.")] = None
    reservation: Annotated[str | None, option("NAME", "Slurm's --reservation.")] = None
    constraint: Annotated[str | None, option("FEATURES", "Slurm's --constraint.")] = None
    gpus: Annotated[str | None, option("HOW", "gpus-per-node (default), gres or none.", "--slurm_gpus")] = None
    no_exclusive: Annotated[bool, flag("Share the nodes with other jobs: the measurement includes their load.")] = False
    segment: Annotated[int | None, option("N", "Slurm's --segment: nodes per NVLink domain.")] = None
    container_mounts: Annotated[list[str] | None, option("SRC:DST", "Further mounts. Repeatable.")] = None
    namespace: Annotated[str | None, option("NAME", "Namespace. Default: the file's.", "--kubeflow_namespace")] = None
    workdir_pvc: Annotated[str | None, option("CLAIM", "Volume of the results.", "--kubeflow_workdir_pvc")] = None
    workdir_pvc_path: Annotated[str | None, option("PATH", "Where the volume is mounted, in pods and here. Default: "
        "/nemo_run.", "--kubeflow_workdir_pvc_path")] = None
    base: Annotated[Path | None, option("FILE", "TrainJob (YAML or JSON) that mbr-perf completes: runtimeRef, labels, "
        "tolerations, secrets.", "--kubeflow_job")] = None
    trainer: Annotated[str | None, option("RELEASE", "Kubeflow Trainer: 2.1, or 2.2 and later. Default: 2.2.",
        "--kubeflow_trainer")] = None
# fmt: on
