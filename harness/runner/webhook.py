"""Sends a message to the one address that the environment names, which is a secret: it is told, kept and recorded nowhere."""

import errno
import http.client
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from harness.errors import BadRequestError

VARIABLE = "MBR_PERF_WEBHOOK_URL"
TRIES = 2
TIMEOUT_S = 10.0
_PAUSE_S = 1.0
_SCHEMES = ("https", "http")
_REDIRECTS = range(300, 400)
_SERVER_ERROR = 500
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True)
class WebhookAddress:
    """Where to; never shown, not even by accident."""

    url: str = field(repr=False)


@dataclass(frozen=True)
class _Failure:
    """Why a try came to nothing, in words without the address; ``again``: whether another may come to more."""

    text: str
    again: bool


def webhook_address(shell: Mapping[str, str]) -> WebhookAddress:
    """The address that ``shell`` holds. BadRequestError, without a word of it, where there is none or it is no http(s) URL."""
    url = shell.get(VARIABLE, "")
    if not url:
        raise BadRequestError(f"--webhook: {VARIABLE} is not set", remedy=f"export {VARIABLE}=https://...")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or not url.isprintable() or " " in url:
        raise BadRequestError(
            f"--webhook: the value of {VARIABLE} is no address of a webhook",
            remedy="https:// or http://, a host, and a path in ASCII: no user or password, no blanks",
        )
    return WebhookAddress(url)


def send(address: WebhookAddress, body: bytes, *, timeout_s: float = TIMEOUT_S, pause_s: float = _PAUSE_S) -> str:
    """POST ``body`` as JSON, twice at most; what went wrong in the end, or nothing. Raises nothing, follows no redirect.

    ``timeout_s`` is for a whole try, however slowly the server answers.
    """
    failure = _try(address, body, timeout_s)
    for _ in range(TRIES - 1):
        if failure is None or not failure.again:
            break
        time.sleep(pause_s)
        failure = _try(address, body, timeout_s)
    return "" if failure is None else f"the webhook was not told: {failure.text}"


def _try(address: WebhookAddress, body: bytes, timeout_s: float) -> _Failure | None:
    """In a thread: sockets time out between bytes only, and looking a name up not at all."""
    ended: list[_Failure | None] = []
    thread = threading.Thread(target=lambda: ended.append(_post(address, body, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return ended[0] if ended else _Failure(f"no answer within {timeout_s:g} s", again=True)


def _post(address: WebhookAddress, body: bytes, timeout_s: float) -> _Failure | None:
    """One request. Texts of exceptions may hold the address, so that none is used."""
    try:
        request = urllib.request.Request(  # noqa: S310 (the scheme was looked at)
            address.url, data=body, method="POST",
            headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "mbr-perf"},
        )  # fmt: skip
        with _opener().open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        again = error.code >= _SERVER_ERROR or error.code == _TOO_MANY_REQUESTS
        away = ", a redirect, which is not followed" if error.code in _REDIRECTS else ""
        return _Failure(f"the server answered {error.code}{away}", again)
    except urllib.error.URLError as error:
        return _unreached(error.reason)
    except OSError as error:
        return _unreached(error)
    except (http.client.HTTPException, ValueError):
        return _Failure("the answer was no HTTP", again=True)


def _unreached(reason: object) -> _Failure:
    match reason:
        case ssl.SSLCertVerificationError():
            return _Failure("the server's certificate is not trusted", again=False)
        case ssl.SSLError():
            return _Failure("no secure connection came about", again=True)
        case TimeoutError():
            return _Failure("no answer in time", again=True)
        case OSError(errno=int(number)) if number in errno.errorcode:
            return _Failure(os.strerror(number), again=True)
        case _:
            return _Failure("the server was not reached", again=True)


def _opener() -> urllib.request.OpenerDirector:
    """Without redirects, files and FTP: a server that answers with another address must not get the message sent there."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
