"""A real browser for tests: chromium, driven over the W3C WebDriver protocol with nothing but urllib."""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    # Nothing leaves this machine, whatever a page or the browser itself may want.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
# The code points with which the protocol names keys that are no characters.
KEYS = {
    "Backspace": "\ue003",
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Control": "\ue009",
    "Alt": "\ue00a",
    "Escape": "\ue00c",
    "PageUp": "\ue00e",
    "PageDown": "\ue00f",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Delete": "\ue017",
}
PATIENCE = 120.0
"""Seconds to wait for the browser or a page: whoever waits as long waits for something that hangs."""


class BrowserError(Exception):
    """What the browser refused; an alert that a page opened is refused too."""


def missing_programs() -> list[str]:
    return [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]


class Browser:
    """One headless chromium with one window, for the time of a `with` block.

    with Browser(folder) as browser:
        browser.open(page)
        browser.press("ArrowRight", "1")
        assert browser.run("return document.title") == "Photos"
        assert browser.complaints() == []
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = folder / "downloads"
        self._direct = build_opener(ProxyHandler({}))
        self._driver: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._session = ""
        self._log: dict[str, list[dict[str, Any]]] = {"browser": [], "performance": []}

    def __enter__(self) -> Self:
        if missing := missing_programs():
            raise BrowserError(
                f"{' and '.join(missing)} not found: install them with `apt-get install chromium chromium-driver`, "
                "or set MEANTEACHER_NO_BROWSER=1 to leave the browser tests out."
            )
        self.downloads.mkdir(parents=True, exist_ok=True)
        try:
            self._start_driver()
            self._start_session()
            self.reset()  # the page that chromium opens with asks for a lot
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def open(self, page: Path | str) -> None:
        """Go to a file or an address, and wait until it has loaded."""
        self._post("/url", {"url": page.resolve().as_uri() if isinstance(page, Path) else page})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body in the page: `run("return arguments[0] + 1", 2)` is 3."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            if time.monotonic() > deadline:
                raise BrowserError(f"still not true after {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, *keys: str, holding: str | None = None) -> None:
        """Press keys one after the other: characters, or names such as "ArrowLeft", with "Control" held or not."""
        strokes = [{"type": way, "value": KEYS.get(key, key)} for key in keys for way in ("keyDown", "keyUp")]
        if holding is not None:
            held = KEYS[holding]
            strokes = [{"type": "keyDown", "value": held}, *strokes, {"type": "keyUp", "value": held}]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def type(self, text: str) -> None:
        """Type into whatever has the focus."""
        self.press(*text)

    def click(self, selector: str) -> None:
        """Click with the mouse on the first element that matches, which must be visible."""
        self._post(f"/element/{self._element(selector)}/click", {})

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that matches."""
        return str(self._call("GET", f"/session/{self._session}/element/{self._element(selector)}/text"))

    def resize(self, width: int, height: int = 800) -> None:
        """Show the page as a screen of this size would, smaller than a window can be if need be."""
        self.cdp("Emulation.setScrollbarsHidden", hidden=True)
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """Media features of the reader, such as `color_scheme="dark"` or `reduced_motion="reduce"`."""
        wanted = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=wanted)

    def print_preview(self) -> None:
        """Show the page as it would be printed, until `reset`."""
        self.cdp("Emulation.setEmulatedMedia", media="print")

    def screenshot(self, path: Path, *, whole_page: bool = True) -> Path:
        """Write a PNG of the page, down to its end or only of what the window shows."""
        answer = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def complaints(self) -> list[str]:
        """Every warning and error of the console since the last `reset`."""
        return [entry["message"] for entry in self._logged("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Every address the page asked for since the last `reset`, even if refused; data: needs no request."""
        events = [json.loads(entry["message"])["message"] for entry in self._logged("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for each in asked if not (url := each["request"]["url"]).startswith("data:")]

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol, for what WebDriver cannot say."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def downloaded(self, name: str, seconds: float = PATIENCE) -> Path:
        """The file that the page saved under this name, once it is whole."""
        deadline = time.monotonic() + seconds
        while not (self.downloads / name).exists():
            if time.monotonic() > deadline:
                there = sorted(path.name for path in self.downloads.iterdir())
                raise BrowserError(f"no download {name!r} after {seconds} s, only {there}")
            time.sleep(0.02)
        return self.downloads / name

    def reset(self) -> None:
        """An empty page, no logs, no stored data of pages from files, no emulation: as good as a new browser."""
        with contextlib.suppress(BrowserError):  # an alert that is still open is closed by this call
            self.open("about:blank")
        self.open("about:blank")
        self.cdp("Storage.clearDataForOrigin", origin="file://", storageTypes="all")
        self.cdp("Emulation.setEmulatedMedia", media="", features=[])
        self.cdp("Emulation.clearDeviceMetricsOverride")
        self.cdp("Emulation.setScrollbarsHidden", hidden=False)
        for path in self.downloads.iterdir():
            path.unlink()
        for kind in self._log:
            self._logged(kind)
            self._log[kind].clear()

    def _logged(self, kind: str) -> list[dict[str, Any]]:
        self._log[kind] += self._post("/se/log", {"type": kind})
        return self._log[kind]

    def _element(self, selector: str) -> str:
        found = self._post("/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def _start_driver(self) -> None:
        log = self.folder / "chromedriver.log"
        with log.open("wb") as out:
            self._driver = subprocess.Popen(
                ["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._port = int(_wait_for_match(log, rb"started successfully on port (\d+)", self._driver.poll))

    def _start_session(self) -> None:
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={self.folder / 'profile'}"],
            "prefs": {"download.default_directory": str(self.downloads), "download.prompt_for_download": False},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = answer["sessionId"]

    def _stop(self) -> None:
        if self._session:
            with contextlib.suppress(BrowserError, OSError):
                self._call("DELETE", f"/session/{self._session}")
        if self._driver is not None:
            self._driver.terminate()
            try:
                self._driver.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._driver.kill()
                self._driver.wait()

    def _post(self, path: str, content: Mapping[str, Any]) -> Any:
        return self._call("POST", f"/session/{self._session}{path}", content)

    def _call(self, verb: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"http://127.0.0.1:{self._port}{path}", data=body, headers=headers, method=verb)
        try:
            with self._direct.open(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            with error:
                problem = json.load(error)["value"]
            raise BrowserError(f"{problem['error']}: {problem['message'].splitlines()[0]}") from None


def _wait_for_match(log: Path, pattern: bytes, ended: Callable[[], int | None]) -> str:
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(pattern, log.read_bytes())) is None:
        if ended() is not None or time.monotonic() > deadline:
            raise BrowserError(f"chromedriver did not start: {log.read_text(errors='replace').strip()}")
        time.sleep(0.02)
    return found[1].decode()


def browser_tests_are_off() -> bool:
    return os.environ.get("MEANTEACHER_NO_BROWSER") == "1"
