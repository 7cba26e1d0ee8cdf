"""Secrets leave no trace in shared text, and ordinary text is left alone."""

import json
import time

import pytest

from harness.records.redact import Places, is_secret_name, redact, shareable

CANARY = "CANARYcanary0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"https://bucket.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature={CANARY}",
        f"https://bucket.s3.amazonaws.com/a?X-Amz-Credential={CANARY}%2F2026&X-Amz-Date=1",
        f"https://storage.googleapis.com/a?X-Goog-Signature={CANARY}",
        f"https://account.blob.core.windows.net/a?sv=2026&amp;sig={CANARY}%3D",
        f"https://d1.cloudfront.net/a?Expires=1&Signature={CANARY}~_",
        f"AIza{CANARY}0123456789",
        f"https://discord.com/api/webhooks/123/{CANARY}",
        f"https://discordapp.com/api/webhooks/123/{CANARY}",
        f"https://canary.discord.com/api/v10/webhooks/123/{CANARY}",
        f"curl --proxy-user me:{CANARY} https://x",
        f"wandb.login(relogin=True, key='{CANARY}')",
        f"docker login -u me -p {CANARY} registry.example",
        f"sshpass -p {CANARY} ssh node07",
        f"mysql -h db -u me -p{CANARY} runs",
        f"mysqldump -p'{CANARY}' runs",
        f"https://team.webhook.office.com/webhookb2/a@b/IncomingWebhook/{CANARY}/c",
        f"https://outlook.office.com/webhook/{CANARY}",
        f"curl -sS -u me:{CANARY} https://x",
        f"curl https://x --user 'me:{CANARY}'",
        f"curl --user=me:{CANARY} https://x",
        f"wandb login {CANARY}",
        f"wandb login --relogin --verify {CANARY}",
        f"Cookie: a=b; session={CANARY}",
        f"curl -H 'Cookie: a=b; session={CANARY}' https://x",
        f"Set-Cookie: session={CANARY}; Path=/",
        f"REGISTRY_AUTH={CANARY}",
        f"SESSION_COOKIE={CANARY}",
        f"A_JWT: {CANARY}",
        f"TEAMS_WEBHOOK=https://hook/{CANARY}",
        f"HF_TOKEN={CANARY}",
        f"HF_TOKEN\t{CANARY}",
        f'HF_TOKEN: str = "{CANARY}"',
        f"hf_token: Optional[str] = '{CANARY}'",
        f"token: SecretStr | None = '{CANARY}'",
        f"WANDB_API_KEY={CANARY}",
        f"wandb_api_key: {CANARY}",
        f"OPENAI_APIKEY={CANARY}",
        f'{{"password": "{CANARY}"}}',
        f"DB_PASSWD='{CANARY}'",
        f"--hf-token={CANARY}",
        f"--pwd={CANARY}",
        f"x=HF_TOKEN={CANARY}",
        f"--hf_token hf_{CANARY}",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"export MY_CREDENTIALS={CANARY};",
        f"loading hf_{CANARY} failed",
        f"sk-{CANARY}",
        f"ghp_{CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"authorization: basic {CANARY}",
        f"Basic {CANARY}",
        f"git remote https://me:{CANARY}@github.com/x/y.git",
        f"http://{CANARY}@proxy:3128",
        f"TOKEN={CANARY} and KEY={CANARY}",
        f"PGPASSWORD={CANARY}",
        f"MYSQL_PWD={CANARY} DB_PWD='{CANARY}'",
        f"-E MYPASS={CANARY}",
        f"SMTP_PASS={CANARY}",
        f"SSH_PRIVATE={CANARY}",
        f"GL=glpat-{CANARY}",
        f"jwt eyJhbGciOiJIUzI1NiJ9.eyJ{CANARY}.{CANARY}",
        f"https://hooks.slack.com/services/T00/B00/{CANARY}",
        f"{{'password': 'my pass {CANARY}'}}",
        f'DB_PASSWORD="S3cr3t;Pass&1 {CANARY}"',
        f'{{"api_key": "a,b\\"c {CANARY}"}}',
        f"PASSWORD=abc,{CANARY}",
        f"PASSWORD=it's{CANARY}",
        f"PASSWORD='never closed {CANARY}",
        f'{{"log": "{{\\"token\\": \\"x {CANARY}\\", \\"n\\": 1}}"}}',
        f"os.environ['HF_TOKEN'] = '{CANARY}'",
        f"torchrun train.py --password {CANARY} --lr 1",
        f"--api-key '{CANARY} x'",
        f"MAX_MIND_LICENSE_KEY={CANARY}",
        f"API_KEY2={CANARY} PGPASSWORD2={CANARY}",
        f"GITHUB_PAT={CANARY}",
        f"accessToken: {CANARY}, clientSecret: {CANARY}",
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={CANARY}==;EndpointSuffix=core.windows.net",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\\n{CANARY}",
        f"https%3A%2F%2Fb.s3.amazonaws.com%2Fa%3FX-Amz-Date%3D1%26X-Amz-Signature%3D{CANARY}",
        f"https://b.blob.core.windows.net/a?sv=1\\u0026sig={CANARY}",
        f"sv=1&sig\\u003d{CANARY}",
        f"sig={CANARY}",
        f"HTTPS://DISCORD.COM/API/WEBHOOKS/123/{CANARY}",
        f"https%3A%2F%2Fdiscord.com%2Fapi%2Fwebhooks%2F123%2F{CANARY}",
        f"https:\\/\\/discord.com\\/api\\/webhooks\\/1\\/{CANARY}",
        f"https:\\/\\/hooks.slack.com\\/services\\/T\\/B\\/{CANARY}",
        f"\x1b[31mAIza{CANARY}0123456789\x1b[0m",
        f"\x1b[31mcurl -sS -u me:{CANARY} https://x\x1b[0m",
        f"\x1b[33mTOKEN\x1b[0m=\x1b[32m'{CANARY}'\x1b[0m",
        f"CURL -su me:{CANARY} https://x",
        f"curl -b session={CANARY} https://x",
        f"curl \\\n  -u me:{CANARY} \\\n  https://x",
        f"['curl', '-u', 'me:{CANARY}', 'https://x']",
        f"['wandb', 'login', '{CANARY}']",
        f"wandb login --host https://w.example {CANARY}",
        f"wandb login \\\n  {CANARY}",
        f'wandb.login("{CANARY}")',
        f"wandb.login(key=\n    '{CANARY}')",
        f"Cookie%3A%20a%3Db%3B%20session%3D{CANARY}",
        f"('Cookie', 'session={CANARY}')",
        f"('HF_TOKEN', '{CANARY}')",
        f"- name: HF_TOKEN\n  value: {CANARY}",
        f'{{"name": "HF_TOKEN", "value": "{CANARY}"}}',
        f"HF_TOKEN: |\n  {CANARY}",
        f"hf_token: !!str {CANARY}",
        f"HF_TOKEN=\\\n{CANARY}",
        f"HF_TOKEN => {CANARY}",
        f"%26token%3D{CANARY}",
        f"HF_TOKEN\\u003d{CANARY}",
        f"setenv HF_TOKEN {CANARY}",
        f"webhookUrl: https://x/{CANARY}, sessionCookie={CANARY}, myJwt={CANARY}, SharedAccessSignature={CANARY}",
        f"Authorization: token {CANARY}",
        f"Authorization: {CANARY}",
        f"'Authorization': 'AWS4-HMAC-SHA256 Credential=x/2026, Signature={CANARY}'",
        f"mongodb://me:a@{CANARY}@host/x",
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    assert CANARY not in redact(text)
    assert "***" in redact(text)


