"""Options that several commands take: their types and groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import completion
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.modules import MODULES
from harness.records.launch import HANG_TIMEOUT_S, SAMPLE_INTERVAL_MS

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
_PROFILE = "Profiling and clocks"


def option(
    *names: str,
    help: str,
    panel: str | None = None,
    metavar: str | None = None,
    completes: completion.Completer | None = None,
) -> typer.models.OptionInfo:
    """Return an option of a command. ``panel``: its group in help."""
    made: typer.models.OptionInfo = typer.Option(
        *names, help=help, rich_help_panel=panel, metavar=metavar, autocompletion=completes
    )
    return made


def _slurm(*names: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return option(*names, help=help, panel="Slurm (with --launcher slurm)", metavar=metavar)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """What to run."""

    model_family_name: Annotated[str | None, option("--model_family_name", "-m", metavar="FAMILY", panel=MODEL,
        completes=completion.families, help="Model family, e.g. llama; checked against the recipe.")] = None
    model_recipe_name: Annotated[str, option("--model_recipe_name", "-mr", metavar="RECIPE", panel=MODEL,
        completes=completion.recipes, help="A recipe name (`mbr-perf recipes list`) or a recipe file.")] = ""
    bridge_config: Annotated[str | None, option("--bridge_config", metavar="FILE", panel=_OWN_JOB,
        help="A configuration of Megatron-Bridge: the file of `run_script.py --dryrun`, or the run_config.yaml of a "
        "run.")] = None
    hf: Annotated[str | None, option("--hf", metavar="PATH", panel=_OWN_JOB,
        help="A model of Hugging Face: its config.json, or the folder that holds it.")] = None
    megatron_args: Annotated[str | None, option("--megatron_args", metavar="FILE|-", panel=_OWN_JOB,
        help="Arguments of Megatron-LM: a command line, a shell script, or a log that prints them; - reads standard "
        "input.")] = None
    task: Annotated[str | None, option("--task", metavar="TASK", panel=MODEL,
        completes=completion.tasks, help=f"{', '.join(completion.TASKS)}; pretrain is the default.")] = None
    gpu: Annotated[str | None, option("--gpu", "-g", metavar="GPU", panel=MODEL,
        completes=completion.gpus, help=f"{', '.join(GPUS)}. Default: the GPU of this machine. Without a GPU: cpu, "
        "or for plan and check the recipe's GPU point.")] = None
    point_gpu: Annotated[str | None, option("--point_gpu", metavar="GPU", panel=MODEL,
        completes=completion.gpus, help="Use the recipe's operating point of another GPU type.")] = None
    compute_dtype: Annotated[str | None, option("--compute_dtype", "-c", metavar="DTYPE", panel=MODEL,
        completes=completion.precisions, help=f"{', '.join(PRECISIONS)}; fp32 works on cpu only.")] = None
    num_gpus: Annotated[int | None, option("--num_gpus", "-ng", metavar="N", panel=MODEL,
        help="GPUs in all. Default: those of the operating point.")] = None
    gpus_per_node: Annotated[int | None, option("--gpus_per_node", "-gn", metavar="N", panel=MODEL,
        help="GPUs per node. Default: as many as the GPU type has.")] = None
    variant: Annotated[str | None, option("--variant", "-cv", metavar="NAME", panel=MODEL,
        help="A named variant of the operating point.")] = None
    set_values: Annotated[list[str] | None, option("--set", metavar="SECTION.FIELD=VALUE", panel=MODEL,
        help="Any setting, e.g. --set kernels.attention_backend=unfused. Repeatable.")] = None
    env: Annotated[list[str] | None, option("--env", "-E", metavar="KEY=VALUE", panel=MODEL,
        help="A variable of the ranks' environment. Repeatable.")] = None
    recipes_dir: Annotated[Path | None, option("--recipes_dir", metavar="DIR", panel=MODEL,
        help="Directory of recipe families.")] = None
    max_steps: Annotated[int | None, option("--max_steps", "-ms", metavar="N", help="Training steps.",
        panel=_SIZES)] = None
    global_batch_size: Annotated[int | None, option("--global_batch_size", "-gb", metavar="N", panel=_SIZES,
        help="Samples per step over all GPUs.")] = None
    micro_batch_size: Annotated[int | None, option("--micro_batch_size", "-mb", metavar="N", panel=_SIZES,
        help="Samples per micro-batch and GPU.")] = None
    seq_length: Annotated[int | None, option("--seq_length", "-sl", metavar="N", help="Tokens per sample.",
        panel=_SIZES)] = None
    tensor_model_parallel_size: Annotated[int | None, option("--tensor_model_parallel_size", "-tp", metavar="N",
        panel=_PARALLEL,
        help="Tensor parallelism (TP). Above 1 it also turns sequence parallelism on; 1 turns it off.")] = None
    pipeline_model_parallel_size: Annotated[int | None, option("--pipeline_model_parallel_size", "-pp", metavar="N",
        help="Pipeline parallelism (PP).", panel=_PARALLEL)] = None
    context_parallel_size: Annotated[int | None, option("--context_parallel_size", "-cp", metavar="N",
        help="Context parallelism (CP).", panel=_PARALLEL)] = None
    virtual_pipeline_model_parallel_size: Annotated[str | None, option("--virtual_pipeline_model_parallel_size", "-vp",
        metavar="N|none", help="Model chunks per pipeline stage; none turns interleaving off.", panel=_PARALLEL)] = None
    expert_model_parallel_size: Annotated[int | None, option("--expert_model_parallel_size", "-ep", metavar="N",
        help="Expert parallelism (EP).", panel=_PARALLEL)] = None
    expert_tensor_parallel_size: Annotated[int | None, option("--expert_tensor_parallel_size", "-et", metavar="N",
        help="Tensor parallelism of the experts (ETP). Default: as TP.", panel=_PARALLEL)] = None
    num_layers: Annotated[int | None, option("--num_layers", metavar="N", help="Decoder layers.", panel=_SIZES)] = None
    hidden_size: Annotated[int | None, option("--hidden_size", metavar="N", help="Hidden size.", panel=_SIZES)] = None
    seed: Annotated[int | None, option("--seed", metavar="N", help="Seed of weights and data.", panel=_SIZES)] = None
    memory_limit: Annotated[float | None, option("--memory_limit", metavar="GIB", panel=_MEMORY,
        help="Limit every rank to this much memory. A rank that needs more ends as out of memory (exit 4). On cpu the "
        "first two steps are watched for it: measure from step 2 on, e.g. with --eval_time_start_step 2.")] = None
    memory_snapshot: Annotated[bool | None, option("--memory_snapshot", panel=_MEMORY,
        help="On a GPU: after the last step run one more and record it with torch's allocator, a file "
        "ranks/snapshot_NNN.pickle per rank for `mbr-perf snapshot`.")] = None
    snapshot_on_oom: Annotated[bool | None, option("--snapshot_on_oom", panel=_MEMORY,
        help="On a GPU: record from the beginning, and write that file when memory runs out. Slows steps, so the run "
        "is not judged.")] = None
    recompute_modules: Annotated[str | None, option("--recompute_modules", metavar="LIST|none", panel=_RECOMPUTE,
        completes=completion.modules, help=f"Selective recompute of these modules: {', '.join(MODULES)}. none keeps "
        "every activation.")] = None
    recompute_num_layers: Annotated[int | None, option("--recompute_num_layers", "-rl", metavar="N", panel=_RECOMPUTE,
        help="Full recompute of N layers; alone it means block, as in Megatron-Bridge.")] = None
    recompute_granularity: Annotated[str | None, option("--recompute_granularity", metavar="selective|full",
        help="megatron-core's recompute_granularity.", panel=_RECOMPUTE)] = None
    recompute_method: Annotated[str | None, option("--recompute_method", metavar="uniform|block", panel=_RECOMPUTE,
        help="uniform: all layers in units of N; block: the first N of each chunk.")] = None
    recompute: Annotated[str | None, option("--recompute", metavar="TEXT", panel=_RECOMPUTE,
        completes=completion.settings, help="The whole setting in one word: none, core_attn,mlp, full:uniform:1, "
        "full:block:4.")] = None
    distribute_saved_activations: Annotated[bool | None,
        option("--distribute_saved_activations/--no_distribute_saved_activations",
        help="Split saved layer inputs over TP (full recompute only).", panel=_RECOMPUTE)] = None
    activation_offload_layers: Annotated[int | None, option("--activation_offload_layers", "-ol", metavar="N",
        help="Offload activations of N layers to the host.", panel=_RECOMPUTE)] = None
    cuda_graph_impl: Annotated[str | None, option("--cuda_graph_impl", metavar="IMPL",
        help="none, local, transformer_engine or full_iteration.", panel=_RECOMPUTE)] = None
    cuda_graph_scope: Annotated[str | None, option("--cuda_graph_scope", metavar="LIST", panel=_RECOMPUTE,
        help="attn, mlp, moe, moe_router, moe_preprocess, mamba or full_iteration.")] = None
    enable_nsys: Annotated[bool | None, option("--enable_nsys", "-en", panel=_PROFILE,
        help="Record --profiling_ranks with Nsight Systems: ranks/profile_NNN.nsys-rep in the run's folder. A "
        "profiled run is never compared and cannot become a golden.")] = None
    pytorch_profiler: Annotated[bool | None, option("--pytorch_profiler", "-pyp", panel=_PROFILE,
        help="Record --profiling_ranks with torch's profiler: ranks/profile_NNN.json.gz, for chrome://tracing or "
        "Perfetto.")] = None
    profiling_ranks: Annotated[str | None, option("--profiling_ranks", metavar="LIST",
        help="Ranks to record. Default: 0.", panel=_PROFILE)] = None
    profiling_start_step: Annotated[int | None, option("--profiling_start_step", metavar="STEP",
        help="First step to record. Default: 10.", panel=_PROFILE)] = None
    profiling_stop_step: Annotated[int | None, option("--profiling_stop_step", metavar="STEP",
        help="One past the last step to record. Default: 11.", panel=_PROFILE)] = None
    nsys_trace: Annotated[str | None, option("--nsys_trace", metavar="LIST", help="nsys --trace. Default: cuda,nvtx.",
        panel=_PROFILE)] = None
    nsys_extra_args: Annotated[str | None, option("--nsys_extra_args", metavar="LIST",
        help="More options for nsys. They replace mbr-perf's options of the same name.", panel=_PROFILE)] = None
    profiling_gpu_metrics: Annotated[bool | None, option("--profiling_gpu_metrics",
        help="Let nsys sample the GPUs' counters.", panel=_PROFILE)] = None
    export_nsys_sqlite: Annotated[bool | None, option("--export_nsys_sqlite", help="Let nsys also write SQLite.",
        panel=_PROFILE)] = None
    lock_gpu_freq: Annotated[int | None, option("--lock_gpu_freq", "-lgc", metavar="MHZ", panel=_PROFILE,
        help="Lock the GPU clock of every GPU of the nodes during the run, then reset it; needs root.")] = None
    peak_mem_clk: Annotated[int | None, option("--peak_mem_clk", "-lmc", metavar="MHZ", panel=_PROFILE,
        help="Lock the memory clock of every GPU likewise.")] = None
    force: Annotated[list[str] | None, option("--force", metavar="RULE_ID", panel=MODEL,
        help="Run although this rule calls it an error; recorded. Repeatable.")] = None


ENGINES = ("mcore", "bridge")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Who trains."""

    engine: Annotated[str | None, option("--engine", metavar="NAME", panel=_ENGINE,
        help="mcore: mbr-perf's own worker on megatron-core (default). bridge: Megatron-Bridge's own pretrain(), with "
        "--bridge_config or --bridge_recipe, where Megatron-Bridge 0.3 or later is installed.")] = None
    bridge_recipe: Annotated[str | None, option("--bridge_recipe", metavar="FUNCTION", panel=_ENGINE,
        help="With --engine bridge: a recipe function of Megatron-Bridge that makes the configuration, by its name or "
        "as MODULE:FUNCTION.")] = None
    forward_step: Annotated[str | None, option("--forward_step", metavar="MODULE:FUNCTION", panel=_ENGINE,
        help="With --engine bridge: the forward step. Default: Bridge's own for GPT models and for models with "
        "vision.")] = None


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """How to judge."""

    golden_values_path: Annotated[Path | None, option("--golden_values_path", metavar="PATH", panel=_JUDGE,
        help="A golden file or a folder of them. Default: the stored golden of these settings, if any.")] = None
    require_golden: Annotated[bool, option("--require_golden", panel=_JUDGE,
        help="Exit 6 when there is no golden.")] = False
    timing_threshold: Annotated[float | None, option("--timing_threshold", metavar="FRACTION", panel=_JUDGE,
        help="Allowed loss of throughput. Default 0.05; on cpu 0.15, 0.10 with three repeats.")] = None
    memory_threshold: Annotated[float | None, option("--memory_threshold", metavar="FRACTION", panel=_JUDGE,
        help="Allowed growth of peak memory. Default 0.05; on cpu 0.005.")] = None
    accept_differences: Annotated[list[str] | None, option("--accept_difference", metavar="NAME", panel=_JUDGE,
        help="Compare although this differs from the golden's: a package, software (all of them), driver_version, "
        "device_name, or a setting. Repeatable.")] = None
    fail_on_improvement: Annotated[bool, option("--fail_on_improvement", panel=_JUDGE,
        help="Exit 7 on an improvement beyond the threshold.")] = False
    skip_first_percent_time: Annotated[float | None, option("--skip_first_percent_time", metavar="FRACTION",
        panel=_JUDGE,
        help="Share of the steps that does not count.")] = None
    eval_time_start_step: Annotated[int | None, option("--eval_time_start_step", metavar="STEP", panel=_JUDGE,
        help="First step that counts, from 0; overrides the share.")] = None
    eval_time_end_step: Annotated[int | None, option("--eval_time_end_step", metavar="STEP", panel=_JUDGE,
        help="One past the last step that counts.")] = None


