"""What a person asks for: one field per option, absent unless given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options as given. None and () mean that the option is absent: an absent option says nothing and clears nothing.

    ``gpu`` is settled by the caller (the machine's GPU type, or ``cpu``); ``point_gpu`` borrows the operating point of
    another GPU type. ``memory_limit`` is in GiB. ``env`` holds ``KEY=VALUE``, ``set_values`` holds ``section.field=value``.
    """

    model_recipe_name: str
    gpu: str
    model_family_name: str | None = None
    point_gpu: str | None = None
    task: str | None = None
    compute_dtype: str | None = None
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    variant: str | None = None
    max_steps: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_length: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    virtual_pipeline_model_parallel_size: int | Literal["none"] | None = None
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    recompute: str | None = None
    recompute_modules: str | None = None
    recompute_num_layers: int | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    distribute_saved_activations: bool | None = None
    activation_offload_layers: int | None = None
    cuda_graph_impl: str | None = None
    cuda_graph_scope: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    skip_first_percent_time: float | None = None
    eval_time_start_step: int | None = None
    eval_time_end_step: int | None = None
    seed: int | None = None
    memory_limit: float | None = None
    memory_snapshot: bool | None = None
    snapshot_on_oom: bool | None = None
    env: tuple[str, ...] = ()
    set_values: tuple[str, ...] = ()
    recipes_dir: Path | None = None
