"""Removes secrets and names from texts and records."""

import re
import sys

MASK = "***"
Rows = tuple[tuple[str, tuple[str, ...]], ...]

# Other spellings of =, of & ? and ;, and of /: URL-encoded once or twice, or escaped in JSON. Then an ANSI colour, the
# begin of a word, possibly behind a colour, and what stands between the words of a shell's line or of a list.
_EQUALS, _SEPARATOR = r"(?:=|%(?:25)?3D|\\{1,4}u003d)", r"(?:[?&;]|%(?:25)?(?:26|3F)|\\{1,4}u0026)"
_SLASH = r"(?:\\{0,4}/|%(?:25)?2F)"
_COLOUR, _START = r"\x1b\[[0-9;]{0,16}m", r"(?:\b|(?<=[\[;0-9]m))"
_GAP = r"(?:[\"'],\s?[\"']|[\s\\]{1,8}[\"']?)"
_ARGUMENT = r"(?![-\s])[^\s\"']+"
_CHATS = (
    r"discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks|hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|webhook\.office\.com/webhookb2|outlook\.office\.com/webhook"
)
SHAPES: Rows = (
    # Repetitions have limits, because the search would otherwise run from every letter of a long text to its end.
    (r"(?i:[a-z][a-z0-9+.-]{0,30}://)\K[^\s/\"']+(?=@)",
     ("git remote https://me:SECRET@github.com/x/y.git", "http://SECRET@proxy:3128", "mongodb://me:a@SECRET@host/x")),
    (r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----\K(?:(?!-----END)[\s\S])+",
     ("-----BEGIN RSA PRIVATE KEY-----\nSECRET\nSECRET\n-----END RSA PRIVATE KEY-----",
      "-----BEGIN PRIVATE KEY-----\\nSECRET")),
    # `Basic` is also an ordinary word. Only in a header do capitals, digits or `=` follow it.
    (rf"(?i:{_START}(?:Bearer|Authorization[\"']?\s*[:=]\s*[\"']?(?:Basic|Token|ApiKey|Negotiate)"
     r"|(?-i:Basic(?=\s+[A-Za-z0-9._~+/-]*[A-Z0-9=])))\s+)\K[A-Za-z0-9._~+/=-]{8,}",
     ("Authorization: Bearer SECRET", "authorization: basic SECRET", "Basic SECRET", "Authorization: token SECRET")),
    # Without a scheme, the secret is one word with a digit. With Digest or AWS4, mask all parameters that follow.
    (r"(?i:Authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:Digest|AWS4-[\w-]{1,20})\s{1,4}(?=\S)"
     r"|(?=[A-Za-z0-9._~+/=-]{16})(?=[A-Za-z._~+/=-]{0,80}[0-9])))\K(?:(?<=\s)[^\n\"']+|[^\s\"',;]+)",
     ("Authorization: SECRET", "'Authorization': 'AWS4-HMAC-SHA256 Credential=x/2026, Signature=SECRET'")),
    # Query parameters that sign a URL: of S3, Google Cloud, CloudFront, Azure. HTML adds `amp;`, JSON a backslash.
    (r"(?i:(?:(?<![A-Za-z0-9])|(?<=%26)|(?<=%3F)|(?<=u0026))X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)"
     rf"{_EQUALS}|{_SEPARATOR}(?:sig|signature){_EQUALS}"
     rf"|(?<![A-Za-z0-9_])sig=(?=[A-Za-z0-9%+/_-]{{20}}))\K[^\s&\"'<>\\]+",
     ("https://b.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature=SECRET",
      "?X-Amz-Credential=SECRET%2F2026&X-Amz-Date=1",
      "https://storage.googleapis.com/a?X-Goog-Signature=SECRET",
      "https://b.blob.core.windows.net/a?sv=1\\u0026sig=SECRET",
      "https://a.blob.core.windows.net/a?sv=2026&amp;sig=SECRET%3D",
      "https://d1.cloudfront.net/a?Expires=1&Signature=SECRET~_",
      "https%3A%2F%2Fb.s3.amazonaws.com%2Fa%3FX-Amz-Date%3D1%26X-Amz-Signature%3DSECRET", "sv=1&sig\\u003dSECRET",
      "sig=SECRET")),
    (rf"(?i:{_START}(?:Set-)?Cookie(?:\s{{0,4}}(?::|%3A)\s{{0,4}}|[\"'],\s{{0,4}}[\"']))\K[^\s\"'][^\n\"']*",
     ("Cookie: a=b; session=SECRET", "curl -H 'Cookie: a=b; session=SECRET' https://x",
      "Set-Cookie: session=SECRET; Path=/",
      "Cookie%3A%20a%3Db%3B%20session%3DSECRET", "('Cookie', 'session=SECRET')")),
    # Webhook URLs of chats: anyone who knows the URL can post.
    (rf"(?i:(?:{_CHATS})/)\K[^\s\"'<>]+".replace("/", _SLASH),
     ("https://canary.discord.com/api/v10/webhooks/123/SECRET", "https://hooks.slack.com/services/T00/B00/SECRET",
      "HTTPS://DISCORDAPP.COM/API/WEBHOOKS/123/SECRET",
      "https%3A%2F%2Fdiscord.com%2Fapi%2Fwebhooks%2F123%2FSECRET",
      "https:\\/\\/discord.com\\/api\\/webhooks\\/1\\/SECRET",
      "https://team.webhook.office.com/webhookb2/a@b/IncomingWebhook/SECRET/c",
      "https://outlook.office.com/webhook/SECRET")),
    # Commands whose argument is a secret without a name, as a line of shell or a list of words.
    (rf"(?i:{_START}curl\b(?:[^\n]|(?<=\\)\n){{0,400}}?[\s\"'](?:-u(?:{_GAP}|=)?|-[a-z]{{1,6}}u{_GAP}"
     rf"|-b{_GAP}(?=[^\s\"'=]{{1,80}}=)|--(?:proxy-)?user(?:{_GAP}|=))[\"']?)\K{_ARGUMENT}",
     ("curl -sS -u me:SECRET https://x", "curl https://x --user 'me:SECRET'", "curl --user=me:SECRET https://x",
      "curl --proxy-user me:SECRET https://x", "CURL -su me:SECRET https://x", "curl -b session=SECRET https://x",
      "curl \\\n  -u me:SECRET \\\n  https://x", "['curl', '-u', 'me:SECRET', 'https://x']",
      "\x1b[31mcurl -sS -u me:SECRET https://x\x1b[0m")),
    (rf"(?:(?i:{_START}wandb{_GAP}login{_GAP}(?:--?[\w-]{{1,30}}(?:(?:=|\s{{1,4}})https?:\S{{1,200}})?{_GAP}){{0,4}})"
     rf"|\bwandb\.login\((?:[^)]{{0,200}}?key\s?=\s{{0,20}})?[\"'])\K{_ARGUMENT}",
     ("wandb login SECRET", "wandb login --relogin --verify SECRET", "wandb login --host https://w.example SECRET",
      "wandb login \\\n  SECRET", "['wandb', 'login', 'SECRET']", 'wandb.login("SECRET")',
      "wandb.login(relogin=True, key=\n    'SECRET')")),
    (r"(?:\b(?:docker|podman)\s{1,4}login\b[^\n]{0,200}?\s-p\s{1,4}|\bsshpass\s{1,4}-p\s{0,4}[\"']?"
     r"|\b(?:mysql|mariadb)(?:dump|admin|import)?\b[^\n]{0,400}?\s-p(?=[^\s-])[\"']?)\K" + _ARGUMENT,
     ("docker login -u me -p SECRET registry.example", "sshpass -p SECRET ssh node07", "mysqldump -p'SECRET' runs")),
    (r"\b(?:setenv|set\s-[gUx]{1,3}|configure\sset)\s{1,4}"
     r"(?=\w{0,60}(?i:token|key|secret|pass|auth|cookie|jwt|webhook))"
     rf"\w{{1,80}}\s{{1,4}}[\"']?\K{_ARGUMENT}",
     ("setenv HF_TOKEN SECRET",)),
    (_START + r"\K(?:hf_[A-Za-z0-9]{8,}|gh[opusr]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}"
     r"|(?:nvapi-|glpat-)[A-Za-z0-9_-]{8,})",
     ("loading hf_SECRET failed", "ghp_SECRET", "github_pat_SECRET", "nvapi-SECRET", "GL=glpat-SECRET")),
    (_START + r"\K(?:sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}|A(?:KIA|SIA)[A-Z0-9]{12,}"
     r"|xox[abprs]-[A-Za-z0-9-]{8,}"
     r"|xapp-[A-Za-z0-9-]{16,}|SG\.[\w-]{16,64}\.[\w-]{16,})",
     ("sk-SECRET", "id AKIASECRET used", "ASIASECRET", "xoxb-SECRET", "xapp-SECRET", "SG.SECRET.SECRET")),
    (_START + r"\K(?:AIza[A-Za-z0-9_-]{20,}|(?:npm_|pypi-|ya29\.|GOCSPX-|[sr]k_live_|wandb_v1_)[A-Za-z0-9_-]{20,}"
     r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*)",
     ("\x1b[31mAIzaSECRET\x1b[0m", "npm_SECRET", "pypi-SECRET", "ya29.SECRET", "GOCSPX-SECRET", "sk_live_SECRET",
      "wandb_v1_SECRET",
      "jwt eyJhbGciOiJIUzI1NiJ9.eyJSECRET.SECRET")),
    # Databricks, age, NVIDIA's NGC, Doppler, Vault, Pulumi, and the bots of Telegram.
    (_START + r"(?:bot)?\K(?:dapi(?=[A-Za-z]{0,30}[0-9])[A-Za-z0-9]{16,}|AGE-SECRET-KEY-1[A-Za-z0-9]{16,}"
     r"|(?:bmdj|b25n)[A-Za-z0-9]{20,}={0,2}|dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9]{16,}"
     r"|hv[sbr]\.[A-Za-z0-9_-]{16,}|pul-[A-Za-z0-9]{16,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{20,})",
     ("dapiSECRET", "NGC bmdjSECRET", "dp.pt.SECRET", "vault hvs.SECRET", "pul-SECRET",
      "https://api.telegram.org/bot123456789:AASECRET/sendMessage")),
)  # fmt: skip
"""Secrets that are known by their shape or place: what follows ``\\K`` is masked. Examples have SECRET in its place."""
_SHAPES = tuple(re.compile("(?P<kept>{})(?:{})".format(*shape.split(r"\K"))) for shape, _ in SHAPES)