@dataclass(frozen=True, kw_only=True)
class LocalLaunchOptions:
    """How to launch on this node."""

    launcher: Annotated[str, option("--launcher", metavar="NAME", help="torchrun, slurm or replay.",
        panel=_LAUNCH)] = "torchrun"
    replay_from: Annotated[Path | None, option("--from", metavar="RUN",
        help="Recorded run folder of the replay launcher.", panel=_LAUNCH)] = None
    timeout_s: Annotated[float | None, option("--timeout", metavar="SECONDS", help="Time limit of the run.",
        panel=_LAUNCH)] = None
    hang_timeout_s: Annotated[float, option("--hang_timeout", metavar="SECONDS", panel=_LAUNCH,
        help="A rank this long without a sign of life hangs; at least 20 steps are allowed.")] = HANG_TIMEOUT_S
    sample_interval_ms: Annotated[int, option("--sample_interval_ms", metavar="MS", panel=_LAUNCH,
        help="How often to read memory, power and clocks of the GPUs; 0: never.")] = SAMPLE_INTERVAL_MS
    pass_env: Annotated[list[str] | None, option("--pass_env", metavar="NAME", panel=_LAUNCH,
        help="Hand this variable of your shell to the ranks; it is never recorded. Repeatable.")] = None
    results_dir: Annotated[Path | None, option("--results_dir", metavar="DIR", panel=_LAUNCH,
        help="Where runs are kept. Default: results of the checkout, else ./results.")] = None


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(LocalLaunchOptions):
    """How to launch, and how often."""

    repeats: Annotated[int, option("--repeats", metavar="N", panel=_LAUNCH,
        help="Run N times and compare the median of the runs' medians.")] = 1
    nnodes: Annotated[int, option("--nnodes", metavar="N", help="Nodes; run the same command on each.",
        panel=_LAUNCH)] = 1
    node_rank: Annotated[int, option("--node_rank", metavar="R", help="Number of this node.", panel=_LAUNCH)] = 0
    master_addr: Annotated[str | None, option("--master_addr", metavar="HOST", help="Address of node 0.",
        panel=_LAUNCH)] = None
    master_port: Annotated[int | None, option("--master_port", metavar="PORT",
        help="Default: a free port; 29500 with several nodes.", panel=_LAUNCH)] = None
    run_dir: Annotated[Path | None, option("--run_dir", metavar="DIR", panel=_LAUNCH,
        help="Run folder, the same on every node; needed with --nnodes. Default: a new one in results.")] = None


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """What to print."""

    dryrun: Annotated[bool, option("--dryrun", "--dry_run", "-d", panel=_OUTPUT,
        help="Print the plan that would run, with its environment and configuration; start nothing.")] = False
    explain: Annotated[bool, option("--explain", panel=_OUTPUT, help="Print where every setting comes from.")] = False
    as_json: Annotated[bool, option("--json", panel=_OUTPUT, help="One JSON document on stdout.")] = False


