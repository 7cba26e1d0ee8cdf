"""Reads Megatron-LM arguments (command line, script, test's YAML, log), and names another trainer's equivalents."""

import gzip
import math
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TextIO, cast

import yaml

from harness.errors import BadRequestError, Problems, os_errors_reported
from harness.foreign.megatron_arguments import (
    Arguments,
    begins_block,
    captured_by,
    from_block,
    from_words,
    literal,
    options,
    other_models,
)
from harness.foreign.megatron_fields import REQUIRED, arguments_layer
from harness.foreign.shell_script import Script, Word, read_script
from harness.foreign.words import Given
from harness.records.reading import PlainValue, read_text
from harness.records.redact import redact
from harness.records.strict_yaml import table_in
from harness.resolve.options import options_layer
from harness.resolve.recipe import ASSUMED, STDIN, ForeignSource, Layer, Request, Setting
from harness.units import shortened

MOST_BYTES = 8 << 20
_FEWEST_OPTIONS = 2
_GZIP = b"\x1f\x8b"
_MODEL = "pretrain_gpt"
_PRINTS = ("echo", "printf")
_MODEL_ARGS = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
_ENVIRONMENT = ("NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
                "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_HIGH_PRIORITY", "NCCL_NVLS_ENABLE", "NCCL_ALGO",
                "NCCL_PROTO", "NCCL_GRAPH_REGISTER", "NCCL_CTA_POLICY", "NUM_OF_HYBRID_EP_RANKS", "NVLINK_DOMAIN_SIZE",
                "USE_MNNVL")  # fmt: skip
"""Variables that change a step, by the beginning of their names; others belong to the cluster."""


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the arguments. BadRequestError with every argument that has no counterpart here."""
    found = read_arguments(source)
    found.settled = request.settled
    _refuse_other_models(found, source)
    if found.num_gpus and found.num_gpus.value == 0:
        if request.num_gpus is None:
            remedy = "add -ng; a script that counts the GPUs of its machine finds none here"
            found.problems.add(f"{found.num_gpus.source}: starts no process", remedy)
        found.num_gpus = None
    _complete(found, request)
    layer = dict(arguments_layer(found, is_job=True))
    if found.program and _MODEL not in found.program:
        note = f"{found.label}: {Path(found.program).name} is read as {_MODEL}.py, by its arguments alone"
        layer["model.hidden_size"] = replace(layer["model.hidden_size"], note=note)
    _complete_batch(layer, request)
    if found.assumed:
        note = f"{ASSUMED}: {shortened(found.assumed, 200)}; defaults of {found.label}, where your shell may set others"
        layer["model.num_attention_heads"] = replace(layer["model.num_attention_heads"], note=note)
    return layer


def _refuse_other_models(found: Arguments, source: ForeignSource) -> None:
    names = [] if found.is_whole else [f"--{name}" for name in found.given]
    folders = [f"/{part}/" for part in Path(source.path).parts] if found.is_test else []
    for pattern, part in other_models().items():
        said = next((each for each in (found.program, *folders, *names) if re.search(pattern, each)), None)
        if said:
            place = found.place(said[2:]) if said in names else f"{found.label}: {said.strip('/')}"
            found.problems.add(f"{place}: mbr-perf does not model {part}", "give a job that trains a GPT model")


def read_arguments(source: ForeignSource) -> Arguments:
    """Return the arguments of a file or of standard input. BadRequestError if it holds none, or cannot be read."""
    text = _text_of(source)
    lines = text.splitlines()
    if any(begins_block(line) for line in lines):
        found = from_block(((line, f"{source.label}:{number}") for number, line in enumerate(lines, 1)), source.label)
        assert found is not None  # a line begins its block
        return found
    if "\0" in text:
        raise BadRequestError(f"{source.label}: a binary file", remedy="give a command line, a script or a log")
    found = _of_yaml(text, source.label) if _MODEL_ARGS.search(text) else _of_script(text, source.label)
    beside = Path(source.path).with_suffix(".env")
    if source.path.endswith(".args") and beside.is_file():  # as `mbr-perf capture` writes them
        variables = (each.partition("=") for each in shlex.split(read_text(beside, str(beside))))
        found.environment |= _of_step((name, value, str(beside)) for name, _, value in variables)
    return found


def _complete(found: Arguments, request: Request) -> None:
    asked = options_layer(request, Problems())  # what is wrong with options is reported with the other settings
    for path, option in REQUIRED.items():
        name = option[2:].replace("-", "_")
        if path in asked and name not in found.given:
            found.given[name] = Given(cast(PlainValue, asked[path].value), asked[path].source)


def _of_yaml(text: str, label: str) -> Arguments:
    """Read a configuration of Megatron-LM's tests as its script passes it on: in brackets several words, else one."""
    try:
        document = yaml.BaseLoader(text).get_single_data()  # makes texts only; of equal names, the last counts
        sections = [dict(document.get(name) or {}) for name in ("MODEL_ARGS", "ENV_VARS")]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        message = f"{label}: not a configuration of Megatron-LM: {shortened(' '.join(str(error).split()), 200)}"
        raise BadRequestError(message, remedy="write lines of NAME: VALUE below MODEL_ARGS and ENV_VARS") from error
    numbers = {line.partition(":")[0].strip(): number for number, line in enumerate(text.splitlines(), 1)}
    words: list[Word] = []
    problems = Problems()
    for option, value in sections[0].items():
        line = numbers.get(option, 1)
        with problems.collecting():
            words += [Word(each, line) for each in (option, *_written(value, f"{label}:{line}: {option}"))]
    problems.raise_if_any()
    found = from_words(words, label)
    found.is_test = found.is_started = True
    places = {name: f"{label}:{numbers[name]}" if name in numbers else label for name in sections[1]}
    found.environment = _of_step((name, str(value), places[name]) for name, value in sections[1].items())
    return found


