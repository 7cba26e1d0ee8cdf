"""What the environment must not contradict: megatron-core checks these only in ranks, after GPUs are taken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from harness.errors import BadRequestError
from harness.launch.environment_rows import ALLOCATOR, ATTENTION_SWITCHES, EXPANDABLE_SEGMENTS, Asked

Found = list[BadRequestError]


@dataclass(frozen=True)
class Setting:
    """A variable as ranks will see it, and who set it (``spec.env``, ``your shell``, a row's reason)."""

    value: str
    source: str


Settings = Mapping[str, Setting]


def conflicts(asked: Asked, settings: Settings) -> Found:
    """Every contradiction between the spec and the environment; empty when there is none."""
    return list(chain.from_iterable(check(asked, settings) for check in _CHECKS))


def has_expandable_segments(allocator_conf: str) -> bool:
    """Whether the option is in a comma-separated allocator setting, element by element as megatron-core compares it."""
    return EXPANDABLE_SEGMENTS in (part.strip() for part in allocator_conf.split(","))


def _problem(name: str, setting: Setting, must_be: str, why: str) -> BadRequestError:
    return BadRequestError(
        f"{name}={setting.value} ({setting.source}) must be {must_be}: {why}",
        remedy=f"unset {name}, or pass -E {name}=... with a value that fits",
    )


def _one_connection(asked: Asked, settings: Settings) -> Found:
    setting = settings.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if not asked.needs_one_connection or setting is None or setting.value == "1":
        return []
    why = "tensor or context parallelism before Blackwell needs kernels in one hardware queue (megatron arguments)"
    return [_problem("CUDA_DEVICE_MAX_CONNECTIONS", setting, "1", why)]


def _graph_register(asked: Asked, settings: Settings) -> Found:
    setting = settings.get("NCCL_GRAPH_REGISTER")
    applies = asked.spec.cuda_graph.impl == "transformer_engine" or asked.before_blackwell
    if not (asked.captures_graphs and asked.expandable_segments and applies):
        return []
    if setting is None or setting.value == "0":
        return []
    why = "CUDA graphs with expandable segments access illegal memory otherwise (megatron-core cuda_graphs.py)"
    return [_problem("NCCL_GRAPH_REGISTER", setting, "0", why)]


def _user_buffers(asked: Asked, settings: Settings) -> Found:
    setting = settings.get(ALLOCATOR)
    if not asked.spec.ddp.nccl_ub or setting is None or not has_expandable_segments(setting.value):
        return []
    why = "nccl_ub cannot be used with expandable segments (megatron-core distributed_data_parallel_config.py)"
    return [_problem(ALLOCATOR, setting, f"without {EXPANDABLE_SEGMENTS}", why)]


def _attention(asked: Asked, settings: Settings) -> Found:
    backend = asked.attention_backend
    found: Found = []
    for name, owner in zip(ATTENTION_SWITCHES, ("flash", "fused", "unfused"), strict=True):
        expected = "1" if backend in ("auto", owner) else "0"
        setting = settings.get(name)
        if setting is not None and setting.value != expected:
            why = f"attention_backend is {backend} (megatron-core language_module.py)"
            found.append(_problem(name, setting, f"{expected} or unset", why))
    return found


def _query_key_scaling(asked: Asked, settings: Settings) -> Found:
    setting = settings.get("NVTE_APPLY_QK_LAYER_SCALING")
    if not asked.on_gpu or setting is None or setting.value == "0":
        return []
    why = "apply_query_key_layer_scaling is off (megatron-core transformer_engine.py)"
    return [_problem("NVTE_APPLY_QK_LAYER_SCALING", setting, "0 or unset", why)]


def _offload(asked: Asked, settings: Settings) -> Found:
    setting = settings.get("NVTE_CPU_OFFLOAD_V1")
    if not asked.on_gpu or not asked.spec.offload.offload_modules or setting is None or setting.value == "1":
        return []
    why = "fine-grained activation offload would move weights as well (megatron arguments, transformer-engine >= 2.10)"
    return [_problem("NVTE_CPU_OFFLOAD_V1", setting, "1", why)]


_CHECKS: tuple[Callable[[Asked, Settings], Found], ...] = (
    _one_connection,
    _graph_register,
    _user_buffers,
    _attention,
    _query_key_scaling,
    _offload,
)
