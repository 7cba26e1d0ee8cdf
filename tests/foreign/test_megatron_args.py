"""Reading Megatron-LM's arguments from command lines, scripts and logs, and refusing what has no counterpart."""

import gzip
import io
import json
import re
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.experiment.recompute import canonical_text
from harness.foreign.megatron_arguments import arguments, from_words, known, options
from harness.foreign.megatron_fields import arguments_layer
from harness.foreign.settings import rows_of
from harness.foreign.shell_script import Word
from harness.resolve.recipe import LEAVES, ForeignSource, Request, at_path
from harness.resolve.resolve import resolve
from harness.show.request_text import assumed_lines
from tests.commands import refused
from tests.imported_logs import MEGATRON_LM

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"
BLOCKS = ("dense_v0.8.0", "dense_v0.16.1", "dense_d98e8a64")
SMALLEST = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16"


def block(name):
    return gzip.decompress((DATA / f"{name}.arguments.gz").read_bytes()).decode()


@pytest.fixture
def spec(resolved):
    return lambda text, **asked: resolved(text, **asked).spec


@pytest.mark.parametrize("name", BLOCKS)
def test_the_block_of_a_log_says_what_its_command_line_says(spec, name):
    ours = spec(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MEGATRON_LM}", num_gpus=None)
    found = spec(block(name), num_gpus=None)
    assert found.model_copy(update={"model": found.model.model_copy(update={"kv_channels": None})}) == ours
    assert found.model.head_dim == ours.model.head_dim
    assert (ours.num_gpus, ours.recompute.text, ours.model.query_groups) == (16, "full:uniform:1", 8)
    assert (ours.ddp.overlap_param_gather, ours.ddp.align_grad_reduce, ours.model.rotary_base) == (True, True, 500000)


def test_a_block_with_experts_latents_and_a_layout(spec):
    found = spec(block("moe_v0.16.1"), num_gpus=None)
    assert (found.model.moe.moe_layer_freq, found.model.mla.q_lora_rank) == ((0,) + (1,) * 25, 1536)
    cut = found.parallelism
    assert (cut.pipeline_model_parallel_layout, cut.virtual_pipeline_model_parallel_size) == ("Et*3|(tt|)*10t*3mL", 3)
    assert (found.recompute.text, cut.expert_tensor_parallel_size) == ("moe_act,layernorm", 1)


def test_an_argument_of_a_log_that_nobody_knows_is_noted_and_on_a_command_line_refused(resolved):
    more = "  my_fork_flag ....... True\n  use_mcore_models ..... True\n"
    found = resolved(block("dense_v0.16.1") + more, num_gpus=None)
    assert [note for note in found.notes if note.endswith("predicted: my_fork_flag (True)")]
    refused(lambda: resolved(f"{SMALLEST} --my-fork-flag --use-mcore-models"), "--my-fork-flag")


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_SOCKET_IFNAME=eth0
GPUS=8; NODES=2
LAUNCH="--nproc_per_node $GPUS --nnodes $NODES"
DATA="--data-path ${DATA_PATH} --seq-length 32"
torchrun $LAUNCH pretrain_gpt.py --num-layers 4 \\
  --hidden-size 64 --num-attention-heads 4 \\
  --vocab-size 99 $DATA \\
  --micro-batch-size 2 --bf16 --save $OUT 2>&1 | tee log.txt