_WORDS = "TOKENS?|KEYS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|AUTH|COOKIES?|JWTS?|WEBHOOKS?"
# The word is alone between underscores or at an end of the name, so that MONKEY=1 stays readable. Then as part of a
# word: PGPASSWORD, MYSQL_PWD, MYPASS, SSH_PRIVATE (alone, pass, pwd and private are ordinary words). Then as
# JavaScript and connection strings write it: accessToken, AccountKey; but not InvalidTokenError.
_SECRET_NAME = re.compile(
    rf"(?i:(?:^|[_-])(?:{_WORDS}|[A-Z0-9]*API_?KEY)\d*(?:[_-]|$))"
    r"|(?:(?i:[A-Z0-9_-]{1,40}(?:PASSWORDS?|PASSWD|PASSPHRASE|PWD)|PASSPHRASE)|[A-Za-z0-9_-]{1,40}PASS"
    r"|[A-Z0-9][A-Z0-9_]{0,40}_PRIVATE|[A-Z0-9]_PAT|(?i:(?:^|(?<!XDG)[_-])(?:J|PHP)?SESS(?:ION)?[_-]?ID)"
    r"|(?:[A-Z0-9_]{0,40}_)?(?:DSN|NETRC|SESSION|OTP|PIN|BEARER|PRIVATE|SIGNATURE|SALT)"
    r"|(?:[A-Z0-9_]{0,40}_)?(?:DATABASE|DB|POSTGRES|MYSQL|MONGO(?:DB)?|REDIS|AMQP|BROKER)_UR[IL]"
    r"|[A-Za-z0-9_-]{0,40}[a-z0-9](?:Token|Key|Secret|Password|Credential|Cookie|Jwt|Webhook|AccessSignature)s?"
    r"|(?:[A-Za-z0-9_-]{0,40}[a-z0-9]W|w)ebhookUr[il])\d*$"
)
_TYPED = r":\s?(?:[A-Za-z.]{0,20}\[)?(?:str|SecretStr|int|float|bool)\]?(?:\s?\|\s?None)?\s?="
ASSIGNMENTS: Rows = (
    # By =, a colon or a typed name, quotes perhaps escaped; the value may be a YAML block or the next line.
    (rf"\\{{0,8}}[\"']?\]?\s*(?:{_TYPED}|[=:]=?>?|%3[AD](?:%20)?|\\{{1,4}}u003d)\s*+"
     r"(?:[|>][+-]?[ \t]*\n\s+|\\\n\s*|!!str\s+)?",
     ("HF_TOKEN=SECRET", "--hf-token=SECRET", "x=HF_TOKEN=SECRET", "HF_TOKEN => SECRET", 'HF_TOKEN: str = "SECRET"',
      "hf_token: Optional[str] = 'SECRET'", "token: SecretStr | None = 'SECRET'", '{"password": "SECRET"}',
      "os.environ['HF_TOKEN'] = 'SECRET'", "\x1b[33mTOKEN\x1b[0m=\x1b[32m'SECRET'\x1b[0m", "%26token%3DSECRET",
      "HF_TOKEN\\u003dSECRET",
      '{"log": "{\\"token\\": \\"x SECRET\\", \\"n\\": 1}"}', "HF_TOKEN: |\n  SECRET", "hf_token: !!str SECRET",
      "HF_TOKEN=\\\nSECRET")),
    (r"(?:\\{0,8}[\"'],\s*\\{0,8}[\"']value\\{0,8}[\"']|[\"']?[ \t]*\n\s*value)\s*:\s*",
     ('{"name": "HF_TOKEN", "value": "SECRET"}', "- name: HF_TOKEN\n  value: SECRET")),
    (r"\s++(?=[\"']?(?i:hf_))", ("HF_TOKEN hf_SECRET",)),
    (r"(?<=[A-Z0-9])\t(?=[A-Za-z0-9._~+/=-]{12})(?=[^\s\d]{0,80}\d)", ("HF_TOKEN\tSECRET",)),
    (r"(?<=[A-Z0-9])[\"'],\s?(?=[\"'](?!-|[A-Z_0-9]{3,80}[\"']))", ("('HF_TOKEN', 'the SECRET')",)),
    (r"(?(option)[ \t]++(?![-=:])|(?!))", ("torchrun train.py --password SECRET --lr 1", "--api-key 'SECRET x'")),
)  # fmt: skip
"""What stands between the name of a secret and its value; examples as above."""

