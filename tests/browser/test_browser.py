"""The browser of the tests sees what it must: a test that cannot fail would be worse than none."""

from pathlib import Path

import pytest
from selenium.common.exceptions import UnexpectedAlertPresentException

from browser_support import Browser


@pytest.fixture
def page(tmp_path: Path):
    def page(body: str) -> str:
        path = tmp_path / "page.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{body}", encoding="utf-8")
        return path.as_uri()

    return page


# The second address needs no name server: only the browser's own rules refuse it in this way.
@pytest.mark.parametrize("elsewhere", ["http://example.invalid/a.png", "http://192.0.2.1/a.png"])
def test_a_request_that_would_leave_the_machine_is_seen_and_refused(browser: Browser, page, elsewhere: str):
    url = page(f"<img src='{elsewhere}'>")
    browser.get(url)
    assert browser.requests() == [url, elsewhere]
    assert ["ERR_NAME_NOT_RESOLVED" in line for line in browser.complaints()] == [True]


def test_a_console_error_is_seen(browser: Browser, page):
    browser.get(page("<script>console.error('broken')</script>"))
    assert ["broken" in line for line in browser.complaints()] == [True]


def test_an_alert_is_an_error(browser: Browser, page):
    browser.get(page("<script>setTimeout(() => alert('hello'))</script>"))
    with pytest.raises(UnexpectedAlertPresentException, match="hello"):
        browser.wait_for("false")


def test_a_download_lands_in_the_folder(browser: Browser, page):
    browser.get(page("<a download='labels.csv' href='data:text/csv,path%2Clabel'>save</a>"))
    browser.click("a")
    assert browser.downloaded("labels.csv").read_text() == "path,label"


def test_a_reset_forgets_the_test_before(browser: Browser, page):
    url = page("<script>console.error(1)</script><a download='labels.csv' href='data:text/csv,path'>save</a>")
    browser.get(url)
    browser.click("a")
    saved = browser.downloaded("labels.csv")
    browser.resize(360)
    browser.emulate_media(color_scheme="dark")
    browser.run("localStorage.setItem('kept', 'yes')")
    dark = "return matchMedia('(prefers-color-scheme: dark)').matches"
    assert (browser.run("return innerWidth"), browser.run(dark)) == (360, True)
    browser.reset()
    assert not saved.exists()
    assert browser.complaints() == []
    assert browser.requests() == []
    browser.get(url)
    assert browser.run("return localStorage.getItem('kept')") is None
    assert (browser.run("return innerWidth") > 360, browser.run(dark)) == (True, False)


def test_a_missing_browser_is_an_error_that_says_how_to_install_it(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="apt-get install chromium chromium-driver"):
        Browser(tmp_path)
