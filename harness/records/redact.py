"""Secrets out of text, before it reaches a record, a plan or a log that people share."""

import re

MASK = "***"

_WORDS = "TOKENS?|KEYS?|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?"

# Written together, too: PGPASSWORD, MYSQL_PWD, MYPASS, SSH_PRIVATE; alone, pass, pwd and private are words of ordinary text.
_JOINED = (
    r"[A-Za-z0-9_-]{1,40}(?:PASSWORDS?|PASSWD|PASSPHRASE|PWD|(?-i:PASS))|PASSPHRASE"
    r"|(?-i:[A-Z0-9][A-Z0-9_]{0,40}_PRIVATE)"
)
# Whole names only, each looked at once: from every part of a long name on, it would take hours for a line of a hostile log.
_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_-])(?P<name>[A-Za-z0-9_-]++)(?P<mid>[\"']?\s*[=:]\s*+|\s++(?=[\"']?(?i:hf_)))(?P<quote>[\"']?)"
)
_VALUE = re.compile(r"[^\s\"',;&]+")
# The word stands alone between underscores or at an end of the name, so that MONKEY=1 stays legible.
_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_WORDS}|[A-Z0-9]*API_?KEY)(?:[_-]|$)|(?:{_JOINED})$", re.IGNORECASE)
# A scheme of any length would be tried from every letter of a long text to its end.
_URL_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)[^\s/@\"']+@", re.IGNORECASE)
# `Basic` is a word of ordinary text, too; what follows it in a header alone has capitals, digits or `=`.
_BEARER = re.compile(
    r"\b(?P<word>Bearer|Authorization[\"']?\s*[:=]\s*[\"']?Basic|(?-i:Basic(?=\s+[A-Za-z0-9._~+/-]*[A-Z0-9=])))"
    r"\s+[A-Za-z0-9._~+/=-]{8,}",
    re.IGNORECASE,
)
_WELL_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}|A(?:KIA|SIA)[A-Z0-9]{12,}|gh[opusr]_[A-Za-z0-9]{8,}"
    r"|github_pat_[A-Za-z0-9_]{8,}|nvapi-[A-Za-z0-9_-]{8,}|xox[abprs]-[A-Za-z0-9-]{8,}"
    r"|glpat-[A-Za-z0-9_-]{8,}|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"
    r"|(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[^\s\"'<>]+)"
)
# `sorted(x, key=...)`, `unknown key: ...`, `json.dumps(x, sort_keys=True)`, `max_tokens=4096`: what tracebacks are full of.
_ORDINARY_NAMES = frozenset({"key", "keys", "tokens"})
_ORDINARY_PASS = re.compile(
    r"(?:BY|COM|SUR|TRES|OVER|UNDER|LOW|HIGH|BAND|ONE|TWO|SINGLE|MULTI|ALL|TEST|PRE|POST|FORWARD|BACKWARD|FWD|BWD|FUSION)"
    r"[_-]?PASS$|OLD_?PWD$|(?:IS|MAP)_PRIVATE$",
    re.IGNORECASE,
)
_ORDINARY_VALUE = re.compile(r"(?:\d{1,7}|\d+\.\d+|[Tt]rue|[Ff]alse|None|null)[)\]}]*")
# Counts, such as HybridEP's NUM_OF_TOKENS_PER_CHUNK_COMBINE_API.
_COUNT_NAME = re.compile(r"(?:NUM|MAX|MIN)_", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret by its name: ``HF_TOKEN`` yes, ``MONKEY`` and ``MAX_TOKENS`` no."""
    return not (_COUNT_NAME.match(name) or _ORDINARY_PASS.search(name)) and _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """The text with the values of secrets replaced by ``***``; everything else is kept letter by letter.

    Known by name (``X_TOKEN=...``, ``"password": "..."``), by shape (``hf_``, ``sk-``, ``AKIA``, ``ghp_``, ``Bearer``, JWT)
    and by place (user and password of a URL, path of a Slack hook). Numbers after a secret-like name are kept: ``max_tokens=4096``.
    """
    text, at = redact_shapes(text), 0
    kept: list[str] = []
    for assigned in _ASSIGNED.finditer(text):
        start = assigned.end()
        if start < at or not _is_assigned_secret(assigned["name"]):
            continue
        value = _VALUE.match(text, start)
        if value and text.startswith(assigned["quote"], value.end()) and not _ORDINARY_VALUE.fullmatch(value[0]):
            kept += text[at:start], MASK
            at = value.end()
    return "".join((*kept, text[at:]))


def redact_shapes(text: str) -> str:
    """As :func:`redact` by shape and place only: in messages a colon after a name is no assignment."""
    text = _URL_USER.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<word> {MASK}", text)
    return _WELL_KNOWN.sub(MASK, text)


def _is_assigned_secret(name: str) -> bool:
    """As :func:`is_secret_name` of text: counts are known by their values, and some whole names are words."""
    ordinary = name.lstrip("-_") in _ORDINARY_NAMES or _ORDINARY_PASS.search(name)
    return not ordinary and _SECRET_NAME.search(name) is not None