# Whole names only, each tried once: trying every part of a long name would take hours for a line of a hostile log.
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_-])(?:%[0-9A-Fa-f]{{2}}|{_COLOUR})*+(?P<name>(?P<option>--)?[A-Za-z0-9_-]++)(?:{_COLOUR})?"
    rf"(?:{'|'.join(between for between, _ in ASSIGNMENTS)})(?:{_COLOUR})?(?P<quote>(?:\\{{0,8}}[\"'])?)"
)
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)+") for quote in "\"'"}
# Up to a quote that is not inside a word, or up to the next assigned name.
_UNQUOTED = re.compile(r"(?:[^\s\"'\\,;&]|\\(?![\"'])|[\"'](?=\w)|[,;&](?![A-Za-z0-9_.-]{1,60}[=:]))+(?<![,;&])")
# Frequent in tracebacks: `sorted(x, key=...)`, `unknown key: ...`, `json.dumps(x, sort_keys=True)`, `max_tokens=4096`.
_ORDINARY_NAMES = frozenset({"key", "keys", "tokens"})
_ORDINARY_PASS = re.compile(
    r"(?i:(?:BY|COM|SUR|TRES|OVER|UNDER|LOW|HIGH|BAND|ONE|TWO"
    r"|SINGLE|MULTI|ALL|TEST|PRE|POST|FORWARD|BACKWARD|FWD|BWD|FUSION)"
    r"[_-]?PASS\d*$|OLD_?PWD$|(?:IS|MAP)_PRIVATE$)"
)
_ORDINARY_VALUE = re.compile(r"(?:\*\*\*|(?:[Tt]rue|[Ff]alse|None|null)[)\]},;]*)")
_NUMBER = re.compile(r"(?:\d{1,7}|\d+\.\d+)[)\]},;]*")
_MAY_BE_COUNTED = re.compile(r"(?i:(?:TOKEN|KEY)S?)")
# Counts, such as HybridEP's NUM_OF_TOKENS_PER_CHUNK_COMBINE_API.
_COUNT_NAME = re.compile(
    r"(?i:(?:NUM|MAX|MIN)_(?:TOKENS?|(?:[A-Z0-9]{1,20}_){0,4}(?:TOKENS|KEYS))(?:_(?!.*(?:SECRET|PASSW))|$))"
)


