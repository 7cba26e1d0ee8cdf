"""Secrets leave no trace in shared text, and ordinary text is left alone."""

import time

import pytest

from harness.records.redact import ASSIGNMENTS, SHAPES, is_secret_name, redact

CANARY = "CANARY0123456789ABCDEF"


EXAMPLES = [example for rows in (SHAPES, ASSIGNMENTS) for _, examples in rows for example in examples]
NAMES = [
    "WANDB_API_KEY", "wandb_api_key", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "MY_CREDENTIALS", "REGISTRY_AUTH",
    "SESSION_COOKIE", "A_JWT", "TEAMS_WEBHOOK", "DB_PASSWD", "PGPASSWORD", "MYSQL_PWD", "DB_PWD", "MYPASS",
    "SMTP_PASS", "SSH_PRIVATE", "PRIVATE_KEY", "MAX_MIND_LICENSE_KEY", "API_KEY2", "PGPASSWORD2", "GITHUB_PAT",
    "MAX_TOKEN_SECRET", "NETRC_AUTH", "accessToken", "clientSecret", "AccountKey", "webhookUrl", "sessionCookie",
    "DATABASE_URL", "DB_DSN", "NETRC", "SESSION", "OTP", "PIN", "BEARER", "PRIVATE", "SIGNATURE", "SALT", "myJwt",
    "SharedAccessSignature", "SESSION_ID", "sessionid", "JSESSIONID", "PHPSESSID",
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_a_shape_is_masked(example: str) -> None:
    secret = example.replace("SECRET", CANARY)
    assert CANARY not in redact(secret)
    assert redact(redact(secret)) == redact(secret)


@pytest.mark.parametrize(
    "text",
    [
        f"--pwd={CANARY}",
        f"-E MYPASS={CANARY}",
        f"TOKEN={CANARY} and KEY={CANARY}",
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={CANARY}==;EndpointSuffix=core.windows.net",
        f'DB_PASSWORD="S3cr3t;Pass&1 {CANARY}"',
        f'{{"api_key": "a,b\\"c {CANARY}"}}',
        f"PASSWORD=abc,{CANARY}",
        f"PASSWORD=it's{CANARY}",
        f"PASSWORD='never closed {CANARY}",
    ],
)
def test_a_value_ends_where_its_text_does(text: str) -> None:
    assert CANARY not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "mbr-perf run -m llama -mr llama3_8b --recompute_modules core_attn,layernorm -g h100 -ng 8",
        "MONKEY=1",
        "curl -fsSL https://x -o y",
        "wandb.login(key=settings.key)",
        "docker login registry.example",
        "sudo -u tester wandb login",
        "(key, value), ('tokens', 'loss'), ['token', 'position'], ['HF_TOKEN', 'WANDB_API_KEY'], name: loss\n  value: 1",
        "Authorization: required, authorization: none; sig=inspect.signature(f)",
        "def number(keys: Keys, value: object); Key -> bytes; wandb login, or not; '--pass_env', 'A_KEY', '--json'",
        "AUTHOR=ada COOKIECUTTER=1 XAUTHORITY=/x",
        "design=1&significant=2",
        "--max_tokens=4096",
        "tokens_per_s_per_gpu 12345.6",
        "TOKENIZERS_PARALLELISM=false",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,garbage_collection_threshold:0.8",
        "https://docs.pytorch.org/docs/stable/elastic/errors.html",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB",
        "recipes/x.yaml:3: unknown key: recompute_num",
        "sorted(rows, key=lambda row: row.name), json.dumps(x, sort_keys=True)",
        "KeyError: 'recompute_modules'",
        "the bearer of bad news",
        "Basic acceptance of the driver, and basic requirements",
        "risk-free task-force-member",
        "PWD=/root OLDPWD=/tmp pwd: /root",
        "BYPASS=yes COMPASS=north LOW_PASS=butter, forward_pass=slow, backward-pass: graph, pass: all, PASS: test_a",
        "password: None, password=null; use_token=True",
        "torchrun train.py --max_tokens 4096 --tokens-per-batch 8 --password --lr 1",
        "InvalidTokenError: unexpected; numTokens: 4096, max_tokens: 12, NUM_KEYS=3",
        "HF_TOKEN\tis missing, API_KEY\tstring\tthe key of the registry",
        "max_tokens: int = 4096",
        "pin_memory=True XDG_SESSION_ID=3 signature: int",
        'eyJ is how base64 of {" begins; https://hooks.slack.com/help; bypass=on',
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("env HF_TOKEN=abc123xyz python train.py", "env HF_TOKEN=*** python train.py"),
        ("AccountName=me;AccountKey=abc+def==;EndpointSuffix=x {'password': 'a b', 'n': 1} ?token=ab&page=2 f(token='x', y=2)",
         "AccountName=me;AccountKey=***;EndpointSuffix=x {'password': '***', 'n': 1} ?token=***&page=2 f(token='***', y=2)"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nand on",
         "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----\nand on"),
        ("password=123456 tokens_seen=123456 HF_TOKEN=12", "password=*** tokens_seen=123456 HF_TOKEN=12"),
        (f"age AGE-SECRET-KEY-1{CANARY} used", "age *** used"),
    ],
)  # fmt: skip
def test_what_stands_beside_a_secret_stays_legible(text: str, masked: str) -> None:
    assert redact(text) == masked


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_a_secret_name_is_masked(name: str) -> None:
    assert is_secret_name(name)
    assert redact(f"{name}={CANARY}") == f"{name}=***"


ORDINARY = [
    "MONKEY", "PWD", "OLDPWD", "BYPASS", "COMPASS", "NVTE_FORWARD_PASS", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG",
    "MAX_TOKENS", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "MIN_TOKEN_LENGTH", "AUTHOR", "XAUTHORITY",
]  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "part",
    [
        "a-", "A_", "key-", "x=", "token=", "token='", 'keys="', "aPASS", "sk-", "eyJ-", "Basic ", "Bearer ",
        "curl -u ", "curl ", "wandb login --a ", "Cookie: ", "&sig=", "a://", "hf_ ", "key ", "--token ",
        "token=,", "token='\\", 'token=\\"', "PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----", "aKey",
        "wandb login ", "'curl', '-u', ", "curl \\\n", "%26", "\x1b[31m", "a: |\n ", "Authorization: ",
        "Authorization: Digest ", "wandb.login(", "setenv A ", "sig=", "TOKEN, value", "'A', ",
    ],
)  # fmt: skip
def test_a_long_line_takes_time_by_its_length(part: str) -> None:
    """Twenty times the text may take forty times as long: what grows with the square takes four hundred."""

    def seconds(length: int) -> float:
        started = time.process_time()
        redact(part * (length // len(part)))
        return time.process_time() - started

    assert seconds(40_000) < 40 * max(min(seconds(2_000) for _ in range(3)), 0.001)
