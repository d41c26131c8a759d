"""The browser of the tests sees what it must: a test that cannot fail would be worse than none."""

from pathlib import Path

import pytest

from browser_support import Browser, BrowserError


@pytest.fixture
def page(tmp_path: Path):
    def page(body: str) -> Path:
        path = tmp_path / "page.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{body}", encoding="utf-8")
        return path

    return page


def test_a_request_and_a_failed_one_are_both_seen(browser: Browser, page):
    path = page("<img src='http://example.invalid/a.png'>")
    browser.open(path)
    assert browser.requests() == [path.as_uri(), "http://example.invalid/a.png"]
    assert "ERR_NAME_NOT_RESOLVED" in browser.complaints()[0]


def test_a_console_error_is_seen(browser: Browser, page):
    browser.open(page("<script>console.error('broken')</script>"))
    assert ["broken" in line for line in browser.complaints()] == [True]


def test_an_alert_is_an_error(browser: Browser, page):
    browser.open(page("<script>setTimeout(() => alert('hello'))</script>"))
    with pytest.raises(BrowserError, match="hello"):
        browser.wait_for("false", seconds=2)


def test_keys_and_clicks_arrive(browser: Browser, page):
    browser.open(
        page(
            "<input id=box><button onclick='this.textContent=`pressed`'>b</button>"
            "<script>heard=[]; addEventListener('keydown', e => heard.push(e.key + (e.ctrlKey ? '+' : '')))</script>"
        )
    )
    browser.click("#box")
    browser.type("hé")
    browser.press("Backspace", "ArrowLeft")
    browser.press("b", holding="Control")
    assert browser.run("return document.querySelector('#box').value") == "h"
    assert browser.run("return heard.join(' ')") == "h é Backspace ArrowLeft Control+ b+"
    browser.click("button")
    assert browser.text("button") == "pressed"


def test_a_download_lands_in_the_folder(browser: Browser, page):
    browser.open(page("<a download='labels.csv' href='data:text/csv,path%2Clabel'>save</a>"))
    browser.click("a")
    assert browser.downloaded("labels.csv").read_text() == "path,label"


def test_a_reset_forgets_the_test_before(browser: Browser, page):
    path = page("<script>console.error(1)</script>")
    browser.open(path)
    browser.resize(360)
    browser.prefer(color_scheme="dark")
    browser.run("localStorage.setItem('kept', 'yes')")
    dark = "return matchMedia('(prefers-color-scheme: dark)').matches"
    assert (browser.run("return innerWidth"), browser.run(dark)) == (360, True)
    browser.reset()
    assert browser.complaints() == []
    assert browser.requests() == []
    browser.open(path)
    assert browser.run("return localStorage.getItem('kept')") is None
    assert (browser.run("return innerWidth") > 360, browser.run(dark)) == (True, False)


def test_a_missing_browser_is_an_error_that_says_how_to_install_it(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrowserError, match="apt-get install chromium chromium-driver"):
        Browser(tmp_path).__enter__()
