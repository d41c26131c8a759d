"""A real browser for tests: chromium without a window, driven by selenium."""

import contextlib
import json
import shutil
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import UnexpectedAlertPresentException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

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


class Browser(webdriver.Chrome):
    """Selenium's driver of one chromium with a new profile in `folder`, and what the tests of pages have in common.

    with Browser(folder) as browser:
        browser.get(page.as_uri())
        browser.press(Keys.ARROW_RIGHT, "1")
        assert browser.run("return document.title") == "Photos"
        assert browser.complaints() == []
    """

    run = webdriver.Chrome.execute_script

    def __init__(self, folder: Path) -> None:
        chromium, chromedriver = (shutil.which(program) for program in ("chromium", "chromedriver"))
        if chromium is None or chromedriver is None:  # without a path selenium would download a driver
            raise FileNotFoundError(
                "The browser tests need chromium and chromedriver: install them with `apt-get install chromium "
                "chromium-driver`, or set MEANTEACHER_NO_BROWSER=1 to leave the browser tests out."
            )
        self.downloads = folder / "downloads"
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(self.downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # In a session of its own, the driver outlives Ctrl-C until it has closed the browser.
        log, own_session = str(folder / "chromedriver.log"), {"start_new_session": True}
        super().__init__(options, webdriver.ChromeService(chromedriver, log_output=log, popen_kw=own_session))

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self._wait().until(lambda _: self.run(f"return Boolean({condition})"), f"still not true: {condition}")

    def downloaded(self, name: str) -> Path:
        """The file that the page saved under this name, once it is complete."""
        path = self.downloads / name
        self._wait().until(lambda _: path.exists() and path.stat().st_size, f"no download {name!r}")
        return path

    def press(self, *keys: str, holding: str = "") -> None:
        """Press keys one after the other, in whatever has the focus, with `holding` held down."""
        chain = webdriver.ActionChains(self)
        if holding:
            chain.key_down(holding)
        chain.send_keys(*keys)
        if holding:
            chain.key_up(holding)
        chain.perform()

    def click(self, selector: str) -> None:
        """Click with the mouse on the first element that matches, which must be visible."""
        self.find_element(By.CSS_SELECTOR, selector).click()

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that matches."""
        return self.find_element(By.CSS_SELECTOR, selector).text

    def resize(self, width: int, height: int = 800) -> None:
        """Show the page as a screen of this size would, which may be smaller than a window can be."""
        self.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def emulate_media(self, media: str = "", *, color_scheme: str = "") -> None:
        """Show the page on "screen" or in "print", to a reader who prefers a "light" or "dark" color scheme."""
        features = [{"name": "prefers-color-scheme", "value": color_scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def complaints(self) -> list[str]:
        """Every warning and error of the console since the last call or `reset`."""
        return [entry["message"] for entry in self.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Every address the page asked for since the last call or `reset`, even if refused; data: needs no request."""
        events = [json.loads(entry["message"])["message"] for entry in self.get_log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for each in asked if not (url := each["request"]["url"]).startswith("data:")]

    def reset(self) -> None:
        """An empty page, no logs, no stored data of pages from files, no emulation: as good as a new browser."""
        with contextlib.suppress(UnexpectedAlertPresentException):  # an alert that is still open is closed by this call
            self.get("about:blank")
        self.get("about:blank")
        self.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "file://", "storageTypes": "all"})
        self.emulate_media()
        self.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
        shutil.rmtree(self.downloads, ignore_errors=True)
        self.complaints()
        self.requests()

    def _wait(self) -> WebDriverWait:
        """Two minutes: a page that takes longer hangs."""
        return WebDriverWait(self, timeout=120, poll_frequency=0.02)
