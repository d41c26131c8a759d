"""The pages of a fit and of runs in a real browser: no request leaves them, no script runs, all text is readable."""

from functools import cache
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from browser_support import Browser
from fit_example import as_fit, fit_example, many_classes, pretrained_example
from meanteacher.photos.pages.fit_page import fit_page
from meanteacher.report import load_records, render_page

HOSTILE = "<script>document.title='owned';alert(1)</script>"
HOSTILE_FILE = '"><img src=x onerror="document.title=\'owned\'">.jpg'
LONG = "Donaudampfschifffahrtsgesellschaftskapitaen" * 3

# The contrast of every piece of text with what lies behind it, as WCAG 2 defines it.
LOW_CONTRAST = """
const parse = c => { const [r, g, b, a] = c.match(/[\\d.]+/g).map(Number); return [r, g, b, a ?? 1]; };
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
const luminance = c => {
  const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = e => e ? over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [255, 255, 255, 1];
const low = [];
for (const e of document.body.querySelectorAll('*')) {
  const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
  if (!words || !e.checkVisibility() || e.closest('desc, title, .hidden')) continue;
  const style = getComputedStyle(e), back = behind(e);
  const front = over(parse(e.closest('svg') ? style.fill : style.color), back);
  const [dark, bright] = [luminance(front), luminance(back)].sort((a, b) => a - b);
  if ((bright + 0.05) / (dark + 0.05) < 4.5) low.push(words + ' ' + ((bright + 0.05) / (dark + 0.05)).toFixed(2));
}
return low;
"""


def hostile_fit():
    """The worst names a folder can hold, where names are shown."""
    fit = fit_example(title=HOSTILE, folder=f"/home/{HOSTILE}/{LONG}")
    fit["data"]["photos"] = f"/home/{LONG}/{LONG}"
    fit["data"]["class_names"][:2] = [HOSTILE, LONG]
    for row, name in zip(fit["per_class"], (HOSTILE, LONG), strict=False):
        row["name"] = name
    for group in fit["gallery"].values():
        group[0] |= {"name": HOSTILE_FILE, "label": HOSTILE}
        group[1] |= {"name": LONG, "label": LONG, "thumb": "https://example.invalid/pixel.png"}
    fit["findings"][0]["names"] = [HOSTILE_FILE, LONG]
    fit["findings"][1]["sentence"] = HOSTILE
    return fit


FITS = {
    "plain": fit_example,
    "hostile": hostile_fit,
    "many": lambda: fit_example(**many_classes(60)),
    "pretrained": pretrained_example,
}


RECORDS = Path(__file__).parents[2] / "docs" / "records"
PAGES = [*FITS, "runs"]


@cache
def html_of(kind: str) -> str:
    if kind != "runs":
        return fit_page(as_fit(FITS[kind]()))
    return render_page([*load_records(RECORDS / "demo"), *load_records(RECORDS / "fast")], HOSTILE)


@pytest.fixture
def show(browser: Browser, tmp_path: Path):
    def show(kind: str = "plain") -> Path:
        path = tmp_path / "report.html"
        path.write_text(html_of(kind), encoding="utf-8")
        browser.get(path.as_uri())
        return path

    return show


def test_the_page_of_runs_asks_for_nothing_but_itself_and_the_console_is_silent(browser: Browser, show):
    path = show("runs")
    assert browser.run("return document.title") == HOSTILE
    assert browser.run("return document.scripts.length") == 0
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []


def test_the_page_asks_for_nothing_but_itself_and_the_console_is_silent(browser: Browser, show):
    path = show()
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []
    assert browser.run("return document.images.length") == 36
    assert browser.run("return [...document.images].every(image => image.naturalWidth > 0)")


def test_hostile_names_run_nothing_and_ask_for_nothing(browser: Browser, show):
    path = show("hostile")
    assert browser.run("return document.title") == f"{HOSTILE} – meanteacher"
    assert browser.run("return document.scripts.length") == 0
    assert HOSTILE in browser.text("h1")
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []


def test_even_a_script_that_got_in_would_be_refused(browser: Browser, tmp_path: Path):
    html = html_of("plain").replace("<main>", f"{HOSTILE}<img src='https://example.invalid/a.png'><main>")
    (tmp_path / "broken.html").write_text(html, encoding="utf-8")
    browser.get((tmp_path / "broken.html").as_uri())
    assert browser.run("return document.title") == "forest-finds – meanteacher"
    assert len([line for line in browser.complaints() if "Content Security Policy" in line]) >= 2


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("width", [320, 360, 768, 1200])
def test_nothing_is_wider_than_the_screen(browser: Browser, show, kind: str, width: int):
    browser.resize(width)
    show(kind)
    assert browser.run("return innerWidth") == width
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_only_wide_tables_and_code_scroll_sideways_on_a_phone(browser: Browser, show):
    browser.resize(360)
    show()
    wide = browser.run(
        "return [...document.querySelectorAll('body *')].filter(e => e.scrollWidth > e.clientWidth + 1 && "
        "!['visible', 'hidden', 'clip'].includes(getComputedStyle(e).overflowX)).map(e => e.ariaLabel ?? e.tagName)"
    )
    assert set(wide) <= {"Confusion matrix", "PRE"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["hostile", "runs"])
def test_every_word_stands_out_from_its_background(browser: Browser, show, kind: str, scheme: str):
    browser.emulate_media(color_scheme=scheme)
    show(kind)
    assert browser.run(LOW_CONTRAST) == []


def test_the_page_is_dark_for_readers_who_prefer_it(browser: Browser, show):
    def background() -> str:
        return browser.run("return getComputedStyle(document.body).backgroundColor")

    browser.emulate_media(color_scheme="light")
    show()
    light = background()
    browser.emulate_media(color_scheme="dark")
    assert (light, background()) == ("rgb(252, 251, 248)", "rgb(22, 24, 27)")


def test_print_shows_all_classes_and_no_links(browser: Browser, show):
    show("many")
    shown = "const e = document.querySelector('.long'); return [e.scrollHeight > e.clientHeight + 1, "
    shown += "document.querySelector('.contents').checkVisibility()]"
    assert browser.run(shown) == [True, True]
    browser.emulate_media("print")
    assert browser.run(shown) == [False, False]


def test_the_headings_and_links_work_with_the_keyboard(browser: Browser, show):
    show()
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.textContent") == "How good it is"
    browser.press(Keys.TAB, Keys.ENTER)
    browser.wait_for("location.hash === '#classes'")
    assert browser.run("return Math.abs(document.querySelector('#classes').getBoundingClientRect().top) < 60")
