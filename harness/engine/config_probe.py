"""Checks requests with the installed megatron-core: builds its real `TransformerConfig` in a separate process.

Each line of stdin is ``{"spec": an ExperimentSpec, "env": variables of its ranks}``; all are for GPUs, or all for the
processor. Prints one JSON object per request, in order: ``{"accepted": true, ...}``; or the type, text and place of
megatron-core's exception; or the ``problem`` if something else failed, which is no verdict on the request. Each request
has its own fork or process, because building a configuration changes it and sets variables.
"""

import gc
import json
import os
import subprocess
import sys
import traceback
import warnings
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Any

from harness.engine.process import (
    be_parent_of_children,
    die_with_parent,
    importing_before_forks,
    run_and_end,
    why_no_cuda_in_children,
    why_not_forkable,
)
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.recompute import base_of_plan
from harness.records.quoting import quoted_error

# Explanations of unclear exceptions: type, start of the text (None: no text), meaning.
TRANSLATIONS = (
    ("KeyError", "'", "this megatron-core does not know a name in the request, most likely in cuda_graph_scope"),
    ("AssertionError", None,
     "a required setting is empty, most likely offload_modules; or EP does not divide the experts"),
    ("TypeError", "'>=' not supported between instances of 'NoneType'",
     "this setting (such as moe_act or layernorm recompute under fp8) needs transformer-engine, which is not "
     "installed"),
)  # fmt: skip

# torch's message if an import has initialised CUDA before the fork: caused by mbr-perf, not by the request.
_BAD_FORK = "in forked subprocess"


def translation(kind: str, text: str) -> str | None:
    """Explain a bare KeyError, an empty AssertionError or the version TypeError; None if the text is clear."""
    for known_kind, start, meaning in TRANSLATIONS:
        if kind == known_kind and (not text.strip() if start is None else text.startswith(start)):
            return meaning
    return None


def without_transformer_engine(spec: ExperimentSpec) -> ExperimentSpec:
    """Return ``spec`` without the settings that need transformer-engine, which megatron-core checks first."""
    kernels = spec.kernels.model_copy(update={"transformer_impl": "local", "moe_permute_fusion": False})
    parallelism = spec.parallelism
    # The local layers do not fuse the accumulation of gradients, and the deferral is refused without it.
    if spec.kernels.gradient_accumulation_fusion and parallelism.pipeline_model_parallel_size > 1:
        parallelism = parallelism.model_copy(update={"defer_embedding_wgrad_compute": False, "wgrad_deferral_limit": 0})
    return spec.model_copy(update={"kernels": kernels, "parallelism": parallelism})


def place_in_megatron(error: BaseException) -> str | None:
    """Return the innermost line of megatron-core that ``error`` passed; None if megatron-core did not raise it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "megatron/core/" in f.filename]
    return f"{frames[-1].filename.rpartition('megatron/core/')[2]}:{frames[-1].lineno}" if frames else None


def answer(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the answer of the installed megatron-core. Raise errors that megatron-core did not raise itself."""
    from harness.engine.config import UnknownFieldError, transformer_config

    try:
        transformer_config(spec.model_copy(update={"recompute": base_of_plan(spec.recompute)}))
    except UnknownFieldError as error:
        return {"accepted": False, "kind": "UnknownField", "text": str(error)}
    except Exception as error:  # whatever megatron-core raises is the answer
        place = place_in_megatron(error)
        if place is None or _BAD_FORK in str(error):
            raise
        kind, text = type(error).__name__, str(error)
        return {"accepted": False, "kind": kind, "text": text, "meaning": translation(kind, text), "place": place}
    return {"accepted": True}


class Question(Frozen):
    """Hold one line of the input."""

    spec: ExperimentSpec
    env: dict[str, str]


def _answered_apart(question: Question) -> dict[str, Any]:
    """Return the answer of a new fork, which other requests cannot affect."""
    reader, writer = os.pipe()
    with TemporaryFile() as words:  # stderr of this request alone
        pid = os.fork()
        if pid == 0:
            os.dup2(words.fileno(), 2)
            run_and_end(lambda: _send(question, writer))
        os.close(writer)
        with os.fdopen(reader) as stream:
            text = stream.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        words.seek(0)
        return _read(code, text, words.read())


def _answered_by_another(question: Question) -> dict[str, Any]:
    command = (sys.executable, "-m", "harness.engine.config_probe")
    done = subprocess.run(command, input=question.model_dump_json().encode(), capture_output=True, check=False)
    return _read(done.returncode, done.stdout.decode(errors="replace"), done.stderr)


def _answered_here(question: Question) -> dict[str, Any]:
    """Answer as the last act of this process."""
    os.environ.update(question.env)
    spec = question.spec
    lacking = spec.kernels.transformer_impl == "transformer_engine" and find_spec("transformer_engine") is None
    return answer(without_transformer_engine(spec) if lacking else spec) | {"without_transformer_engine": lacking}


def _read(code: int, answered: str, words: bytes) -> dict[str, Any]:
    if code or not answered:
        return {"problem": f"ended with exit code {code}: {quoted_error(words)}"}
    answers: dict[str, Any] = json.loads(answered)
    return answers


def _send(question: Question, writer: int) -> None:
    die_with_parent()  # a hanging fork ends when its parent is killed
    with os.fdopen(writer, "w") as stream:
        json.dump(_answered_here(question), stream)


def main() -> None:
    """Build every configuration and print the result of each. Exits with 0 even for refused ones."""
    die_with_parent()
    gc.disable()  # this process is short; collections only slow its imports
    questions = [Question.model_validate_json(line) for line in sys.stdin if line.strip()]
    warnings.simplefilter("ignore")
    be_parent_of_children()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # keep megatron-core's prints out of the answers
        _import_megatron(for_cpu=all(question.spec.gpu_type.is_cpu for question in questions))
        answered = _answered_apart
        if why_not_forkable() or why_no_cuda_in_children():
            answered = _answered_here if len(questions) == 1 else _answered_by_another
        for question in questions:
            answers.write(json.dumps(answered(question)) + "\n")
            answers.flush()


def _import_megatron(*, for_cpu: bool) -> None:
    """Import megatron-core once for all forks, without torch's compiler and wandb: no configuration needs them."""
    with importing_before_forks():
        sys.modules["wandb"] = None  # type: ignore[assignment]
        import_module("torch").compile = _uncompiled
        if for_cpu:
            import_module("harness.engine.cpu_backend").block_transformer_engine()
        import_module("harness.engine.config")


def _uncompiled(function: Any = None, **_options: Any) -> Any:
    """Take the place of ``torch.compile``, also as a decorator with options."""
    return _uncompiled if function is None else function


if __name__ == "__main__":
    run_and_end(main)
