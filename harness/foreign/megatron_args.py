"""Reads Megatron-LM arguments (`--megatron_args`): a command line, a shell script, or the block of a log."""

import gzip
import math
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from harness.errors import BadRequestError, Problems
from harness.foreign.megatron_arguments import (
    PASTE_BLOCK,
    Arguments,
    Given,
    begins_block,
    from_block,
    from_words,
    literal,
    options,
)
from harness.foreign.megatron_fields import arguments_layer, require_sizes
from harness.foreign.shell_script import Script, Word, read_script
from harness.records.reading import read_text
from harness.resolve.recipe import STDIN, ForeignSource, Layer, Request, Setting

MOST_BYTES = 8 << 20
_FEWEST_OPTIONS = 2
_MODEL = "pretrain_gpt"
_PRINTS = ("echo", "printf")
_ENVIRONMENT = ("NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
                "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_HIGH_PRIORITY", "NCCL_NVLS_ENABLE", "NCCL_ALGO",
                "NCCL_PROTO", "NCCL_GRAPH_REGISTER")  # fmt: skip
"""Variables that change a step, by the beginning of their names; others belong to the cluster."""


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the arguments. BadRequestError with every argument that has no counterpart here."""
    found = read_arguments(source)
    layer = dict(arguments_layer(found))
    problems = Problems()
    with problems.collecting():
        require_sizes(found, layer)
    is_set = any(text.startswith("model.vocab_size=") for text in request.set_values)
    if "model.vocab_size" not in layer and not is_set:
        kind = found.get("tokenizer_type")
        problems.add(
            f"{found.label}: the vocabulary's size is not known; its tokenizer{f' ({kind})' if kind else ''} has it",
            "add --vocab-size to the arguments, or --set model.vocab_size=128256",
        )
    problems.raise_if_any()
    _complete_batch(layer, request)
    return layer


def read_arguments(source: ForeignSource) -> Arguments:
    """Return the arguments of a file or of standard input. BadRequestError if it holds none, or cannot be read."""
    text = _standard_input(sys.stdin) if source.path == STDIN else _head(source)
    lines = text.splitlines()
    if any(begins_block(line) for line in lines):
        found = from_block(((line, f"{source.label}:{number}") for number, line in enumerate(lines, 1)), source.label)
        assert found is not None  # a line begins its block
        return found
    if "\0" in text:
        raise BadRequestError(f"{source.label}: a binary file", remedy="give a command line, a script or a log")
    return _of_script(read_script(text, source.label))


def _head(source: ForeignSource) -> str:
    """Return the text of a file; of a large or compressed log its head, where a job prints its arguments."""
    path, raw = Path(source.path), b""
    with suppress(OSError, EOFError, zlib.error):  # read_text says why, and refuses pipes
        if path.is_file():
            with path.open("rb") as file:
                if file.peek(2).startswith(b"\x1f\x8b"):
                    raw = gzip.GzipFile(fileobj=file).read(MOST_BYTES)
                elif path.stat().st_size > MOST_BYTES:
                    raw = file.read(MOST_BYTES)
    text = raw.decode("utf-8", errors="replace")
    return text if begins_block(text) else read_text(path, source.label, most_bytes=MOST_BYTES)


@lru_cache(maxsize=1)
def _standard_input(stream: TextIO) -> str:
    """Read standard input once, because a request may be resolved several times."""
    if stream.isatty():
        raise BadRequestError(
            "--megatron_args -: standard input is a terminal", remedy="pipe the arguments in, or name a file"
        )
    try:
        text = stream.read(MOST_BYTES + 1)
    except (UnicodeDecodeError, OSError) as error:
        raise BadRequestError(f"--megatron_args -: cannot be read: {error}", remedy="give text in UTF-8") from error
    if len(text) > MOST_BYTES:
        raise BadRequestError(
            f"--megatron_args -: larger than {MOST_BYTES >> 20} MiB", remedy="pipe the arguments only"
        )
    return text


def _one_of(script: Script, launches: list[list[Word]]) -> list[list[Word]]:
    named = [words for words in launches if any(_MODEL in word.text for word in words)]
    launches = named if len(named) == 1 else launches
    if len(launches) > 1:
        lines = ", ".join(str(words[0].line) for words in launches)
        raise BadRequestError(
            f"{script.label}: {len(launches)} commands have arguments: lines {lines}", remedy="keep one of them"
        )
    return launches


def _of_script(script: Script) -> Arguments:
    """Return the arguments of the one command that has them; of all variables if no command has any."""
    launches = _one_of(script, list(_launches(script)))
    split = (
        Word(part, w.line, w.doubt) for value in script.variables.values() for w in value for part in w.text.split()
    )
    words = launches[0] if launches else list(split)
    start = next((i for i, word in enumerate(words) if word.text.partition("=")[0] in options()), None)
    program = next((i for i, word in enumerate(words) if word.text.endswith(".py")), None)
    if start is None:
        raise BadRequestError(
            f"{script.label}: no argument of Megatron-LM",
            remedy="give its command line, its script, or a log that prints its arguments",
        )
    if program is not None and program < start:
        start = program + 1
        _require_gpt(script, words[program])
    elif launches and words[0].text.startswith("--"):
        start = 0
    return _given(script, words, start)


def _given(script: Script, words: list[Word], start: int) -> Arguments:
    if words[start].doubt and all(word.doubt == words[start].doubt for word in words[start:]):
        raise BadRequestError(
            f"{script.label}:{words[start].line}: the arguments are not certain: {words[start].doubt}",
            remedy=PASTE_BLOCK,
        )
    found = from_words(words[start:], script.label)
    found.num_gpus = _num_gpus(words[:start], script.label)
    found.environment = {
        name: Given(word.text, f"{script.label}:{word.line}: {name}")
        for name, word in script.exported.items()
        if name.startswith(_ENVIRONMENT) and "$" not in word.text and not word.doubt
    }
    return found


def _launches(script: Script) -> Iterable[list[Word]]:
    """Yield commands with arguments; ``bash -c '...'`` holds a script of its own.

    Words in the same branch as their command are certain: the command runs only with them.
    """
    for command in script.commands:
        words = [replace(word, doubt="" if word.doubt == command[0].doubt else word.doubt) for word in command]
        if words[0].text in _PRINTS:
            continue
        for word in words:
            inner = word.text.split() if " " in word.text or "\n" in word.text else []
            if sum(part in options() for part in inner) >= _FEWEST_OPTIONS:
                for found in _launches(read_script(word.text, script.label, script.variables, word.line)):
                    yield [replace(each, doubt=each.doubt or word.doubt) for each in found]
        if sum(word.text.partition("=")[0] in options() for word in words) >= _FEWEST_OPTIONS:
            yield words


def _require_gpt(script: Script, program: Word) -> None:
    name = program.text.rpartition("/")[2].removesuffix(".py")
    if name.startswith(("pretrain_", "train_", "finetune_")) and not name.startswith(_MODEL):
        raise BadRequestError(
            f"{script.label}:{program.line}: {name}.py: mbr-perf trains GPT models",
            remedy=f"it knows the arguments of {_MODEL}.py",
        )


def _num_gpus(launcher: list[Word], label: str) -> Given | None:
    """Return torchrun's nodes times processes of a node; None if it does not say numbers."""
    sizes = {"nnodes": 1, "nproc": 0}
    for index, word in enumerate(launcher):
        name, _, value = word.text.lstrip("-").replace("-", "_").partition("=")
        size = literal(value or (launcher[index + 1].text if index + 1 < len(launcher) else ""))
        key = "nnodes" if name == "nnodes" else "nproc" if name in ("nproc_per_node", "nproc") else ""
        if key:
            sizes[key] = size if isinstance(size, int) and not word.doubt else 0
    total = sizes["nnodes"] * sizes["nproc"]
    return Given(total, f"{label}:{launcher[0].line}: torchrun") if total else None


def _complete_batch(layer: dict[str, Setting], request: Request) -> None:
    """Add Megatron-LM's default for a missing global batch size: one micro-batch for each copy of the model."""
    num_gpus = request.num_gpus or (layer["num_gpus"].value if "num_gpus" in layer else None)
    if "batch.global_batch_size" in layer or not isinstance(num_gpus, int):
        return
    sizes = [layer[f"parallelism.{name}_parallel_size"].value for name in ("tensor_model", "pipeline_model", "context")]
    micro = layer["batch.micro_batch_size"].value
    counts = [size for size in (*sizes, micro) if isinstance(size, int) and size > 0]
    if len(counts) == len(sizes) + 1:
        copies = max(num_gpus // math.prod(counts[:-1]), 1)
        layer["batch.global_batch_size"] = Setting(copies * counts[-1], "default of Megatron-LM")