def _written(value: str | list[object] | dict[str, object], place: str) -> list[str]:
    if isinstance(value, str):
        text = value.strip()
        return text[1:-1].split() if re.fullmatch(r"\[[^]]+\]", text) else [text] * (text.lower() != "true")
    texts = [each for each in value if isinstance(each, str)]
    if isinstance(value, dict) or len(texts) < len(value):
        raise BadRequestError(f"{place}: is neither a text nor a list of texts", remedy="write NAME: VALUE")
    return texts


def _text_of(source: ForeignSource) -> str:
    label = source.label
    if source.path == STDIN:
        raw = _standard_input(sys.stdin)
    elif Path(source.path).is_file():
        with os_errors_reported(f"{label}: cannot be read"), Path(source.path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    else:
        return read_text(Path(source.path), label)  # says why not
    try:
        raw = gzip.GzipFile(fileobj=BytesIO(raw)).read(MOST_BYTES + 1) if raw[:2] == _GZIP else raw
    except (OSError, EOFError, zlib.error) as error:
        raise BadRequestError(f"{label}: cannot be read: {error}", remedy="compress it again") from error
    text = raw.decode("utf-8", errors="replace")
    if not begins_block(text) and (len(raw) > MOST_BYTES or "\ufffd" in text):
        problem = f"larger than {MOST_BYTES >> 20} MiB" if len(raw) > MOST_BYTES else "not UTF-8"
        raise BadRequestError(f"{label}: {problem}", remedy="give a command line, a script or a log as text")
    return text


@lru_cache(maxsize=1)
def _standard_input(stream: TextIO | None) -> bytes:
    """Read standard input once, because a request may be resolved several times. ``stream``: None if it is closed."""
    if stream is None or stream.isatty():
        raise BadRequestError("--megatron_args -: nothing is piped in", remedy="pipe the arguments in, or name a file")
    return stream.buffer.read(MOST_BYTES + 1)


def _of_script(text: str, label: str) -> Arguments:
    script = read_script(text, label)
    refuse_others(script)
    if not options().keys() & set(re.findall(r"--[a-z][a-z0-9-]+", text)):
        raise BadRequestError(
            f"{label}: no argument of Megatron-LM",
            remedy="give its command line, its script, or a log that prints its arguments",
        )
    launches = [words for words in script.commands if _num_options(words) and words[0].text not in _PRINTS]
    if script.logic or not launches:
        where, what = (script.logic.line, script.logic.text) if script.logic else (1, "no command has arguments")
        raise BadRequestError(
            f"{label}:{where}: {shortened(what)}: only a shell can read it", remedy=captured_by(label)
        )
    words = _one_of(launches, label)
    found = _given(words, label)
    found.assumed = ", ".join(dict.fromkeys(redact(each) for word in words for each in word.assumed))
    found.environment = _of_step((name, word.text, f"{label}:{word.line}") for name, word in script.exported.items())
    return found


def _one_of(launches: list[list[Word]], label: str) -> list[Word]:
    if all(words[0].text.startswith("--") for words in launches):  # a list of arguments, some on each line
        return [word for words in launches for word in words]
    many = [words for words in launches if _num_options(words) >= _FEWEST_OPTIONS] or launches
    named = [words for words in many if any(_MODEL in word.text for word in words)]
    if len(named) == 1 or len(many) == 1:
        return (named or many)[0]
    lines = ", ".join(str(words[0].line) for words in many)
    raise BadRequestError(f"{label}: {len(many)} commands have arguments: lines {lines}", remedy="keep one of them")


def _num_options(words: list[Word]) -> int:
    return sum(word.text.partition("=")[0] in options() for word in words)


def _of_step(variables: Iterable[tuple[str, str, str]]) -> dict[str, Given]:
    known = (each for each in variables if each[0].startswith(_ENVIRONMENT) and "$" not in each[1])
    return {name: Given(value, f"{place}: {name}") for name, value, place in known}


def _given(words: list[Word], label: str) -> Arguments:
    first = next((i for i, word in enumerate(words) if word.text.partition("=")[0] in options()), 0)
    program = next((i for i, word in enumerate(words[:first]) if word.text.endswith(".py")), None)
    start = 0 if words[0].text.startswith("--") else first if program is None else program + 1
    found = from_words(words[start:], label)
    found.num_gpus = _num_gpus(words[:start], label)
    found.program = "" if program is None else words[program].text
    found.is_started = start > 0
    return found


_SIZES = {"nnodes": "nnodes", "nodes": "nnodes", "num_nodes": "nnodes", "N": "nnodes", "nproc_per_node": "nproc",
          "nproc": "nproc", "num_gpus": "nproc", "ntasks_per_node": "nproc"}  # fmt: skip


def _num_gpus(launcher: list[Word], label: str) -> Given | None:
    starts = [at for at, word in enumerate(launcher) if re.search(r"torchrun$|torch\.distributed\.", word.text)]
    launcher = launcher[starts[-1] :] if starts else launcher  # srun's sizes are those of the launchers that it starts
    sizes = {"nnodes": 1, "nproc": 0}
    none: Given | None = None
    for index, word in enumerate(launcher):
        name, _, value = word.text.lstrip("-").replace("-", "_").partition("=")
        size = literal(value or (launcher[index + 1].text if index + 1 < len(launcher) else ""))
        if key := _SIZES.get(name, "") if word.text.startswith("-") else "":
            sizes[key] = size if isinstance(size, int) else 0
            none = Given(0, f"{label}:{word.line}: {word.text}") if size == 0 else none
    total = sizes["nnodes"] * sizes["nproc"]
    return Given(total, f"{label}:{launcher[0].line}: {launcher[0].text}") if total else none


def _complete_batch(layer: dict[str, Setting], request: Request) -> None:
    num_gpus = request.num_gpus or (layer["num_gpus"].value if "num_gpus" in layer else None)
    if "batch.global_batch_size" in layer or not isinstance(num_gpus, int):
        return
    sizes = [layer[f"parallelism.{name}_parallel_size"].value for name in ("tensor_model", "pipeline_model", "context")]
    micro = layer["batch.micro_batch_size"].value
    counts = [size for size in (*sizes, micro) if isinstance(size, int) and size > 0]
    if len(counts) == len(sizes) + 1:
        copies = max(num_gpus // math.prod(counts[:-1]), 1)
        layer["batch.global_batch_size"] = Setting(copies * counts[-1], "default of Megatron-LM")


_TABLE = table_in(Path(__file__).with_name("other_commands.yaml"))
_TRAINERS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _TABLE["trainers"].items()}
_OPTION_OF = {name: option for option, names in _TABLE["options"].items() for name in names.split()}


def refuse_others(script: Script) -> None:
    """Raise BadRequestError for a command of another trainer, with the equivalent options."""
    for words in script.commands:
        text = " ".join(word.text for word in words)
        whose = next((name for name, pattern in _TRAINERS.items() if pattern.search(f"{text} ")), None)
        if whose is None:
            continue
        options = dict(_options(words))
        sizes = {} if options.keys() - {"--hf"} else dict.fromkeys(("-ng", "-tp", "-pp", "-mb", "-gb", "-sl"), "N")
        pairs = {"--hf": "MODEL", **options, **sizes, "-g": "h100"}.items()
        line = shlex.join(word for pair in pairs for word in pair)
        raise BadRequestError(
            f"{script.label}:{words[0].line}: a command of {whose}, whose words mbr-perf does not read",
            remedy=f"describe the job by options: mbr-perf plan {line}",
        )


def _options(words: list[Word]) -> Iterator[tuple[str, str]]:
    for word, after in zip(words, [*words[1:], Word("", 0)], strict=True):
        name, equals, value = word.text.lstrip("+").partition("=")
        if not equals and (not name.startswith("--") or after.text.startswith("--")):
            continue
        name = name.lstrip("-").replace("-", "_")
        option = _OPTION_OF.get(name) or _OPTION_OF.get(name.rpartition(".")[2] if "." in name else "")
        if option and "$" not in (value or after.text):
            yield option, value or after.text
