"""Jobs as people have them: scripts, captured, completed by options, of test configurations, of other programs and trainers."""

from dataclasses import replace

import pytest

from harness.cli.commands import job_words
from harness.foreign.shell_script import read_script
from harness.launch.environment import this_host
from harness.launch.environment_rows import EXPORTS
from harness.measure.checking import check_request
from harness.measure.understanding import RunRequest
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve
from tests.commands import refused
from tests.foreign.test_megatron_args import SMALLEST


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ('A=1\nif [ "$NODE" = 0 ]; then\n  torchrun pretrain_gpt.py {}\nfi', 2),
        ("case $1 in\n train) torchrun pretrain_gpt.py {};;\nesac", 1),
        ("A=$(nproc)\ntorchrun pretrain_gpt.py {} --mtp-num-layers $A", 2),
        ("CMD='torchrun pretrain_gpt.py {}'\neval $CMD", 2),
        ("srun bash -c 'torchrun pretrain_gpt.py {}'", 1),
        ('ARGS="{}"\n', 1),
    ],
)
def test_a_script_with_a_program_in_it_is_refused_with_the_way_to_capture_it(resolved, script, line):
    [problem] = refused(lambda: resolved(script.format(SMALLEST)), f"train.sh:{line}: ")
    assert "mbr-perf capture -- bash" in problem.remedy


def test_what_the_arguments_do_not_need_refuses_no_script(resolved):
    found = resolved(
        "MASTER_ADDR=${MASTER_ADDR:-localhost}\nHERE=$(dirname $0)\nLAUNCH=(--nproc_per_node ${GPUS:-2}\n"
        f"--master_addr $MASTER_ADDR)\nMODEL=({SMALLEST})\ntorchrun ${{LAUNCH[@]}} $HERE/pretrain_gpt.py \"${{MODEL[@]}}\""
        " --save $(mktemp) --data-path $1", num_gpus=None)  # fmt: skip
    assert found.spec.num_gpus == 2
    assert any(note.startswith("assumed: GPUS=2, MASTER_ADDR=localhost; ") for note in found.notes)


def test_the_environment_beside_a_captured_job_is_part_of_it(tmp_path):
    job = tmp_path / "job_001.args"
    job.write_text(f"# Captured from: bash run.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py {SMALLEST}\n")
    job.with_suffix(".env").write_text("CUDA_DEVICE_MAX_CONNECTIONS=1\nNCCL_ALGO='^Tree Ring'\nHF_TOKEN='***'\n")
    request = Request(model_recipe_name="", source=ForeignSource("megatron_args", str(job)), gpu="h100")
    found = resolve(request, starts=True)
    assert found.spec.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_ALGO": "^Tree Ring"}
    assert found.sources["env.NCCL_ALGO"] == f"{job.with_suffix('.env')}: NCCL_ALGO"


TP_2 = "--tensor-model-parallel-size 2 --transformer-impl transformer_engine"
OFFLOAD = "--fine-grained-activation-offloading --offload-modules core_attn --transformer-impl transformer_engine"


@pytest.mark.parametrize(
    ("text", "gpu", "found"),
    [
        ("torchrun pretrain_gpt.py {tp}", "h100", {"V01"}),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun pretrain_gpt.py {tp}", "h100", set()),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\nunset CUDA_DEVICE_MAX_CONNECTIONS\npython pretrain_gpt.py {tp}", "h100",
         {"V01"}),
        ("torchrun pretrain_gpt.py {tp}", "b200", set()),
        ("torchrun pretrain_gpt.py {offload}", "h100", {"F06"}),
        ("export NVTE_CPU_OFFLOAD_V1=1\ntorchrun pretrain_gpt.py {offload}", "h100", set()),
        ("{tp}", "h100", set()),  # no program, and so no environment
    ],
)  # fmt: skip
def test_a_variable_that_the_job_s_own_launcher_demands_is_missed(tmp_path, text, gpu, found):
    path = tmp_path / "train.sh"
    path.write_text(text.format(tp=f"{SMALLEST} {TP_2}", offload=f"{SMALLEST} {OFFLOAD}"))
    asked = Request(model_recipe_name="", source=ForeignSource("megatron_args", str(path)), gpu=gpu, num_gpus=8)
    host = replace(this_host(), shell={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})  # this shell does not start the job
    checked = check_request(RunRequest(asked=asked), host, assume="megatron-core=0.16.1", ask_megatron=False)
    assert {each.id for each in checked.findings if each.blocks} == found
    assert [note for note in checked.notes if note.startswith(EXPORTS) and "NCCL_NVLS_ENABLE=0" in note] != []


