"""Replaces options of Megatron-Bridge's `scripts/performance` by mbr-perf's own, or refuses them with a remedy."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from harness.errors import BadRequestError, Problems

Words = tuple[str, ...]


@dataclass(frozen=True)
class Meaning:
    """What an option of Megatron-Bridge means here. ``text``: our options for it, or what to use instead.

    ``words`` converts its value ("" for a flag) to our options; None: mbr-perf refuses the option. Help shows an option
    that has a ``metavar``.
    """

    text: str
    words: Callable[[str], Words] | None = None
    metavar: str = ""


@dataclass(frozen=True)
class Spelling:
    """How Megatron-Bridge spells an option, and how many values follow: 0, 1, "?" (none or one) or "*" (any number)."""

    name: str
    alias: str | None
    values: int | str


@cache
def spellings() -> Mapping[str, Spelling]:
    """Return every option of Megatron-Bridge by name and by alias."""
    found: dict[str, Spelling] = {}
    for row in json.loads(Path(__file__).with_name("bridge_options.json").read_text())["options"]:
        name, *more = row.split()  # NAME ALIAS VALUES, the last if it is not 1
        alias = next((word for word in more if word.startswith("-")), None)
        values = next((word for word in more if not word.startswith("-")), 1)
        found |= dict.fromkeys(filter(None, (name, alias)), Spelling(name, alias, 0 if values == "0" else values))
    return found


_TRUE, _FALSE = ("true", "1", "t", "yes", "y"), ("false", "0", "f", "no", "n")


def truth(text: str) -> bool:
    """Read a truth value as Megatron-Bridge does; BadRequestError for any other text."""
    if text.lower() not in (*_TRUE, *_FALSE):
        raise BadRequestError(f"{text!r} is neither true nor false", remedy="write true or false")
    return text.lower() in _TRUE


def _set(assignments: str) -> Words:
    return tuple(word for each in assignments.split() for word in ("--set", each))


def _switch(on: str, off: str) -> Meaning:
    return Meaning(f"--set {on}", lambda text: _set(on if truth(text) else off), "BOOL")


def _value(path: str, metavar: str) -> Meaning:
    return Meaning(f"--set {path}={metavar}", lambda text: ("--set", f"{path}={text}"), metavar)


def _rate(text: str) -> Words:
    """Write the number as YAML reads it: 1e-3 is text there."""
    from harness.resolve.writing import scalar

    try:
        return _set(f"optimizer.lr={scalar(float(text))}")
    except ValueError:
        raise BadRequestError(f"{text!r} is not a number", remedy="write a number, e.g. 3e-4") from None


def _option(name: str, *, many: bool = False) -> Callable[[str], Words]:
    """Return a function that gives the value, or each part of a comma-separated one, to our option ``name``."""
    return lambda text: tuple(word for part in (text.split(",") if many else [text]) for word in (name, part))


def _only(*values: str, instead: str) -> Callable[[str], Words]:
    """Return a function that accepts one of ``values``, which mbr-perf does anyway, and refuses any other."""

    def read(text: str) -> Words:
        if text.lower() not in values:
            raise BadRequestError(f"mbr-perf knows only {' and '.join(values)} here, not {text!r}", remedy=instead)
        return ()

    return read


def _dispatcher(text: str) -> Words:
    if text == "None":
        return _set("kernels.moe_token_dispatcher_type=alltoall kernels.moe_flex_dispatcher_backend=null")
    if text not in ("deepep", "hybridep"):
        raise BadRequestError(f"no such backend {text!r}", remedy="deepep, hybridep or None")
    return _set(
        f"kernels.moe_token_dispatcher_type=flex kernels.moe_flex_dispatcher_backend={text}"
        " kernels.moe_shared_expert_overlap=false"
    )


_MUON = (
    "optimizer.optimizer=dist_muon optimizer.use_distributed_optimizer=false "
    "optimizer.use_precision_aware_optimizer=false optimizer.main_grads_dtype=fp32 optimizer.exp_avg_dtype=fp32 "
    "optimizer.exp_avg_sq_dtype=fp32 ddp.overlap_param_gather=false ddp.grad_reduce_in_fp32=true"
)


def _optimizer(text: str) -> Words:
    return _set(_MUON) if text.lower() == "muon" else _only("adam", instead="adam or muon")(text)


def _nccl_ub(text: str) -> Words:
    if not truth(text):
        return _set("ddp.nccl_ub=false")
    buffers = _set("ddp.nccl_ub=true ddp.average_in_collective=false")
    return (*buffers, "--env", "NCCL_NVLS_ENABLE=1", "--env", "NCCL_CTA_POLICY=1")


_SLURM = ("qos", "reservation", "constraint", "segment")


def _slurm_params(text: str) -> Words:
    """Split as Megatron-Bridge does: at semicolons; without any, at blanks."""
    parts = text.split(";") if ";" in text else text.split()
    words: list[str] = []
    for name, _, value in (part.strip().partition("=") for part in parts if part.strip()):
        if name.strip() in _SLURM and value.strip():
            words += [f"--{name.strip()}", value.strip()]
        elif name.strip() != "exclusive" or value:  # mbr-perf asks for whole nodes by itself
            known = ", ".join(f"--{each}" for each in _SLURM)
            raise BadRequestError(f"mbr-perf has no option for Slurm's {name.strip()!r}", remedy=f"it has {known}")
    return tuple(words)


_NOT_HERE = "leave it out: mbr-perf measures steps on random tokens, without downloads, checkpoints or convergence"
_NO_TOKENIZER = "leave it out and give --vocab_size N: random tokens need no tokenizer"


def _refused(text: str, *patterns: str) -> dict[str, Meaning]:
    found = {row.name for row in spellings().values() if any(fnmatch(row.name, f"--{each}") for each in patterns)}
    return dict.fromkeys(sorted(found), Meaning(text))


def _in_train_job(where: str, *patterns: str) -> dict[str, Meaning]:
    return _refused(f"write it as {where} in the --kubeflow_job file", *(f"kubeflow_{each}" for each in patterns))


MEANINGS: Mapping[str, Meaning] = {
    "--use_megatron_fsdp": _switch(
        "ddp.use_megatron_fsdp=true ddp.average_in_collective=false", "ddp.use_megatron_fsdp=false"),
    "--nccl_ub": Meaning(
        "--set ddp.nccl_ub=true ddp.average_in_collective=false, -E NCCL_NVLS_ENABLE=1 -E NCCL_CTA_POLICY=1",
        _nccl_ub, "BOOL"),
    "--moe_a2a_overlap": _switch(
        "kernels.overlap_moe_expert_parallel_comm=true kernels.moe_shared_expert_overlap=false",
        "kernels.overlap_moe_expert_parallel_comm=false"),
    "--moe_flex_dispatcher_backend": Meaning(
        "--set kernels.moe_token_dispatcher_type=flex kernels.moe_flex_dispatcher_backend=NAME"
        " kernels.moe_shared_expert_overlap=false; None: alltoall", _dispatcher, "NAME"),
    "--use_tokendrop": _switch(
        "kernels.moe_expert_capacity_factor=1.0 kernels.moe_pad_expert_input_to_capacity=true"
        " model.moe.moe_router_force_load_balancing=false",
        "kernels.moe_expert_capacity_factor=null kernels.moe_pad_expert_input_to_capacity=false"
        " model.moe.moe_router_force_load_balancing=true"),
    "--pipeline_model_parallel_layout": _value("parallelism.pipeline_model_parallel_layout", "TEXT"),
    "--num_moe_experts": _value("model.moe.num_moe_experts", "N"),
    "--vocab_size": _value("model.vocab_size", "N"),
    "--lr": Meaning("--set optimizer.lr=RATE", _rate, "RATE"),
    "--use_recipes": Meaning("--variant library", lambda _: ("--variant", "library"), "(flag)"),
    "--config_variant": Meaning("--variant NAME", _option("--variant"), "NAME"),
    "--custom_env_vars": Meaning("-E NAME=VALUE for each", _option("--env", many=True), "NAME=VALUE,..."),
    "--custom_mounts": Meaning("--container_mounts for each", _option("--container_mounts", many=True), "LIST"),
    "--additional_slurm_params": Meaning("--qos, --reservation, --constraint and --segment", _slurm_params, "LIST"),
    "--detach": Meaning("--detach with true, nothing with false",
                        lambda text: ("--detach",) if truth(text) else ()),
    "--domain": Meaning("accepted: llm", _only("llm", instead="mbr-perf has language models only")),
    "--data": Meaning("accepted: mock", _only("mock", instead=_NOT_HERE)),
    "--tokenizer_type": Meaning("accepted: NullTokenizer", _only("nulltokenizer", instead=_NO_TOKENIZER)),
    "--optimizer_type": Meaning(f"accepted: adam; muon: --set {_MUON}", _optimizer),
    "--packager": Meaning("accepted: none", _only("none", instead="leave it out: jobs run the one there")),
    "--offline": Meaning("accepted: mbr-perf downloads nothing", lambda _: ()),
    "--first_k_dense_replace": Meaning("use --set 'model.moe.moe_layer_freq=[0]*K+[1]*N' with N further layers"),
    "--deterministic": Meaning(
        "use a variant library_deterministic, or -E NCCL_ALGO=Ring -E NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 "
        "-E CUBLAS_WORKSPACE_CONFIG=:4096:8 --set kernels.cross_entropy_loss_fusion=false "
        "kernels.tp_comm_overlap=false"),
    "--list_config_variants": Meaning("use `mbr-perf recipes show RECIPE`"),
    "--distributed_timeout_minutes": Meaning("use --hang_timeout SECONDS"),
    "--enable_vboost": Meaning("leave it out, and run `sudo nvidia-smi boost-slider --vboost 1` on each node"),
    **_refused("leave it out, and lock clocks with `sudo nvidia-smi -lgc` or `-lmc` before the run",
               "lock_gpu_freq", "peak_mem_clk"),
    **_refused("leave it out, and profile with Megatron-Bridge: a profiler slows the steps",
               "enable_nsys", "export_nsys_sqlite", "nsys_*", "profiling_*", "pytorch_profiler"),
    "--record_memory_history": Meaning("use --memory_snapshot"),
    "--log_dir": Meaning("use --results_dir DIR; logs are in the run's folder there"),
    "--save_config_filepath": Meaning("leave it out: the run's spec.json has every setting"),
    "--dump_env": Meaning("leave it out: --dryrun prints the environment"),
    **_refused("leave it out: `mbr-perf nightly` repeats runs by itself", "max_retries", "retry_on_testing_failure"),
    "--gres": Meaning("use --slurm_gpus gres; --num_gpus and --gpus_per_node say how many"),
    "--custom_srun_args": Meaning("use --container_mounts, --segment or --constraint"),
    "--custom_bash_cmds": Meaning("put the commands in the image"),
    "--enable_pct_binding": Meaning("leave it out: mbr-perf does not bind ranks to cores"),
    "--preempt_time": Meaning("use --time_limit; `--resume` continues a sweep that Slurm ended"),
    **_refused("leave it out: the learning rate is constant; use --set optimizer.lr=RATE", "min_lr", "warmup_iters"),
    **_refused(_NOT_HERE, "nemo_home", "hf_token", "pretrained_checkpoint", "save_dir", "load_dir", "save_interval",
               "most_recent_k", "c4_*", "*dataset_*", "index_mapping_dir", "head_only", "packed_sequence",
               "is_long_convergence_run", "correlation_threshold", "*_tolerance", "*outlier_*",
               "skip_first_percent_loss"),
    "--tokenizer_model": Meaning(_NO_TOKENIZER),
    **_refused("leave it out, and send the finished run with the code in harness/results/README.md", "wandb_*"),
    "--csp": Meaning("leave it out: write the fabric's resources and annotations in the --kubeflow_job file"),
    "--kubeflow_workdir_local_path": Meaning("leave it out: mbr-perf is in the image"),
    **_in_train_job("metadata.labels", "labels_json"),
    **_in_train_job("spec.trainer.env", "env_list_json"),
    **_in_train_job("spec.trainer.resourcesPerNode", "extra_resource_*"),
    **_in_train_job("spec.trainer", "container_kwargs_json"),
    **_in_train_job("spec.runtimePatches", "image_pull*", "volume*", "tolerations*", "affinity*", "pod_*"),
}  # fmt: skip
"""By long name. Options of Megatron-Bridge that are not here are options of `mbr-perf run` with the same meaning."""


def in_our_words(args: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Return the arguments with Megatron-Bridge's options replaced by ours.

    ``own``: the command's options, and whether a value follows each. BadRequestError with every option and every Hydra
    override that mbr-perf does not take, and what to use instead of each.
    """
    out: list[str] = []
    problems, rest = Problems(), list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*out, word, *rest]
        name, equals, value = word.partition("=")
        theirs = spellings().get(name)
        if theirs is not None and (name not in own or _is_a_flag_here(theirs, own[name], rest, equals)):
            given = _values(theirs, value if equals else None, rest)
            with problems.collecting():
                out += _taken(_meant(theirs, name, given, own), own)
        elif name in own and not equals and theirs and theirs.values == "?" and not _has_value(rest):
            pass  # as in Megatron-Bridge, the option without its value asks for nothing
        elif name in own:
            num_values = int(own[name] and not equals)
            out += [word, *rest[:num_values]]
            del rest[:num_values]
        elif _HYDRA.fullmatch(word):
            problems.add(f"{word}: mbr-perf takes no overrides of Hydra", _override_remedy(word))
        else:
            out.append(word)
    problems.raise_if_any()
    return out


