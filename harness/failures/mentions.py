"""Finds a line that mentions a cause, for logs in which no line has the form of a failure: pasted excerpts, and other programs."""

import re
from dataclasses import replace
from functools import lru_cache

from harness.failures.classify import NOTHING_KNOWN, classify
from harness.failures.known_ends import NOT_FINITE_ADVICE, names_cause
from harness.failures.verdict import OomVerdict

# Every line that mentions a cause has one of these. Searching for them first keeps gigabytes of logs fast.
_WORDS = (
    "rror", "xception", "ailed", "annot", "an't", "nable to", "ot found", "ismatch", "issing", "nexpected", "efused", "enied", "nvalid",
    "nsupported", "ailure", "FAILED", "ERROR", "EXCEPTION", "out of memory", "nan", "NaN", "CANCELLED AT", "by localRank",
)  # fmt: skip
_LONGEST = 2000  # characters of a line that are searched
_LONG_NUMBER = re.compile(r"\d{4,}|\d+\.\d+")  # such as a process or a measurement; short ones may be codes of errors
# Warnings, and lines of iterations, which the reader of losses judges.
_WARNING = r"[Ww]arn(?:ing)?\b|WARN(?:ING)?\b|Warning\b|[Rr]etry|[Ss]kipp(?:ed|ing)\b|\biteration:?\s{1,20}\d{1,12}\s?/"
# What programs print and go on.
_HARMLESS = re.compile(rf"{_WARNING}|\bINFO\b|\bDEBUG\b|\b[Dd]eprecated|^\[?[WI]\d{{0,4}} ")
_NCCL_PEER = re.compile(r"Connection closed by localRank")  # NCCL prints the end of a peer as INFO
# An error of Python behind other words, such as a logger's.
_INSIDE = re.compile(
    r"(?<![\w.])((?:[A-Za-z_]\w{0,99}\.){0,9}[A-Z]\w{0,90}(?:Error|Exception)): (?=\S)(?!.{0,200}%[sdr])"
)
_OUT_OF_MEMORY = re.compile(r"\b(?:CUDA|HIP|XPU|GPU) (?:error: )?(?:ran )?out of memory\b|\bOutOfMemoryError\b")
# A loss or a norm in the lines of trainers other than Megatron, such as {'loss': nan} and "loss: nan". A best loss is nan
# before the first evaluation.
_LOGGED = re.compile(
    r"(?:\b|_)(?<!best_)(?<!best_val_)(loss|grad[_ ]norm)(?:['\"]?\s{0,3}[:=]\s{0,8}['\"]?(?:nan|NaN|NAN)\b|\s{1,3}(?:nan|NaN|NAN)(?=[,;|]|$))"
)
# NeMo's loss; Lightning's own, in the same bar, then stays nan.
_TRAIN_LOSS = re.compile(r"(?:\b|_)train_loss['\"]?\s{0,3}[:=]\s{0,3}\d")


def mention_in(text: str, *, in_traceback: bool) -> str | None:
    """Return the part of a line that mentions a cause; None for most lines. Inside a traceback, only errors of Python count."""
    if not any(word in text for word in _WORDS):
        return None
    text = text[:_LONGEST]
    if not _mentions(_LONG_NUMBER.sub("7777", text), in_traceback=in_traceback):
        return None
    inside = _INSIDE.search(text)
    return text[inside.start() :] if inside else text


@lru_cache(maxsize=4096)
def _mentions(shape: str, *, in_traceback: bool) -> bool:
    """Return whether a line mentions a cause. Programs repeat their lines, with other numbers."""
    logged = None if in_traceback else _LOGGED.search(shape)  # trainers write results as INFO
    if logged and not (logged[1] == "loss" and _TRAIN_LOSS.search(shape)):
        return re.search(_WARNING, shape) is None
    if _HARMLESS.search(shape) and not _NCCL_PEER.search(shape):
        return False
    if _INSIDE.search(shape):
        return True
    return not in_traceback and (_OUT_OF_MEMORY.search(shape) is not None or names_cause(shape))


def verdict_of_mention(text: str) -> OomVerdict:
    """Return the verdict on such a part, with less confidence than that on a failure."""
    if logged := _LOGGED.search(text):
        what = "the loss" if logged[1] == "loss" else "a gradient norm"
        return OomVerdict("not_oom", "medium", f"{what} is not a number (nan)", advice=NOT_FINITE_ADVICE)
    return replace(classify(text, NOTHING_KNOWN), confidence="low")