def is_secret_name(name: str) -> bool:
    """Tell the name of a secret from others: ``HF_TOKEN`` yes, ``MONKEY`` and ``MAX_TOKENS`` no."""
    return not (_COUNT_NAME.match(name) or _ORDINARY_PASS.search(name)) and _SECRET_NAME.search(name) is not None


def own_command() -> tuple[str, ...]:
    """Return the command line of this process, without secrets."""
    return tuple(map(redact, sys.argv))


def redact(text: str) -> str:
    """Replace secrets, found by :data:`SHAPES` and behind :data:`ASSIGNMENTS`, by ``***``; counts are kept."""
    text, at = redact_shapes(text), 0
    kept: list[str] = []
    for assigned in _ASSIGNED.finditer(text):
        name, start = assigned["name"], assigned.end()
        is_ordinary = name.lstrip("-_") in _ORDINARY_NAMES or _ORDINARY_PASS.search(name)
        if start < at or is_ordinary or not _SECRET_NAME.search(name):
            continue
        end = _end_of_value(text, start, assigned["quote"])
        counts = _MAY_BE_COUNTED.search(name) and _NUMBER.fullmatch(text, start, end)
        if end > start and not counts and not _ORDINARY_VALUE.fullmatch(text, start, end):
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
    for shape in _SHAPES:
        text = shape.sub(rf"\g<kept>{MASK}", text)
    return text