@dataclass(frozen=True, kw_only=True)
class SweepNodes:
    """Which nodes take part."""

    nnodes: Annotated[int, typer.Option("--nnodes", metavar="N", rich_help_panel=_NODES,
        help="Nodes; run the same command on each.")] = 1
    node_rank: Annotated[int, typer.Option("--node_rank", metavar="R", rich_help_panel=_NODES,
        help="Number of this node. All but 0 take everything from the plan of node 0, and end when it ends.")] = 0
    master_addr: Annotated[str | None, typer.Option("--master_addr", metavar="HOST", rich_help_panel=_NODES,
        help="Address of node 0.")] = None
    master_port: Annotated[int | None, typer.Option("--master_port", metavar="PORT", rich_help_panel=_NODES,
        help="Default: a free port; 29500 with several nodes.")] = None
    sweep_dir: Annotated[Path | None, typer.Option("--sweep_dir", metavar="DIR", rich_help_panel=_NODES,
        help="Folder of the sweep, the same on every node; needed with --nnodes. Default: a new one under the results "
        "folder.")] = None

@dataclass(frozen=True, kw_only=True)
class SlurmLaunchOptions:
    """What mbr-perf asks Slurm for. None and False: no request."""

    time_limit: Annotated[str | None, _slurm("--time_limit", "-t", metavar="MINUTES|HH:MM:SS",
        help="Slurm ends the job after this time. Required; rounded up to whole minutes.")] = None
    partition: Annotated[str | None, _slurm("--partition", "-p", metavar="NAME", help="Slurm's --partition.")] = None
    account: Annotated[str | None, _slurm("--account", "-a", metavar="NAME", help="Slurm's --account.")] = None
    qos: Annotated[str | None, _slurm("--qos", metavar="NAME", help="Slurm's --qos.")] = None
    reservation: Annotated[str | None, _slurm("--reservation", metavar="NAME", help="Slurm's --reservation.")] = None
    constraint: Annotated[str | None, _slurm("--constraint", metavar="FEATURES", help="Slurm's --constraint.")] = None
    gpus: Annotated[str | None, _slurm("--slurm_gpus", metavar="HOW",
        help="How to request GPUs: gpus-per-node (default), gres, or none if Slurm does not know GPUs.")] = None
    no_exclusive: Annotated[bool, _slurm("--no_exclusive",
        help="Share the nodes with other jobs. The measurement then includes their load.")] = False
    segment: Annotated[int | None, _slurm("--segment", metavar="N",
        help="Slurm's --segment: nodes per NVLink domain.")] = None
    container_image: Annotated[str | None, _slurm("--container_image", "-i", metavar="IMAGE",
        help="Run in this container (pyxis). mbr-perf must be importable there by --slurm_python; results and the "
        "checkout are mounted.")] = None
    container_mounts: Annotated[list[str] | None, _slurm("--container_mounts", metavar="SRC:DST",
        help="Further mounts of the container. Repeatable.")] = None
    python: Annotated[str | None, _slurm("--slurm_python", metavar="PATH",
        help="Python that runs mbr-perf on the nodes. Default: the one in use here; python3 in a container.")] = None
    pending_timeout_minutes: Annotated[int | None, _slurm("--pending_timeout", metavar="MINUTES",
        help="Cancel a job that has not started by then. Default: wait.")] = None
    detach: Annotated[bool, _slurm("--detach",
        help="Submit and return; `mbr-perf jobs wait` collects and judges.")] = False
    no_submit: Annotated[bool, _slurm("--no_submit",
        help="Write the job's files and stop; `mbr-perf jobs submit` submits them.")] = False
# fmt: on


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
GoldenDir = Annotated[
    Path | None, typer.Option("--golden_dir", metavar="DIR", help="Folder of goldens. Default: results/golden.")
]
Results = Annotated[Path | None, typer.Option("--results_dir", metavar="DIR",
    help="Where results are kept. Default: results of the checkout, else ./results.")]  # fmt: skip