_HYDRA = re.compile(
    r"(?:[+~]{0,2})(?:model|train|optimizer|ddp|dist|scheduler|dataset|logger|tokenizer|checkpoint|rng|comm_overlap"
    r"|mixed_precision|profiling|env_vars|rerun_state_machine|peft)\.[A-Za-z0-9_.]+=.*",
    re.DOTALL,
)


def _is_a_flag_here(theirs: Spelling, takes_value: bool, rest: Sequence[str], equals: str) -> bool:
    follows = equals or (rest and rest[0].lower() in (*_TRUE, *_FALSE))
    return theirs.values == 1 and not takes_value and bool(follows)


def _has_value(rest: Sequence[str]) -> bool:
    return bool(rest) and (not rest[0].startswith("-") or rest[0][1:].isdecimal())


def _values(theirs: Spelling, joined: str | None, rest: list[str]) -> list[str]:
    if joined is not None:
        return [joined]
    found: list[str] = []
    most = {0: 0, 1: 1, "?": 1, "*": len(rest)}[theirs.values]
    while len(found) < most and _has_value(rest):
        found.append(rest.pop(0))
    return found


def _taken(words: Words, own: Mapping[str, bool]) -> Words:
    """Leave out options of Slurm that the command lacks, because it starts nothing."""
    is_of_slurm = words[:1] and words[0].removeprefix("--") in (*_SLURM, "container_mounts", "detach")
    return () if is_of_slurm and words[0] not in own else words