def test_another_program_is_noted_and_judged_by_its_arguments(resolved):
    found = resolved(f"torchrun pretrain_qwen.py {SMALLEST}")
    gpt = resolved(f"torchrun pretrain_gpt.py {SMALLEST}")
    assert found.spec == gpt.spec
    assert [any("pretrain_qwen.py" in note for note in each.notes) for each in (found, gpt)] == [True, False]
    refused(lambda: resolved(f"torchrun pretrain_mamba.py {SMALLEST} --is-hybrid-model"), "--is-hybrid-model", num=None)


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        (f"torchrun pretrain_bert.py {SMALLEST}", "pretrain_bert.py: ", "encoder"),
        (f"torchrun pretrain_t5.py {SMALLEST}", "pretrain_t5.py: ", "decoder"),
        (f"{SMALLEST} --bert-no-binary-head", "--bert-no-binary-head: ", "encoder"),
        (f"torchrun pretrain_gpt.py {SMALLEST} --img-h 224", "--img-h: ", "images"),
    ],
)
def test_a_model_that_is_no_gpt_is_refused_with_the_part_that_is_missing(resolved, text, where, part):
    refused(lambda: resolved(text), "train.sh:", where, part)


def test_a_test_configuration_is_of_the_model_of_its_folder(tmp_path):
    path = tmp_path / "bert" / "bert_tp2" / "model_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TEST_CONFIGURATION)
    request = Request(model_recipe_name="", gpu="h100", num_gpus=8, source=ForeignSource("megatron_args", str(path)))
    refused(lambda: resolve(request), "bert: ", "encoder")


def test_a_launcher_of_no_process_is_refused_unless_an_option_says_how_many(resolved):
    text = f"torchrun --nproc_per_node 0 pretrain_gpt.py {SMALLEST}"
    refused(lambda: resolved(text, num_gpus=None), "train.sh:1: --nproc_per_node: ")
    assert resolved(text).spec.num_gpus == 8


def test_options_and_set_complete_a_file(resolved):
    """What a file lacks is judged after the options; what they give counts as if the file said it."""
    slime = "--num-layers 4 --num-attention-heads 4 --vocab-size 99 --bf16 --swiglu"
    given = {"micro_batch_size": 2, "seq_length": 64, "hidden_size": 96}
    found = resolved(slime, **given)
    assert found.spec == resolved(f"{slime} --micro-batch-size 2 --seq-length 64 --hidden-size 96").spec
    assert (found.spec.model.ffn_hidden_size, found.sources["batch.seq_length"]) == (256, "--seq_length")
    by_set = resolved(
        slime.replace("--num-layers 4", ""),
        **given | {"seq_length": None},
        set_values=("batch.seq_length=64", "model.num_layers=4"),
    )
    assert by_set.spec == found.spec
    refused(lambda: resolved(slime, **given | {"seq_length": None}), "no --seq-length")


TEST_CONFIGURATION = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 64
  --num-attention-heads: 4
  --seq-length: 16
  --seq-length: 32
  --micro-batch-size: 1
  --vocab-size: 99
  --bf16: true
  --save: ${CHECKPOINT_SAVE_PATH}
  --recompute-granularity: selective
  --recompute-modules: "[mlp core_attn]"
  --moe-layer-freq: ([0]*1+[1]*3)
