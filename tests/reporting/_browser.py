"""A headless Chromium, driven over its debugging pipe: no driver, no socket, no package beside the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. Errors in the console and requests are kept from the first moment on."""

    def __init__(self, program: str, profile: Path) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4; move ours out of the way first.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read_there, write_there)]
        for fd in theirs:
            os.set_inheritable(fd, True)
        words = " ".join((program, *FLAGS, f"--user-data-dir={profile}", "about:blank"))
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {words} 3<&{theirs[0]} 4>&{theirs[1]}"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (*theirs, read_there, write_there):
            os.close(fd)
        self.read, self.write, self.buffer, self.number = read_here, write_here, b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come in between are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60
        while True:
            found = self._next(until)
            if found is None:
                raise TimeoutError(f"the browser did not answer {method}")
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]

    def _next(self, until: float) -> dict[str, Any] | None:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(self.read, 1 << 16)
            if not part:
                raise RuntimeError("the browser ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        found = json.loads(text)
        self._keep(found)
        return found

    def _keep(self, found: dict[str, Any]) -> None:
        method, parameters = found.get("method"), found.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def settle(self, seconds: float = 0.2) -> None:
        """Let events come in for a moment."""
        until = time.monotonic() + seconds
        while self._next(until) is not None:
            pass

    def open(self, page: Path) -> None:
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page.as_uri())
        until = time.monotonic() + 60
        while self.js("document.readyState") != "complete":
            assert time.monotonic() < until, "the page did not load"
        self.settle()

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def media(self, *, scheme: str = "light", media: str = "screen") -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def move(self, selector: str, across: float = 0.5, along: float = 0.5) -> None:
        """Put the mouse over the first element that matches, scrolled into view."""
        place = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = place[0] + across * place[2], place[1] + along * place[3]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        found = self.call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError, TimeoutError):
            self.process.kill()
        self.process.wait(timeout=20)
        os.close(self.read)
        os.close(self.write)