def _meant(theirs: Spelling, typed: str, given: list[str], own: Mapping[str, bool]) -> Words:
    meaning = MEANINGS.get(theirs.name)
    if meaning is None and theirs.name not in own:  # `run` has it: where a job runs, and how it is judged
        return () if theirs.values else (typed,)
    if meaning is None:  # a flag of ours that takes a truth value there
        return (theirs.name,) if truth(given[0]) else ()
    if meaning.words is None:
        raise BadRequestError(f"{typed}: an option of Megatron-Bridge that mbr-perf does not have", remedy=meaning.text)
    if theirs.values == 1 and not given:
        raise BadRequestError(f"{typed}: a value is needed", remedy=f"it means {meaning.text}")
    try:
        return meaning.words(given[0] if given else "")
    except BadRequestError as error:
        raise BadRequestError(f"{typed}: {error.message}", remedy=error.remedy) from None


def _override_remedy(word: str) -> str:
    from harness.foreign.settings import rows_of

    path, _, value = word.lstrip("+~").partition("=")
    if path.startswith("env_vars."):
        variable = shlex.quote(f"{path.removeprefix('env_vars.')}={value}")
        return f"use -E {variable}"
    if path.startswith("model.recompute_"):
        return "use --recompute, --recompute_modules or --recompute_num_layers"
    ours = next((row.path for row in rows_of("bridge") if path in row.names), None)
    if ours is None:
        return "use --set SECTION.FIELD=VALUE (recipes/README.md lists the settings)"
    return f"use --set {shlex.quote(f'{ours}={value}')}"


def help_rows() -> Iterator[tuple[str, str]]:
    """Yield the name of each option that help shows, and the setting or the options that replace it."""
    for name, meaning in MEANINGS.items():
        if meaning.metavar:
            is_set, text = meaning.text.startswith("--set"), meaning.text.removeprefix("--set ")
            metavar = "" if meaning.metavar == "(flag)" else f" {meaning.metavar}"
            yield name + metavar, text.split("=")[0] if is_set else text
