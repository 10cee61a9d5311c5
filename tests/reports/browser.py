"""A headless Chromium, driven over the two pipes of its DevTools protocol: no driver, no package, no port."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--mute-audio", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser's path: $CHROME, or the first known name on the PATH."""
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in one browser."""

    def __init__(self, profile: Path, patience: float = 60.0):
        self.patience, self.events, self._number, self._buffer = patience, [], 0, b""
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)

        def wire() -> None:  # the browser reads from 3 and writes to 4
            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (to_browser, from_browser)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        targets = self._wait_for_page()
        attached = self._call("Target.attachToTarget", {"targetId": targets, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _wait_for_page(self) -> str:
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            for target in self._call("Target.getTargets", {})["targetInfos"]:
                if target["type"] == "page":
                    return target["targetId"]
            time.sleep(0.1)
        raise TimeoutError("the browser opens no page")

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self._call("Browser.close", {})
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters):
        """A command to the page."""
        return self._call(method, parameters, self._session)

    def _call(self, method: str, parameters: dict, session: str | None = None):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]
        while True:
            reply = self._receive()
            if reply.get("id") != self._number:
                self.events.append(reply)
            elif "error" in reply:
                raise RuntimeError(f"{method}: {reply['error']}")
            else:
                return reply["result"]

    def _receive(self) -> dict:
        end = time.monotonic() + self.patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise OSError("the browser is gone")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    # What a test wants.

    def open(self, page: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str):
        """The value of an expression, or of the promise that it gives."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        end = time.monotonic() + self.patience
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.05)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call("Input.dispatchKeyEvent", **down, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes.get(key, 0))

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    @property
    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, violations of the policy."""
        self.run("0")  # whatever was said before has arrived when this is answered
        found = []
        for event in self.events:
            what = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(what["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
                found.append(str(what["args"]))
            elif event.get("method") == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append(what["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Whatever the page asked for beside itself."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in sent]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]
