"""What ranks get, from where, and what is refused before anything starts."""

from collections import Counter

import pytest

from harness.launch.environment import child_environment, recordable, this_host
from harness.launch.environment_rows import ROWS, exports
from harness.resolve.find import all_recipe_files, load_recipe, recipes_dir
from harness.resolve.recipe import build_spec
from tests.commands import refused

CANARY = "hf_CANARYcanary0123456789"
TP2 = {"tensor_model_parallel_size": 2}
GRAPHS = {"impl": "transformer_engine", "scope": ("attn",)}


def env_of(spec, shell=None, **changes):
    arguments = {"pass_env": (), "local_ranks": 2, "num_cores": 8, **changes}
    return {v.name: v for v in child_environment(spec, shell or {}, **arguments)}


def values(spec, shell=None, **changes):
    return {name: v.value for name, v in env_of(spec, shell, **changes).items()}


def test_a_cpu_run_gets_exactly_these_variables(cpu):
    assert values(cpu()) == {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", "CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "lo", "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_MMAP_THRESHOLD_": "33554432", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


def test_an_h100_run_gets_exactly_these_variables(h100):
    assert values(h100()) == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TORCH_NCCL_HIGH_PRIORITY": "1", "NCCL_NVLS_ENABLE": "0",
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "20", "NVTE_BWD_LAYERNORM_SM_MARGIN": "20",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"parallelism": TP2}, "1"),
        ({"parallelism": {"context_parallel_size": 2}}, "1"),
        ({"parallelism": TP2, "ddp": {"use_megatron_fsdp": True}}, "8"),
        ({"parallelism": TP2, "kernels": {"overlap_moe_expert_parallel_comm": True}}, "8"),
        ({"kernels": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}}, "32"),
        ({"kernels": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}}, "32"),
        ({"gpu": "a100"}, "8"),
        ({"gpu": "b200"}, "32"),
        ({"gpu": "gb300", "gpus_per_node": 4, "parallelism": TP2}, "32"),
    ],
)
def test_the_number_of_hardware_queues_follows_what_overlaps(h100, changes, expected):
    assert values(h100(**changes))["CUDA_DEVICE_MAX_CONNECTIONS"] == expected