def test_an_aws_key_id_is_masked() -> None:
    assert redact("id AKIAIOSFODNN7EXAMPLE used") == "id *** used"


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
        "curl --output x -L https://x; curl -fsSL -o file https://x",
        "Authorization: required, authorization: none; sig=inspect.signature(f)",
        "def number(keys: Keys, value: object); Key -> bytes; wandb login, or not; '--pass_env', 'A_KEY', '--json'",
        "AUTHOR=ada COOKIECUTTER=1 XAUTHORITY=/x",
        "design=1&significant=2",
        "KEYBOARD=dvorak TURKEY=2",
        "--max_tokens=4096",
        "num_tokens: 8192",
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
        "results/sk-learn-experiments and sk-learn-1.5",
        "PWD=/root OLDPWD=/tmp pwd: /root",
        "BYPASS=yes COMPASS=north LOW_PASS=butter, forward_pass=slow, backward-pass: graph, pass: all, PASS: test_a",
        "password: None, password=null; use_token=True",
        "torchrun train.py --max_tokens 4096 --tokens-per-batch 8 --password --lr 1",
        "InvalidTokenError: unexpected; numTokens: 4096, max_tokens: 12, NUM_KEYS=3",
        "spare the pattern: PAT, pat=1",
        "HF_TOKEN\tis missing, API_KEY\tstring\tthe key of the registry",
        "max_tokens: int = 4096",
        'eyJ is how base64 of {" begins; https://hooks.slack.com/help; bypass=on',
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_the_name_and_the_rest_of_the_line_stay_legible() -> None:
    assert redact("env HF_TOKEN=abc123xyz python train.py") == "env HF_TOKEN=*** python train.py"


