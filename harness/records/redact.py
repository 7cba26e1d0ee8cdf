"""Removes secrets and names from texts and records, and quotes the error of a failed process without them."""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MASK = "***"

_WORDS = "TOKENS?|KEYS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|AUTH|COOKIES?|JWTS?|WEBHOOKS?"

# Also as part of a word: PGPASSWORD, MYSQL_PWD, MYPASS, SSH_PRIVATE. Alone, pass, pwd and private are ordinary words.
_JOINED = (
    r"[A-Za-z0-9_-]{1,40}(?:PASSWORDS?|PASSWD|PASSPHRASE|PWD|(?-i:PASS))|PASSPHRASE"
    r"|(?-i:[A-Z0-9][A-Z0-9_]{0,40}_PRIVATE)"
)
# As JavaScript and connection strings write it: accessToken, AccountKey; but not InvalidTokenError.
_CAMEL = (
    r"(?-i:[A-Za-z0-9_-]{0,40}[a-z0-9](?:Token|Key|Secret|Password|Credential|Cookie|Jwt|Webhook|AccessSignature)s?"
    r"|(?:[A-Za-z0-9_-]{0,40}[a-z0-9]W|w)ebhookUr[il])"
)
# Other spellings of =, of & ? and ;, and of /: URL-encoded once or twice, or escaped in JSON.
_EQUALS, _SEPARATOR, _SLASH = (
    r"(?:=|%(?:25)?3D|\\{1,4}u003d)",
    r"(?:[?&;]|%(?:25)?(?:26|3F)|\\{1,4}u0026)",
    r"(?:\\{0,4}/|%(?:25)?2F)",
)
_COLOUR = r"\x1b\[[0-9;]{0,16}m"  # an ANSI colour sequence
_START = r"(?:\b|(?<=[\[;0-9]m))"  # a word begins here, possibly behind a colour
_TYPED = (
    r":\s?(?:[A-Za-z.]{0,20}\[)?(?:str|SecretStr|int|float|bool)\]?(?:\s?\|\s?None)?\s?="  # as in `HF_TOKEN: str = ...`
)
# Whole names only, each tried once: trying every part of a long name would take hours for a line of a hostile log.
# Quotes may be escaped, as in JSON inside JSON. An option is followed by its value, other names by = or a colon.
# A value may be a YAML block, the second item of a pair ('NAME', 'value'), or the text of the next line.
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_-])(?:%[0-9A-Fa-f]{{2}}|{_COLOUR})*+(?P<name>(?P<option>--)?[A-Za-z0-9_-]++)(?:{_COLOUR})?"
    rf"(?:\\{{0,8}}[\"']?\]?\s*(?:{_TYPED}"
    r"|[=:]=?>?|%3[AD](?:%20)?|\\{1,4}u003d)\s*+(?:[|>][+-]?[ \t]*\n\s+|\\\n\s*|!!str\s+)?"
    r"|(?:\\{0,8}[\"'],\s*\\{0,8}[\"']value\\{0,8}[\"']|[\"']?[ \t]*\n\s*value)\s*:\s*|\s++(?=[\"']?(?i:hf_))"
    r"|(?<=[A-Z0-9])\t(?=[A-Za-z0-9._~+/=-]{12})(?=[^\s\d]{0,80}\d)"
    r"|(?<=[A-Z0-9])[\"'],\s?(?=[\"'](?!-|[A-Z_0-9]{3,80}[\"']))"
    rf"|(?(option)[ \t]++(?![-=:])|(?!)))(?:{_COLOUR})?(?P<quote>(?:\\{{0,8}}[\"'])?)"
)
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)+") for quote in "\"'"}
# Up to a quote that is not inside a word, or up to the next assigned name.
_UNQUOTED = re.compile(r"(?:[^\s\"'\\,;&]|\\(?![\"'])|[\"'](?=\w)|[,;&](?![A-Za-z0-9_.-]{1,60}[=:]))+(?<![,;&])")
# The word is alone between underscores or at an end of the name, so that MONKEY=1 stays readable.
_SECRET_NAME = re.compile(
    rf"(?:^|[_-])(?:{_WORDS}|[A-Z0-9]*API_?KEY)\d*(?:[_-]|$)|(?:{_JOINED}|{_CAMEL}|(?-i:[A-Z0-9]_PAT))\d*$",
    re.IGNORECASE,
)
# The length is limited, because the search would otherwise run from every letter of a long text to its end.
_URL_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)[^\s/\"']+@", re.IGNORECASE)
# `Basic` is also an ordinary word. Only in a header do capitals, digits or `=` follow it.
_BEARER = re.compile(
    rf"{_START}(?P<word>Bearer|Authorization[\"']?\s*[:=]\s*[\"']?(?:Basic|Token|ApiKey|Negotiate)"
    r"|(?-i:Basic(?=\s+[A-Za-z0-9._~+/-]*[A-Z0-9=])))\s+[A-Za-z0-9._~+/=-]{8,}",
    re.IGNORECASE,
)
# Without a scheme, the secret is one word with a digit. With Digest or AWS4, mask all parameters that follow.
_AUTHORIZATION = re.compile(
    r"(?P<name>Authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:Digest|AWS4-[\w-]{1,20})\s{1,4}(?=\S)"
    r"|(?=[A-Za-z0-9._~+/=-]{16})(?=[A-Za-z._~+/=-]{0,80}[0-9])))(?:(?<=\s)[^\n\"']+|[^\s\"',;]+)",
    re.IGNORECASE,
)
_WELL_KNOWN = re.compile(
    _START
    + r"(?:hf_[A-Za-z0-9]{8,}|sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}|A(?:KIA|SIA)[A-Z0-9]{12,}|gh[opusr]_[A-Za-z0-9]{8,}"
    r"|github_pat_[A-Za-z0-9_]{8,}|nvapi-[A-Za-z0-9_-]{8,}|xox[abprs]-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{16,}"
    r"|glpat-[A-Za-z0-9_-]{8,}|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"
    r"|AIza[A-Za-z0-9_-]{20,}|(?:npm_|pypi-|ya29\.|GOCSPX-|[sr]k_live_|wandb_v1_)[A-Za-z0-9_-]{20,}|SG\.[\w-]{16,64}\.[\w-]{16,})"
)
# Query parameters that sign a URL: of S3, Google Cloud, CloudFront, Azure. `amp;` and a backslash come from HTML and JSON.
_SIGNED = re.compile(
    rf"(?P<name>(?:(?<![A-Za-z0-9])|(?<=%26)|(?<=%3F)|(?<=u0026))X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token){_EQUALS}"
    rf"|{_SEPARATOR}(?:sig|signature){_EQUALS}|(?<![A-Za-z0-9_])sig=(?=[A-Za-z0-9%+/_-]{{20}}))[^\s&\"'<>\\]+",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    rf"(?P<name>{_START}(?:Set-)?Cookie(?:\s{{0,4}}(?::|%3A)\s{{0,4}}|[\"'],\s{{0,4}}[\"']))[^\s\"'][^\n\"']*",
    re.IGNORECASE,
)
# Webhook URLs of chats: anyone who knows the URL can post.
_HOOK = re.compile(
    r"(?P<path>(?:discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks|hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|webhook\.office\.com/webhookb2|outlook\.office\.com/webhook)/)[^\s\"'<>]+".replace("/", _SLASH),
    re.IGNORECASE,
)
# Commands whose argument is a secret without a name. The command may be a line of shell or a list of words.
_GAP = r"(?:[\"'],\s?[\"']|[\s\\]{1,8}[\"']?)"
_ARGUMENT = re.compile(
    rf"(?P<command>(?i:{_START}curl\b(?:[^\n]|(?<=\\)\n){{0,400}}?[\s\"'](?:-u(?:{_GAP}|=)?|-[a-z]{{1,6}}u{_GAP}|-b{_GAP}(?=[^\s\"'=]{{1,80}}=)|--(?:proxy-)?user(?:{_GAP}|=))[\"']?"
    rf"|{_START}wandb{_GAP}login{_GAP}(?:--?[\w-]{{1,30}}(?:(?:=|\s{{1,4}})https?:\S{{1,200}})?{_GAP}){{0,4}})"
    r"|\bwandb\.login\((?:[^)]{0,200}?key\s?=\s{0,20})?[\"']|\b(?:docker|podman)\s{1,4}login\b[^\n]{0,200}?\s-p\s{1,4}|\bsshpass\s{1,4}-p\s{0,4}[\"']?"
    r"|\b(?:setenv|set\s-[gUx]{1,3}|configure\sset)\s{1,4}(?=\w{0,60}(?i:token|key|secret|pass|auth|cookie|jwt|webhook))\w{1,80}\s{1,4}[\"']?"
    r"|\b(?:mysql|mariadb)(?:dump|admin|import)?\b[^\n]{0,400}?\s-p(?=[^\s-])[\"']?)"
    r"(?![-\s])[^\s\"']+"
)
_PEM = re.compile(r"(?P<begin>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?:(?!-----END)[\s\S])+")
# Frequent in tracebacks: `sorted(x, key=...)`, `unknown key: ...`, `json.dumps(x, sort_keys=True)`, `max_tokens=4096`.
_ORDINARY_NAMES = frozenset({"key", "keys", "tokens"})
_ORDINARY_PASS = re.compile(
    r"(?:BY|COM|SUR|TRES|OVER|UNDER|LOW|HIGH|BAND|ONE|TWO|SINGLE|MULTI|ALL|TEST|PRE|POST|FORWARD|BACKWARD|FWD|BWD|FUSION)"
    r"[_-]?PASS\d*$|OLD_?PWD$|(?:IS|MAP)_PRIVATE$",
    re.IGNORECASE,
)
_ORDINARY_VALUE = re.compile(r"(?:[Tt]rue|[Ff]alse|None|null)[)\]},;]*")
_NUMBER = re.compile(r"(?:\d{1,7}|\d+\.\d+)[)\]},;]*")
_MAY_BE_COUNTED = re.compile(r"(?:TOKEN|KEY)S?", re.IGNORECASE)
# Counts, such as HybridEP's NUM_OF_TOKENS_PER_CHUNK_COMBINE_API.
_COUNT_NAME = re.compile(
    r"(?:NUM|MAX|MIN)_(?:TOKENS?|(?:[A-Z0-9]{1,20}_){0,4}(?:TOKENS|KEYS))(?:_(?!.*(?:SECRET|PASSW))|$)", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Return whether the name is that of a secret: ``HF_TOKEN`` yes, ``MONKEY`` and ``MAX_TOKENS`` no."""
    return not (_COUNT_NAME.match(name) or _ORDINARY_PASS.search(name)) and _SECRET_NAME.search(name) is not None


def own_command() -> tuple[str, ...]:
    """Return the command line of this process, without secrets."""
    return tuple(map(redact, sys.argv))


def redact(text: str) -> str:
    """Replace the values of secrets by ``***``, and keep everything else unchanged.

    A secret is found by name (``X_TOKEN=...``, ``"password": "..."``, ``--token ...``), by shape (``hf_``, ``sk-``,
    ``AKIA``, ``ghp_``, ``Bearer``, JWT, PEM) and by place (user and password of a URL, its signature, path of a chat's
    hook, a cookie, the argument of ``curl -u``, ``mysql -p`` and ``wandb login``). A quoted value ends at its closing quote or at the end of the line. Numbers after a
    name of tokens or keys are kept: ``max_tokens=4096``.
    """
    text, at = redact_shapes(text), 0
    kept: list[str] = []
    for assigned in _ASSIGNED.finditer(text):
        start = assigned.end()
        if start < at or not _is_assigned_secret(assigned["name"]):
            continue
        end = _end_of_value(text, start, assigned["quote"])
        if end > start and not _is_ordinary(assigned["name"], text[start:end]):
            kept += text[at:start], MASK
            at = end
    return "".join((*kept, text[at:]))


def _end_of_value(text: str, start: int, quote: str) -> int:
    if len(quote) > 1:  # an escaped quote ends at the same escaped quote
        lasts = [text.find(last, start) for last in (quote, "\n")]
        return min((last for last in lasts if last >= 0), default=len(text))
    value = (_QUOTED[quote] if quote else _UNQUOTED).match(text, start)
    return value.end() if value else start


def redact_shapes(text: str) -> str:
    """As :func:`redact`, by shape and place only: in messages, a colon after a name does not assign a value."""
    text = _URL_USER.sub(rf"\g<scheme>{MASK}@", text)
    text = _PEM.sub(rf"\g<begin>{MASK}", text)
    text = _BEARER.sub(rf"\g<word> {MASK}", text)
    text = _AUTHORIZATION.sub(rf"\g<name>{MASK}", text)
    text = _SIGNED.sub(rf"\g<name>{MASK}", text)
    text = _COOKIE.sub(rf"\g<name>{MASK}", text)
    text = _HOOK.sub(rf"\g<path>{MASK}", text)
    text = _ARGUMENT.sub(rf"\g<command>{MASK}", text)
    return _WELL_KNOWN.sub(MASK, text)


def _is_assigned_secret(name: str) -> bool:
    """As :func:`is_secret_name`, for names in text, where some names are ordinary words."""
    ordinary = name.lstrip("-_") in _ORDINARY_NAMES or _ORDINARY_PASS.search(name)
    return not ordinary and _SECRET_NAME.search(name) is not None


def _is_ordinary(name: str, value: str) -> bool:
    if _NUMBER.fullmatch(value):
        return _MAY_BE_COUNTED.search(name) is not None
    return value == MASK or _ORDINARY_VALUE.fullmatch(value) is not None


# Home folders, also of other machines, as records contain them. The user's name goes, the rest of the path stays.
_ANY_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"'\\:;,<>|]+|(?<![\w.~/-])/root(?=/|\b)")

_OF_VARIABLES = frozenset({"env", "environment"})


@dataclass(frozen=True)
class Places:
    """Folders of this machine and their placeholders, the most specific first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, folders: Iterable[tuple[Path | None, str]]) -> "Places":
        """Take each folder as given and with its links resolved; skip None."""
        known: dict[str, str] = {}
        for folder, name in folders:
            for path in (folder.absolute(), folder.resolve()) if folder else ():
                if path != Path(path.anchor):
                    known.setdefault(str(path), name)
        return cls(tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def hidden(self, text: str) -> str:
        """Replace the folders and all home folders in ``text``."""
        for path, name in self.names:
            text = re.sub(rf"(?<![\w.~-]){re.escape(path)}(?![\w.-])", name, text)
        return _ANY_HOME.sub("~", text)


def shareable(name: str, text: str, places: Places) -> str:
    """Redact the text of the file ``name``: in JSON and JSON lines, only values; in HTML, only paths.

    Masks would break a page's script, and its texts come from records that were redacted when written.
    """
    suffix = Path(name).suffix
    if suffix == ".json":
        return _json(text, places, indent=1)
    if suffix == ".jsonl":
        lines = text.removesuffix("\n").split("\n")
        return "".join(_json(line, places, indent=None).removesuffix("\n") + "\n" for line in lines)
    if suffix == ".html":
        return places.hidden(text)
    return places.hidden(redact(text))


def _json(text: str, places: Places, indent: int | None) -> str:
    """Redact a JSON document. Invalid JSON, such as a line that a kill cut short, is treated as plain text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return places.hidden(redact(text))
    return json.dumps(_clean(value, places), indent=indent, ensure_ascii=False) + "\n"


def _clean(value: object, places: Places, *, variables: bool = False) -> object:
    """Redact a JSON value. ``variables``: all keys of ``value`` name variables; otherwise only keys in capitals do.

    A setting such as moe_token_dispatcher_type looks like the name of a secret, but is not.
    """
    match value:
        case str():
            return places.hidden(redact(value))
        case list():
            return [_clean(item, places) for item in value]
        case dict():
            name = value.get("name")
            is_named = isinstance(name, str) and is_secret_name(name)  # {"name": "HF_TOKEN", "value": "..."}
            return {
                places.hidden(key): MASK
                if isinstance(inner, str)
                and ((is_named and key == "value") or (is_secret_name(key) and (variables or key.isupper())))
                else _clean(inner, places, variables=key in _OF_VARIABLES)
                for key, inner in value.items()
            }
        case _:
            return value


MAX_QUOTED = 300  # characters
NO_ERROR_TEXT = "no error text"

# torch puts this before every line of a traceback once a process group exists, as the tracer has one.
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# Python prints these exceptions and continues: they do not end the process.
_SURVIVED = re.compile(r"Exception ignored |Exception in thread |--- Logging error ---")
# Warnings may come at any time. nanobind (torch, triton) counts leaked objects after the error, when Python unloads it.
_NOISE = re.compile(
    r"nanobind: |\s*- (?:leaked|\.\.\. skipped) |See https://nanobind|.*\b[A-Z]\w*Warning: |\s+warnings\.warn\("
)
_NAMED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)|(?:\S+: )?error: ")
_CPP = re.compile(r"\s*what\(\):\s*(?P<text>\S.*)")


def quoted_error(stderr: bytes | str) -> str:
    """Return one line of at most ``MAX_QUOTED`` characters, without secrets, that says why the process failed.

    It is the first of these that ``stderr`` holds: the exception below the last traceback that Python did not survive, the
    text of a C++ exception, the last line that names an exception or begins with ``error:``, the last line. NO_ERROR_TEXT
    when it holds no line.
    """
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr
    every = [line.rstrip() for line in _RANK.sub("", text).splitlines() if line.strip()]
    lines = _without_noise(every)
    found = _raised(lines) or _cpp(lines) or _named(lines) or " ".join((lines or every)[-1:]).strip()
    return redact(found or NO_ERROR_TEXT)[:MAX_QUOTED]


def _without_noise(lines: list[str]) -> list[str]:
    kept, place = [], 0
    while place < len(lines):
        if _SURVIVED.match(lines[place]):
            place += 1 + (lines[place + 1 : place + 2] == [_TRACEBACK])
            place = _below_frames(lines, place)
        elif not _NOISE.match(lines[place]):
            kept.append(lines[place])
        place += 1
    return kept


def _below_frames(lines: list[str], start: int) -> int:
    """Return the line number of the exception, for a traceback whose first frame is line ``start``."""
    return next((at for at in range(start, len(lines)) if not lines[at][0].isspace()), len(lines))


def _raised(lines: list[str]) -> str:
    tracebacks = [at for at, line in enumerate(lines) if line == _TRACEBACK]
    return _whole(lines, _below_frames(lines, tracebacks[-1] + 1)) if tracebacks else ""


def _named(lines: list[str]) -> str:
    named = [at for at, line in enumerate(lines) if _NAMED.match(line)]
    return _whole(lines, named[-1]) if named else ""


def _whole(lines: list[str], at: int) -> str:
    """Return line ``at``, joined with the next line if it only announces that line."""
    num_lines = 2 if lines[at:] and lines[at].endswith(":") else 1
    return " ".join(line.strip() for line in lines[at : at + num_lines])


def _cpp(lines: list[str]) -> str:
    return next((found["text"] for line in lines if (found := _CPP.match(line))), "")