@pytest.mark.parametrize(
    ("gpu", "changes", "expected"),
    [
        ("h100", {"ddp": {"nccl_ub": True}},
         {"PYTORCH_CUDA_ALLOC_CONF": None, "NCCL_NVLS_ENABLE": "1", "NCCL_CTA_POLICY": "1"}),
        ("h100", {"cuda_graph": GRAPHS}, {"NCCL_GRAPH_REGISTER": "0"}),  # with expandable segments
        ("h100", {"cuda_graph": GRAPHS, "env": {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"}},
         {"NCCL_GRAPH_REGISTER": None}),
        ("b200", {"cuda_graph": {"impl": "local"}, "env": {"NCCL_GRAPH_REGISTER": "1"}}, {"NCCL_GRAPH_REGISTER": "1"}),
        ("h100", {"kernels": {"transformer_impl": "transformer_engine", "attention_backend": "flash"}},
         {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"}),
        ("h100", {"offload": {"offload_modules": ("moe_act",)}}, {"NVTE_CPU_OFFLOAD_V1": "1"}),
        ("cpu", {"local_ranks": 8, "num_cores": 2}, {"OMP_NUM_THREADS": "1"}),  # a thread each
        ("cpu", {"nnodes": 2}, {"GLOO_SOCKET_IFNAME": None}),
    ],
)  # fmt: skip
def test_what_a_setting_needs_is_set(cpu, h100, gpu, changes, expected):
    machine = {name: value for name, value in changes.items() if name in ("local_ranks", "num_cores", "nnodes")}
    spec = (cpu if gpu == "cpu" else h100)(gpu=gpu, **{k: v for k, v in changes.items() if k not in machine})
    got = values(spec, **machine)
    assert {name: got.get(name) for name in expected} == expected


def test_your_shell_wins_over_the_table_and_the_recipe_over_your_shell(cpu, h100):
    name = "NCCL_NVLS_ENABLE"
    got = env_of(h100(), {name: "1"})[name]
    assert (got.value, got.source) == ("1", "your shell")
    got = env_of(h100(env={name: "1"}), {name: "0"})[name]
    assert (got.value, got.source) == ("1", "spec.env")
    assert values(cpu(), {"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"] == ""


def test_a_token_reaches_ranks_only_by_name_and_no_record_at_all(cpu):
    shell = {"HF_TOKEN": CANARY, "PATH": "/bin"}
    environment = child_environment(cpu(), shell, ("HF_TOKEN",), 2)
    passed = next(v for v in environment if v.name == "HF_TOKEN")
    assert (passed.value, passed.shown, passed.source) == (CANARY, "***", "--pass_env")
    assert "HF_TOKEN" not in recordable(environment)


def test_only_listed_variables_are_inherited_and_records_hold_nothing_personal(cpu):
    shell = {
        "PATH": "/home/me/bin", "HOME": "/home/me", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7", "EDITOR": "vi",
        "UCX_URL": "http://me:pw123@proxy", "WORLD_SIZE": "9", "HF_TOKEN": CANARY, "NVIDIA_API_KEY": CANARY, "SSH_AUTH_SOCK": "/x",
    }  # fmt: skip
    environment = child_environment(cpu(env={"FLAG": "1"}), shell, (), 2)
    inherited = {variable.name for variable in environment if variable.source == "inherited"}
    assert inherited == {"PATH", "HOME", "LC_ALL", "NCCL_DEBUG", "SLURM_JOB_ID", "UCX_URL"}
    recorded = recordable(environment)
    assert {"PATH", "HOME", "SLURM_JOB_ID"} & set(recorded) == set()
    assert (recorded["NCCL_DEBUG"], recorded["FLAG"]) == ("INFO", "1")
    assert recorded["UCX_URL"] == "http://***@proxy"


@pytest.mark.parametrize(
    ("name", "value"), [("MY_TOKEN", CANARY), ("HUB", CANARY), ("PROXY", f"http://me:{CANARY}@proxy")]
)
def test_a_secret_in_the_spec_is_refused_because_the_spec_is_recorded(cpu, name, value):
    [problem] = refused(lambda: child_environment(cpu(env={name: value}), {}, (), 2), name, "secret")
    assert problem.remedy.endswith(f"--pass_env {name}")
    assert CANARY not in str(problem)


def test_of_two_allocator_names_the_recipe_wins_and_two_values_of_one_place_stay_for_the_rules(h100):
    old, new, same = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "max_split_size_mb:512"
    for env, shell in (({}, {new: same}), ({new: same}, {}), ({}, {new: same, old: same})):
        got = values(h100(env=env), shell)
        assert (got[old], new in got) == (same, False)
    assert values(h100(env={old: "a:1"}), {new: "b:2"})[old] == "a:1"
    both = {old: "a:1", new: "b:2"}
    assert both.items() <= values(h100(env=both)).items()  # rule V06 refuses them


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "0"}, " RANK"),
        ({"TORCHELASTIC_RUN_ID": "x"}, " TORCHELASTIC_RUN_ID"),
        ({"A B": "0"}, "'A B' "),
        ({"A": "x\0y"}, "A: "),
    ],
)
def test_a_name_or_value_that_no_rank_can_have_is_refused_with_all_others(cpu, env, message):
    asked = cpu(env=env)
    refused(lambda: child_environment(asked, {}, ("HF_TOKEN",), 2), message, "--pass_env HF_TOKEN: ", num=2)


def test_each_variable_of_the_table_is_there_once():
    names = [row.name for row in ROWS]
    assert sorted(set(names)) == sorted(names)


def test_the_shell_is_read_as_it_is(monkeypatch):
    monkeypatch.setenv("MBR_TEST_VARIABLE", "x")
    host = this_host()
    assert host.shell["MBR_TEST_VARIABLE"] == "x"
    assert host.num_cores >= 1


_AGREE = {"CUDA_DEVICE_MAX_CONNECTIONS": 202, "NCCL_GRAPH_REGISTER": 230, "NCCL_NVLS_ENABLE": 245, "USE_MNNVL": 87,
          "NVTE_FWD_LAYERNORM_SM_MARGIN": 202, "PYTORCH_CUDA_ALLOC_CONF": 230, "TORCH_NCCL_HIGH_PRIORITY": 245,
          "TORCH_NCCL_AVOID_RECORD_STREAMS": 243, "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": 87,
          "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": 84, "NVTE_CPU_OFFLOAD_V1": 3}  # fmt: skip


def test_what_a_job_should_export_is_what_megatron_bridge_sets_in_its_recipes():
    points = [p for file in all_recipe_files(recipes_dir()) for p in load_recipe(file.path, file.label).points]
    specs = [build_spec(p.layer, p.place) for p in points if p.key.gpu != "cpu" and not p.key.inconsistent]
    pairs = [(name, spec.env.get(name) == value) for spec in specs for name, value in exports(spec).items()]
    agree = Counter(name for name, is_equal in pairs if is_equal)
    assert {name: agree[name] for name in _AGREE} == _AGREE