def test_what_stands_beside_a_secret_stays_legible() -> None:
    beside = "AccountName=me;AccountKey=abc+def==;EndpointSuffix=x {'password': 'a b', 'n': 1} ?token=ab&page=2 f(token='x', y=2)"
    assert redact(beside) == (
        "AccountName=me;AccountKey=***;EndpointSuffix=x {'password': '***', 'n': 1} ?token=***&page=2 f(token='***', y=2)"
    )
    pem = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nand on"
    assert redact(pem) == "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----\nand on"


def test_a_password_of_digits_is_no_count() -> None:
    assert redact("password=123456 tokens_seen=123456 HF_TOKEN=12") == "password=*** tokens_seen=123456 HF_TOKEN=12"


def test_the_value_of_a_named_pair_is_masked_in_json() -> None:
    pairs = [{"name": "HF_TOKEN", "value": CANARY}, {"name": "LR", "value": "1"}, {"name": 1, "value": "x"}]
    masked = [pairs[0] | {"value": "***"}, *pairs[1:]]
    assert json.loads(shareable("a.json", json.dumps(pairs), Places.of(()))) == masked


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact(f"HF_TOKEN={CANARY} https://u:{CANARY}@host/")
    assert redact(once) == once


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("WANDB_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True), ("MONKEY", False),
     ("PGPASSWORD", True), ("MYSQL_PWD", True), ("MYPASS", True), ("SSH_PRIVATE", True), ("PRIVATE_KEY", True),
     ("PWD", False), ("OLDPWD", False), ("BYPASS", False), ("COMPASS", False), ("NVTE_FORWARD_PASS", False),
     ("TOKENIZERS_PARALLELISM", False), ("NCCL_DEBUG", False), ("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", False),
     ("MAX_MIND_LICENSE_KEY", True), ("API_KEY2", True), ("GITHUB_PAT", True), ("accessToken", True), ("clientSecret", True),
     ("AccountKey", True), ("MAX_TOKENS", False), ("MIN_TOKEN_LENGTH", False), ("MAX_TOKEN_SECRET", True), ("NETRC_AUTH", True),
     ("COOKIE", True), ("MY_JWT", True), ("SLACK_WEBHOOK", True), ("AUTHOR", False), ("XAUTHORITY", False)],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str, secret: bool) -> None:
    assert is_secret_name(name) == secret


@pytest.mark.parametrize(
    "part",
    [
        "a-",
        "A_",
        "key-",
        "x=",
        "token=",
        "token='",
        'keys="',
        "aPASS",
        "sk-",
        "eyJ-",
        "Basic ",
        "Bearer ",
        "curl -u ",
        "curl ",
        "wandb login --a ",
        "Cookie: ",
        "&sig=",
        "a://",
        "hf_ ",
        "key ",
        "--token ",
        "token=,",
        "token='\\",
        'token=\\"',
        "PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "aKey",
        "wandb login ",
        "'curl', '-u', ",
        "curl \\\n",
        "%26",
        "\x1b[31m",
        "a: |\n ",
        "Authorization: ",
        "Authorization: Digest ",
        "wandb.login(",
        "setenv A ",
        "sig=",
        "TOKEN, value",
        "'A', ",
    ],
)
def test_a_long_line_takes_time_by_its_length(part: str) -> None:
    """Twenty times the text may take forty times as long: what grows with the square takes four hundred."""

    def seconds(length: int) -> float:
        started = time.process_time()
        redact(part * (length // len(part)))
        return time.process_time() - started

    assert seconds(100_000) < 40 * max(min(seconds(5_000) for _ in range(3)), 0.002)
