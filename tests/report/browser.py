"""A headless Chromium, spoken to over its debugging pipe: open a page, move the pointer, press keys, read it.

No package is needed: `--remote-debugging-pipe` takes commands of the DevTools protocol on descriptor 3 and answers on
descriptor 4, each message one JSON text ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
# Puts the ends of the two pipes where the browser looks for them, then becomes the browser.
_HAND_OVER = (
    "import os, sys; take, give = (os.dup2(int(word), 100 + i) for i, word in enumerate(sys.argv[1:3]));"
    "os.dup2(take, 3); os.dup2(give, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
WHY_SKIPPED = "no Chromium here; on Debian: apt-get install chromium"


def chromium() -> str | None:
    """The program, or None where there is none."""
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `requests` holds every address that the page asked for."""

    def __init__(self, send: int, receive: int):
        self.send, self.receive = send, receive
        self.unread, self.number, self.session = b"", 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; events that come before it are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._event(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            part = os.read(self.receive, 1 << 16)
            assert part, "the browser closed its pipe"
            self.unread += part
        text, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(text))

    def _event(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))

    def open(self, path: Path, width: int = 1280, height: int = 2400, dark: bool = False) -> None:
        """Open a file and wait until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=path.as_uri())
        self.value(
            "new Promise(done => { if (document.readyState === 'complete') done(1); else onload = () => done(1); })"
        )

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; of a promise, what it comes to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is: x, y, width, height."""
        found = self.value(
            f"(({{x, y, width, height}}) => ({{x, y, width, height}}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return dict(found)

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Press the pointer's button in the middle of an element."""
        box = self.box(selector)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str, code: int) -> None:
        """Press a key on what has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """Keep what the page looks like, in full."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(program: str) -> Iterator[Page]:
    """A fresh browser for the length of a `with` block."""
    take, send = os.pipe()
    receive, give = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        flags = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _HAND_OVER, str(take), str(give), program, *flags], pass_fds=(take, give),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(take)
        os.close(give)
        try:
            yield Page(send, receive)
        finally:
            os.close(send)
            os.close(receive)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
