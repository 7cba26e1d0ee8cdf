"""Every name that the worker takes from megatron-core exists in the installed release and takes what it is given.

Run it against another release with PYTHONPATH set to where that is unpacked.
"""

import ast
import importlib
import inspect
from dataclasses import astuple, dataclass
from pathlib import Path
from pkgutil import resolve_name

import pytest

import harness
from harness.experiment.modules import MODULES

ENGINE = Path(harness.__file__).parent / "engine"
FILES = sorted(path for path in ENGINE.rglob("*.py") if "megatron" in path.read_text())

# Looked for before use, because not every release has it.
OPTIONAL = {
    "megatron.core.transformer.moe.grouped_gemm_util",
    "megatron.core.full_cuda_graph.get_shared_capture_stream",
}

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def without_transformer_engine():
    from harness.engine import cpu_backend

    cpu_backend.block_transformer_engine()


@dataclass(frozen=True)
class Call:
    """A call of something of megatron-core's: where, what, and with what."""

    place: str
    name: str
    num_positional: int
    keywords: tuple[str, ...]


def imports_of(path):
    """Local name -> dotted name, for everything that a file imports from megatron-core.

    Megatron-Bridge's names, in ``megatron.bridge``, are for ``scripts/check-bridge``: it is not installed here.
    """
    names = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron.core"):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            megatron = (alias for alias in node.names if alias.name.startswith("megatron.core") and alias.asname)
            names |= {alias.asname: alias.name for alias in megatron}
    return names


def calls_of(path):
    """Every call in a file whose target was imported from megatron."""
    imported = imports_of(path)
    for node in ast.walk(ast.parse(path.read_text())):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        first, _, rest = name.partition(".")
        if first in imported and name.replace(".", "").isidentifier():
            target = imported[first] + (f".{rest}" if rest else "")
            keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
            starred = any(isinstance(argument, ast.Starred) for argument in node.args)
            yield Call(f"{path.name}:{node.lineno}", target, 0 if starred else len(node.args), keywords)


def resolvable(name):
    try:
        resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


IMPORTED = sorted({name for path in FILES for name in imports_of(path).values()} - OPTIONAL)
CALLS = sorted({call for path in FILES for call in calls_of(path)}, key=astuple)


def test_the_worker_does_import_and_call_megatron_core():
    assert "megatron.core.parallel_state" in IMPORTED
    assert {"megatron.core.parallel_state.initialize_model_parallel", "megatron.core.models.gpt.GPTModel",
            "megatron.core.optimizer.get_megatron_optimizer"} <= {call.name for call in CALLS}  # fmt: skip


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_names_exist(name):
    assert resolvable(name)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.place}-{call.name.rpartition('.')[2]}")
def test_calls_fit_the_signature(call):
    if call.name in OPTIONAL and not resolvable(call.name):
        pytest.skip("the worker looks before it asks")
    target = resolve_name(call.name)
    signature = inspect.signature(target)
    self = (None,) if not inspect.isclass(target) and call.name.endswith(".__init__") else ()
    signature.bind_partial(*self, *(None,) * call.num_positional, **dict.fromkeys(call.keywords))


PATCHED = (
    ("megatron.core.tensor_parallel.random", "_get_cuda_rng_state"),
    ("megatron.core.tensor_parallel.random", "_set_cuda_rng_state"),
    ("megatron.core.transformer.moe.token_dispatcher", "maybe_move_tensor_to_cpu"),
    ("megatron.core.transformer.multi_latent_attention", "HAVE_TE"),
)


@pytest.mark.parametrize(("module", "name"), PATCHED)
def test_what_an_adaptation_replaces_is_there_to_replace(module, name):
    assert name in vars(importlib.import_module(module))


def test_the_replaced_functions_still_take_what_the_replacements_take():
    def parameters(name):
        return [*inspect.signature(resolve_name(name)).parameters]

    move = parameters("megatron.core.transformer.moe.token_dispatcher.maybe_move_tensor_to_cpu")
    assert move == ["tensor", "as_numpy", "record_stream"]
    first, *later = parameters("megatron.core.tensor_parallel.random.CheckpointWithoutOutput")
    assert (first, later) in (
        ("fp8", []),
        ("fp8", ["ckpt_manager", "retain_input_tensors"]),
    )  # the later ones from 0.20 on


# Where read-back looks for the flags that say what a built layer recomputes: class, attribute.
FLAG_OWNERS = (
    ("megatron.core.transformer.attention.Attention", "checkpoint_core_attention"),
    ("megatron.core.transformer.transformer_layer.TransformerLayer", "recompute_input_layernorm"),
    ("megatron.core.transformer.transformer_layer.TransformerLayer", "recompute_pre_mlp_layernorm"),
    ("megatron.core.transformer.transformer_layer.TransformerLayer", "recompute_mlp"),
    ("megatron.core.transformer.moe.moe_layer.MoELayer", "moe_layer_recompute"),
    ("megatron.core.transformer.moe.moe_layer.MoELayer", "shared_experts_recompute"),
    ("megatron.core.transformer.moe.experts.TEGroupedMLP", "activation_recompute"),
    ("megatron.core.transformer.multi_latent_attention.MLASelfAttention", "recompute_up_proj"),
)


@pytest.mark.parametrize(("owner", "attribute"), FLAG_OWNERS)
def test_layers_still_keep_their_recompute_flags_where_read_back_looks(owner, attribute):
    switches = [switch for row in MODULES.values() for switch in row.switches]
    assert attribute in {switch.rpartition(".")[2] for switch in switches}
    classes = [cls for cls in resolve_name(owner).__mro__ if cls.__module__.startswith("megatron")]
    assert any(f"self.{attribute} =" in inspect.getsource(cls) for cls in classes)