"""


def test_a_script_of_variables_and_one_command(resolved):
    found = resolved(SCRIPT, num_gpus=None)
    assert (found.spec.num_gpus, found.spec.model.num_layers, found.spec.batch.seq_length) == (16, 4, 32)
    assert found.spec.batch.global_batch_size == 32  # Megatron-LM's default: one micro-batch for each copy
    assert found.spec.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert found.sources["model.hidden_size"].endswith("train.sh:7: --hidden-size")
    assert found.sources["model.attention_dropout"] == "default of Megatron-LM"


@pytest.mark.parametrize(
    ("launcher", "num_gpus"),
    [
        ("srun --nodes=4 --ntasks-per-node=8 python", 32),
        ("srun --nodes=4 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node=4", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8", 16),
        ("python -m torch.distributed.launch --nproc-per-node 4", 4),
    ],
)
def test_the_launcher_says_the_number_of_gpus(spec, launcher, num_gpus):
    assert spec(f"{launcher} pretrain_gpt.py {SMALLEST}", num_gpus=None).num_gpus == num_gpus


def test_the_one_command_that_trains_is_read(spec):
    script = f"python tools/preprocess_data.py --vocab-size 5 --num-layers 2\ntorchrun pretrain_gpt.py {SMALLEST}"
    assert spec(script) == spec(SMALLEST)


def test_arguments_may_stand_one_on_each_line(spec):
    assert spec(SMALLEST.replace(" --", "\n--")) == spec(SMALLEST)


def test_options_override_arguments(spec):
    found = spec(MEGATRON_LM, num_gpus=16, tensor_model_parallel_size=4, recompute="mlp")
    assert (found.parallelism.tensor_model_parallel_size, found.recompute.text) == (4, "mlp")


def test_megatron_lms_defaults_fill_in_what_is_absent(spec):
    found = spec(SMALLEST)
    model = found.model
    assert (model.ffn_hidden_size, model.attention_dropout, model.activation_func) == (256, 0.1, "gelu")
    assert model.position_embedding_type == "learned_absolute"
    assert model.share_embeddings_and_output_weights and model.add_bias_linear
    assert not found.optimizer.use_distributed_optimizer
    assert spec(f"{SMALLEST} --swiglu").model.ffn_hidden_size == 128


@pytest.mark.parametrize(
    ("more", "path", "value"),
    [
        ("--recompute-activations", "recompute.text", "core_attn"),
        ("--recompute-granularity selective --recompute-modules mlp core_attn", "recompute.text", "mlp,core_attn"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "recompute.text", "full:block:2"),
        ("--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2",
         "parallelism.virtual_pipeline_model_parallel_size", 2),
        ("--swiglu --quick-geglu", "model.activation_func", "silu"),
        ("--pipeline-model-parallel-layout Et|t|t|tL --pipeline-model-parallel-size 2",
         "parallelism.virtual_pipeline_model_parallel_size", 2),
        ("--pipeline-model-parallel-layout Ett|ttL --pipeline-model-parallel-size 2",
         "parallelism.virtual_pipeline_model_parallel_size", None),
        ("--use-rotary-position-embeddings", "model.position_embedding_type", "rope"),
        ("--grad-reduce-in-bf16", "ddp.grad_reduce_in_fp32", False),
        ("--transformer-impl local", "kernels.attention_backend", "unfused"),
        ("--enable-cuda-graph", "cuda_graph.impl", "local"),
        ("--fp8-format hybrid --fp8-param-gather", "compute_dtype", "fp8_ds"),
        ("--fp8-format hybrid", "compute_dtype", "fp8_ds_bf16_weights"),
        ("--fp8-format hybrid --fp8-recipe blockwise", "compute_dtype", "fp8_sc"),
        ("--fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather", "compute_dtype", "fp8_sc_fp8_weights"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "compute_dtype", "fp8_cs_bf16_weights"),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather", "compute_dtype", "fp8_cs"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "compute_dtype", "fp8_mx_bf16_weights"),
        ("--window-size 128,0 --window-attn-skip-freq 2", "model.window_size", (128, 0)),
        ("--cuda-graph-warmup-steps 0", "cuda_graph.warmup_steps", 0),
        ("--apply-layernorm-1p", "model.layernorm_zero_centered_gamma", True),
    ],
)  # fmt: skip
def test_arguments_that_are_spelt_otherwise_here(spec, more, path, value):
    found = spec(f"{SMALLEST} {more}")
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


HALF = SMALLEST.replace("--bf16", "--fp16")


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (HALF, "compute_dtype", "fp16"),
        (HALF, "ddp.grad_reduce_in_fp32", False),
        (f"{HALF} --accumulate-allreduce-grads-in-fp32", "ddp.grad_reduce_in_fp32", True),
        (f"{HALF} --loss-scale 1024", "optimizer.loss_scale", 1024.0),
        (f"{SMALLEST} --loss-scale 1024", "optimizer.loss_scale", None),
        (f"{SMALLEST} --squared-relu", "model.activation_func", "squared_relu"),
        (f"{SMALLEST} --optimizer sgd --sgd-momentum 0", "optimizer.sgd_momentum", 0.0),
        (f"{SMALLEST} --optimizer dist_muon", "optimizer.optimizer", "dist_muon"),
        (f"{SMALLEST} --optimizer-cpu-offload", "optimizer.optimizer_offload_fraction", 1.0),
        (f"{SMALLEST} --optimizer-cpu-offload --optimizer-offload-fraction 0.5", "optimizer.optimizer_offload_fraction", 0.5),
        (f"{SMALLEST} --optimizer-offload-fraction 0.5", "optimizer.optimizer_offload_fraction", 1.0),
        (f"{SMALLEST} --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d",
         "optimizer.overlap_cpu_optimizer_d2h_h2d", True),
        (f"{SMALLEST} --num-experts 4 --moe-router-load-balancing-type sinkhorn",
         "model.moe.moe_router_load_balancing_type", "sinkhorn"),
    ],
)  # fmt: skip
def test_optimizers_and_precisions_of_megatron_lm(spec, arguments, path, value):
    assert at_path(spec(arguments), path) == value


@pytest.mark.parametrize(
    ("more", "path", "place"),
    [
        ("--transformer-impl local", "kernels.gradient_accumulation_fusion", "train.sh:1: --transformer-impl"),
        ("--no-bias-swiglu-fusion --swiglu", "kernels.bias_activation_fusion", "train.sh:1: --no-bias-swiglu-fusion"),
        ("", "kernels.gradient_accumulation_fusion", "default of Megatron-LM"),
    ],
)
def test_a_value_names_the_argument_that_decides_it(resolved, more, path, place):
    assert resolved(f"{SMALLEST} {more}").sources[path].rpartition("/")[2] == place


@pytest.mark.parametrize(
    "row",
    [
        ("--fp16 --fp8-format hybrid", "train.sh:1: --fp16: ", "FP8"),
        ("--fp16", "--fp16: ", "BF16"),
        ("--optimizer soap", "train.sh:1: --optimizer soap: "),
        ("--num-distributed-optimizer-instances 2", "--num-distributed-optimizer-instances 2: "),
        ("--context-parallel-size 2 --cp-comm-type all_gather", "--cp-comm-type: all_gather: ", "p2p"),
        ("--context-parallel-size 2 --cp-comm-type p2p a2a", "--cp-comm-type: p2p, a2a: "),
        ("--is-hybrid-model", "--is-hybrid-model: "),
        ("--deterministic-mode --experimental-attention-variant gated_delta_net", "--deterministic-mode: "),
        ("--fine-grained-activation-offloading --offload-modules moe_act --min-offloaded-tensor-size 7",
         "--min-offloaded-tensor-size 7: "),
        ("--spec local", "train.sh:1: --spec local: "),
        ("--rampup-batch-size 8 8 100", "--rampup-batch-size 8 8 100: "),
        ("--moe-router-load-balancing-type rank --num-experts 4", "'sinkhorn'", "'none'", "'rank'"),
        ("--use-megatron-fsdp", "FSDP"),
        ("--num-layer 8", "train.sh:1: --num-layer: "),
        ("--moe-layer-freq open('x') --num-experts 2", "--moe-layer-freq: ", "open(x)"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 0",
         "--recompute-num-layers: ", " 1", " 0"),
        ("--recompute-granularity full", "--recompute-granularity", "--recompute-method", "uniform or block"),
        ("--bf16 --fp4-format e2m1", "--fp4-format: ", "add --fp4-param-gather"),
        ("--recompute-granularity selective --recompute-modules mpl", "--recompute-modules: ", "'mpl'"),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size: ", "two"),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size: "),
        ("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size", "$TP"),
        ("$MORE_ARGS", "train.sh:1: $MORE_ARGS: "),
        ("8", "train.sh:1: 8: "),
        ("--transformer-impl local --no-masked-softmax-fusion", "--no-masked-softmax-fusion: "),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ex|tL",
         "--pipeline-model-parallel-layout: Ex|tL: ", "'x'", "E, t, m, L"),
        ("--recompute-activations --recompute-granularity full --recompute-method uniform",
         "--recompute-method uniform: "),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_at_its_place(resolved, row):
    more, *names = row
    refused(lambda: resolved(f"{SMALLEST} {more}"), *names, num=None)


@pytest.mark.parametrize("more", ["--rampup-batch-size 8 8 100", "--never-heard-of 3 4"])
def test_the_values_of_a_refused_argument_are_no_further_problems(resolved, more):
    [problem] = refused(lambda: resolved(f"{SMALLEST} {more}"), more.split()[0])
    assert len(problem.message) < 200


def test_recompute_arguments_without_a_granularity_are_noted(resolved):
    resolution = resolved(f"{SMALLEST} --recompute-modules mlp")
    [note] = resolution.notes
    assert ":1: --recompute-modules " in note and "--recompute-granularity" in note
    assert canonical_text(resolution.spec.recompute) == "none"
    assert resolved(SMALLEST).notes == ()


@pytest.mark.parametrize(("words", "kind"), [("a2a", "a2a"), ("a2a a2a", "a2a"), ("p2p", "p2p")])
def test_the_communication_of_context_parallelism_is_one_for_all_layers(spec, words, kind):
    asked = spec(f"{SMALLEST} --cp-comm-type {words}", context_parallel_size=2, num_gpus=2)
    assert asked.parallelism.cp_comm_type == kind


def test_without_context_parallelism_its_communication_is_no_matter(spec):
    assert spec(f"{SMALLEST} --cp-comm-type all_gather") == spec(f"{SMALLEST} --cp-comm-type a2a") == spec(SMALLEST)


@pytest.mark.parametrize(
    ("argument", "remark"),
    [
        ("--eval-micro-batch-size 4", "--eval-micro-batch-size 4 "),
        ("--rerun-mode report_determinism_stats", "--rerun-mode report_determinism_stats "),
        ("--config-logger-dir logged", "--config-logger-dir logged "),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", "gathered weights"),
        ("--seq-length 32768 --max-position-embeddings 32768", "1.00 GiB for each micro-batch"),
        ("--delay-wgrad-compute --deterministic-mode", "--delay-wgrad-compute "),
        ("--moe-deepep-num-sms 24", ""),
        ("--eval-micro-batch-size 1", ""),
        ("--rotary-interleaved", "--rotary-interleaved "),
        ("--vocab-size 99", ""),
        ("--rerun-mode validate_results", ""),
        ("--timing-log-level 0", ""),
        ("--min-offloaded-tensor-size 7", ""),
        ("--seq-length 32768 --max-position-embeddings 32768 --no-create-attention-mask-in-dataloader", ""),
    ],
)
def test_what_changes_some_steps_or_is_not_counted_is_noted_and_nothing_else(resolved, argument, remark):
    notes = [note for note in resolved(f"{SMALLEST} {argument}").notes if not re.search("--bf16|32768, not 32", note)]
    assert len(notes) == bool(remark) and all(remark in note for note in notes), notes
    assert len(assumed_lines(notes)) == ("not all is predicted" in "".join(notes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no argument"),
        ("import torch\nprint(1)\n", "no argument"),
        (b"\x00\x01--num-layers 4 --hidden-size 2", "a binary file"),
        (b"\x80\x03--num-layers", "not UTF-8"),
        (" " * (9 << 20), "larger than 8 MiB"),
        ("--num-layers 4 --hidden-size 64", "no --num-attention-heads, --micro-batch-size, --seq-length"),
        (SMALLEST.replace("--vocab-size 99", "--tokenizer-type HuggingFaceTokenizer"), "--vocab_size"),
        (f"torchrun a.py {SMALLEST}\ntorchrun b.py {SMALLEST}", "lines 1, 2"),
        ("-------- arguments --------\n-------- end of arguments -----\n", "empty"),
        ("-------- arguments --------\n  world_size ....... many\n", "train.sh:2: world_size: many: "),
        ("-------- arguments --------\n  deepspeed ....... True\n", "--num-layers"),
    ],
)
def test_a_file_without_usable_arguments_is_refused(resolved, text, message):
    refused(lambda: resolved(text), "train.sh", message, num=None)


def test_the_vocabulary_may_come_from_an_option(spec):
    text = SMALLEST.replace("--vocab-size 99", "--tokenizer-type HuggingFaceTokenizer")
    assert spec(text, set_values=("model.vocab_size=1000",)).model.vocab_size == 1000
    assert spec(SMALLEST.replace("--vocab-size 99", "--vocab-file a --merge-file b")).model.vocab_size == 50257
    refused(lambda: spec("pretrain_gpt.py --num-layers 4 --fooo 3"), "--fooo", "--hidden-size", "--vocab_size", num=3)


@pytest.mark.parametrize(
    ("layout", "batch"), [("", 32), (" --pipeline-model-parallel-size 4 --tensor-model-parallel-size 4", 8)]
)
def test_another_number_of_gpus_than_torchruns_needs_no_other_option(spec, layout, batch):
    """The batch grows with the copies of the model; a layout for which torchrun's GPUs are too few has none to start from."""
    text = SMALLEST.replace("--vocab-size 99", "--tokenizer-type HuggingFaceTokenizer --global-batch-size 8") + layout
    found = spec(
        f"torchrun --nproc_per_node=8 pretrain_gpt.py {text}", num_gpus=32, set_values=("model.vocab_size=1000",)
    )
    assert (found.num_gpus, found.batch.global_batch_size, found.model.vocab_size) == (32, batch, 1000)


