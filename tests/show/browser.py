"""Headless Chromium over its debugging pipe, and axe-core: what tests of HTML pages look with."""

import base64
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

AXE = "4.10.3"
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
    "--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
)  # fmt: skip


def chromium() -> str | None:
    """The program; None where none is installed (Debian: ``apt-get install chromium``)."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def axe_core() -> str:
    """The text of axe.min.js (MPL-2.0), fetched with npm once into ``$XDG_CACHE_HOME/mbr-perf/axe``.

    OSError or CalledProcessError where there is no npm or no network.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mbr-perf" / "axe"
    packed = cache / f"axe-core-{AXE}.tgz"
    if not packed.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"axe-core@{AXE}", "--pack-destination", str(cache)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode("utf-8")


class Browser:
    """One tab. Commands are those of the Chrome DevTools Protocol."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, hears = os.pipe(), os.pipe()  # commands to Chromium, answers from it
        os.set_inheritable(commands[0], True)
        os.set_inheritable(hears[1], True)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        script = f'exec "$@" 3<&{commands[0]} 4>&{hears[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands[0], hears[1]), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands[0])
        os.close(hears[1])
        self._out, self._in = os.fdopen(commands[1], "wb", buffering=0), os.fdopen(hears[0], "rb")
        self._number, self._session, self._read = 0, "", b""
        target = self.does("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.does("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.does("Page.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._out.close()
        self._in.close()

    def does(self, method: str, **parameters: Any) -> Any:
        """Send a command, wait for its answer; events are passed over."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._in.fileno(), 1 << 20)
            assert part, "Chromium ended"
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def opens(self, page: Path, width: int, *, dark: bool) -> None:
        """Load the page in a window of that width."""
        self.does(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.does("Emulation.setEmulatedMedia", features=[scheme])
        self.does("Page.setBypassCSP", enabled=True)
        self.does("Page.navigate", url=page.resolve().as_uri())
        while True:
            message = self._next()
            if message.get("method") == "Page.loadEventFired":
                break

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, awaited."""
        found = self.does("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def shoots(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        shot = self.does("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
