"""Names commands of trainers whose words are not Megatron-LM's, with the options that describe their jobs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from harness.errors import BadRequestError
from harness.foreign.shell_script import Script, Word
from harness.records.strict_yaml import table_in

_TABLE = table_in(Path(__file__).with_suffix(".yaml"))
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