def test_standard_input_is_read_once_for_a_request_that_is_resolved_again(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(SMALLEST.encode()))))
    request = Request(model_recipe_name="", gpu="h100", num_gpus=8, source=ForeignSource("megatron_args", "-"))
    assert resolve(request).spec == resolve(request).spec
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    refused(lambda: resolve(request), "standard input: ")


def test_a_terminal_gives_no_arguments(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    request = Request(model_recipe_name="", gpu="h100", num_gpus=8, source=ForeignSource("megatron_args", "-"))
    refused(lambda: resolve(request), "piped")
    monkeypatch.setattr("sys.stdin", None)
    refused(lambda: resolve(request), "piped")


def test_the_table_of_arguments_and_the_tables_of_treatment_fit_together():
    rows = rows_of("megatron")
    assert {name for row in rows for name in row.names} | set(known()) == set(known())
    assert {row.path for row in rows} <= set(LEAVES)
    assert {name for name, rows in known().items() if any(row.kind == "unread" for row in rows)} <= set(arguments())
    assert len(options()) > 600


def test_an_option_of_a_harmless_family_takes_the_words_up_to_the_next_option():
    given = from_words(written({"rl-new": ["a", "b"], "no-log-more": True, "num-layers": 4}), "row").given
    assert {name: each.value for name, each in given.items()} == {
        "rl_new": ("a", "b"),
        "log_more": True,
        "num_layers": 4,
    }


def written(arguments):
    """The words of a command line; False and None are options that were not given."""
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    words = ((f"--{name}", *(value if isinstance(value, list) else [value])) for name, value in given.items())
    return [Word(str(word), 1) for option in words for word in option if word is not True]


def test_every_published_run_is_read_or_left_out_with_its_reason():
    path = Path(__file__).parents[2] / "results/accuracy/inputs/megatron_lm_goldens.json"
    unknown = []
    for row in json.loads(path.read_text())["rows"]:
        given = row["arguments"]
        try:
            assert arguments_layer(from_words(written(given), "row"))["model.num_layers"].value == given["num-layers"]
        except BadRequestError as error:
            lines = str(error).splitlines()
            unknown += [line for line in lines if "not an argument" in line and "--export-" not in line]
    assert unknown == []


def test_the_last_of_repeated_options_counts_and_equals_signs_are_read(spec):
    assert spec(f"{SMALLEST} --num-layers=8").model.num_layers == 8


def without_vocabulary():
    text = re.sub(r"(\n  tokenizer_type \.+) \w+", r"\1 HuggingFaceTokenizer", block("dense_v0.16.1"))
    return re.sub(r"(\n  vocab_size \.+) \d+", r"\1 None", text) + "-------- end of arguments --------\n"


def test_a_log_has_the_size_of_the_vocabulary_in_the_line_of_its_tokenizer(resolved):
    line = " > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)\n"
    assert resolved(without_vocabulary() + line, num_gpus=None).spec.model.vocab_size == 50257
    assert resolved(block("dense_v0.16.1") + line, num_gpus=None).spec.model.vocab_size == 128256
    refused(lambda: resolved(without_vocabulary(), num_gpus=None), "--vocab_size")