TEST_TYPE: regular
"""


def test_a_configuration_of_megatron_lms_tests_is_read(resolved, tmp_path):
    found = resolved(TEST_CONFIGURATION)
    assert (found.spec.env, found.spec.recompute.text) == ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "mlp,core_attn")
    assert found.sources["model.hidden_size"].endswith("train.sh:5: --hidden-size")
    path = tmp_path / "model_config.yaml"
    path.write_text(TEST_CONFIGURATION)
    assert job_words(str(path)) == ["--megatron_args", str(path)]
    refused(lambda: resolved(TEST_CONFIGURATION.replace("recompute-modules", "tp")), "train.sh:14: --tp: ", num=None)
    refused(lambda: resolved("MODEL_ARGS: 3\n"), "not a configuration")
    quoted = TEST_CONFIGURATION.replace("CUDA_DEVICE_MAX_CONNECTIONS", '"CUDA_DEVICE_MAX_CONNECTIONS"')
    assert resolved(quoted.replace("bf16: true", "bf16: True")).spec == found.spec
    refused(lambda: resolved(TEST_CONFIGURATION.replace("bf16: true", "bf16: {a: 1}")), "train.sh:11: --bf16: ")


@pytest.mark.parametrize(
    ("command", "whose", "options"),
    [
        ("NPROC_PER_NODE=8 megatron sft --model org/m --tensor_model_parallel_size 4 --max_length 8192",
         "ms-swift", "--hf org/m -tp 4 -sl 8192 -g h100"),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2",
         "verl", "--hf /m -pp 2 -g h100"),
        ("python3 train_async.py --actor-num-nodes 4 --hf-checkpoint /m --tensor-model-parallel-size 2 --num-layers 8",
         "slime", "--hf /m -tp 2 --num_layers 8 -g h100"),
        ("uv run examples/run_grpo_math.py policy.model_name=m ++policy.megatron_cfg.context_parallel_size=2",
         "NeMo RL", "--hf m -cp 2 -g h100"),
        ("torchrun primus/train.py --config exp.yaml --micro_batch_size 2", "Primus", "--hf MODEL -mb 2 -g h100"),
    ],
)  # fmt: skip
def test_a_command_of_another_trainer_is_told_with_the_equivalent_options(resolved, command, whose, options):
    [problem] = refused(lambda: resolved(command), whose)
    assert problem.remedy.endswith(f"mbr-perf plan {options}")


def test_arguments_of_a_fork_are_read_by_their_meaning(resolved):
    """Pai-Megatron-Patch's own arguments of data change no step; others are Megatron-LM's under another name."""
    fork = "--dataset LLama --max-padding-length 9 --patch-tokenizer-type T --train-data a b --keep-last --extra-vocab-size 0"
    named = "--intermediate-size 96 --use-llama2-rotary-position-embeddings"
    found = resolved(f"torchrun pretrain_llama.py {SMALLEST} {fork} {named}")
    same = "--ffn-hidden-size 96 --use-rotary-position-embeddings"
    assert found.spec == resolved(f"torchrun pretrain_gpt.py {SMALLEST} {same}").spec
    assert (
        found.spec == resolved(f"torchrun a.py {SMALLEST} --ffn-hidden-size 96 --position-embedding-type rotary").spec
    )
    assert any("--extra-vocab-size 256" in note for note in resolved(f"{SMALLEST} --extra-vocab-size 256").notes)


def words(text):
    return [[word.text for word in command] for command in read_script(text, "run.sh").commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 # a comment\n", [["run", "--a", "1"]]),
        ("run --a \\\n  1", [["run", "--a", "1"]]),
        ("run --a=1;run2", [["run", "--a=1"], ["run2"]]),
        ("A=5\nrun --a $A ${A}x", [["run", "--a", "5", "5x"]]),
        ("A='x y'\nrun $A \"$A\" '$A'", [["run", "x", "y", "x y", "$A"]]),
        ('A="--x 1"\nA="$A --z"\nrun $A', [["run", "--x", "1", "--z"]]),
        ("run $UNSET $@", [["run", "$UNSET", "$@"]]),
        ("run --moe-layer-freq ([0]*1+[1]*3)", [["run", "--moe-layer-freq", "([0]*1+[1]*3)"]]),
        ("run --layout Et*3|(tt|)*2L | tee log", [["run", "--layout", "Et*3|(tt|)*2L"]]),
        ("run --a 1 > log 2>&1 &\nrun2", [["run", "--a", "1"], ["run2"]]),
        ("A=(1 # one\n 2\n)\nA+=('x y' --z)\nrun \"${A[@]}\" ${A[*]}", [["run", *(2 * ["1", "2", "x y", "--z"])]]),
        ('A=()\nB=("([0]*1)")\nrun ${A[@]} ${B[@]} ${C[@]}', [["run", "([0]*1)", "${C[@]}"]]),
        ("A+=' 3'\nB=1\nB+=' 2'\nrun \"$A\" $B", [["run", "$A 3", "1", "2"]]),
        ('B=\nrun ${A:-x y} "${A-x y}" ${B:-5} ${B-5}', [["run", "x", "y", "x y", "5"]]),
        (": ${A:=8}\nrun $A", [[":", "8"], ["run", "8"]]),
        ('A="$(cd "$(dirname "$0")" && pwd)"\nB=$((2 * 3))\nrun $A ${B:-4}', [["run", "$A", "$B"]]),
        ("A=${B%.*}\nrun $A $(date +%s)", [["run", "$A", "$(date +%s)"]]),
        ("", []),
    ],
)
def test_words_are_those_that_a_shell_passes(text, expected):
    assert words(text) == expected


def test_every_word_has_the_line_on_which_it_was_written():
    script = read_script("\nrun --a \\\n 1 \\\n --b", "run.sh")
    assert [(word.text, word.line) for word in script.commands[0]] == [("run", 2), ("--a", 2), ("1", 3), ("--b", 4)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A=1\nif [ $A = 2 ]; then\n B=1\nfi", 2), ("for i in 1 2; do B=1; done", 1), ("B=0\n[ -n $W ] && B=2", 2),
        ("which tool || B=1", 1), ("case $1 in\n a) B=1;;\nesac", 1), ("A[0]=1", 1), ("run `date`", 1), ("cat <<END\nrun\nEND", 1), ("main() {\n run\n}", 1), (". ./env.sh", 1),
        ("run --a 'if' for", 0), ("set -e\ncd folder", 0),
    ],
)  # fmt: skip
def test_the_line_that_only_a_shell_can_run_is_known(text, line):
    logic = read_script(text, "run.sh").logic
    assert (logic.line if logic else 0) == line


def test_defaults_that_a_command_takes_are_known():
    [command] = read_script("A=${GPUS:-8}\nB=${PORT:-1}\nrun -g $A ${N:-2}", "run.sh").commands
    assert [word.text for word in command] == ["run", "-g", "8", "2"]
    assert [word.assumed for word in command] == [(), (), ("GPUS=8",), ("N=2",)]


def test_exported_variables_are_known():
    found = read_script("export A=1\nB=2\nexport B\nC=3\nD=4 run\nunset A", "run.sh").exported
    assert {name: word.text for name, word in found.items()} == {"B": "2", "D": "4"}


def test_quotes_without_an_end_are_refused_at_their_line():
    refused(lambda: read_script("run\nrun 'x", "run.sh"), "run.sh:2: a ' ")
    refused(lambda: read_script("run\nA=(1\n", "run.sh"), "run.sh:2: a ( ")
