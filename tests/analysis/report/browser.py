"""A headless Chromium, driven through the pipe of its DevTools protocol: no port, no driver, no package."""

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

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_SECONDS = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Home": 36, "End": 35, "Enter": 13}


def found() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process."""

    def __init__(self, profile: Path) -> None:
        path = found()
        assert path
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        command = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        self.buffer = b""
        self.number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command; what happens until its answer comes is kept in `events`."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    def read(self, *, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next message; an event is also kept."""
        while b"\0" not in self.buffer:
            assert select.select([self.back], [], [], seconds)[0], "the browser says nothing"
            more = os.read(self.back, 1 << 16)
            assert more, "the browser has ended"
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def page(self) -> Page:
        """A new tab."""
        return Page(self)

    def end(self) -> None:
        """Close it."""
        os.close(self.to)
        os.close(self.back)
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_SECONDS)


class Page:
    """One tab. `requests` are the addresses that it asked for, whether they were answered or not."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session: str = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to this tab."""
        return self.browser.call(method, session=self.session, **params)

    def events(self, method: str) -> list[dict[str, Any]]:
        """What happened of one kind."""
        happened = (each for each in self.browser.events if each.get("sessionId") == self.session)
        return [each["params"] for each in happened if each["method"] == method]

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the policy refused."""
        errors = [each["exceptionDetails"]["text"] for each in self.events("Runtime.exceptionThrown")]
        return errors + [each["entry"]["text"] for each in self.events("Log.entryAdded")]

    def look(
        self, *, width: int = 1200, height: int = 900, scheme: str = "light", motion: str = "no-preference"
    ) -> None:
        """The size of the window, and what the person prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    def open(self, address: str) -> None:
        """Go there, and wait until all of it is loaded."""
        loaded = len(self.events("Page.loadEventFired"))
        self.call("Page.navigate", url=address)
        while len(self.events("Page.loadEventFired")) == loaded:
            self.browser.read()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key, down and up."""
        for kind in ("rawKeyDown", "keyUp"):
            code = KEYS[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def names(self, *roles: str) -> list[str]:
        """What assistive technology calls each element of these roles."""
        self.call("Accessibility.enable")
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        chosen = (each for each in nodes if each.get("role", {}).get("value") in roles and not each["ignored"])
        return [each.get("name", {}).get("value", "") for each in chosen]

    def picture(self, *, height: int | None = None, is_whole: bool = False) -> bytes:
        """A PNG of the window, or of all of the page down to `height`."""
        if not is_whole:
            return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(height or size["height"], size["height"]),
            "scale": 1,
        }
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)
