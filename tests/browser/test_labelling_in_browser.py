"""A person labels in a real browser: keys, mouse and touch, hostile names, and the file after every answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from browser_support import Browser
from label_example import ASKED, CLASSES, KNOWN, Example, make_example, serving
from meanteacher.photos.label.opening import open_session
from meanteacher.photos.label.server import LabelServer
from photo_support import folder_of
from support import PATIENCE

# What a file system lets a name be; no file name can hold the slash of </script>.
HOSTILE = ("<script>alert(1)<script>.jpg", '"><img src=x onerror=alert(1)>.jpg', "'+alert(1)+'&amp;.jpg")
ONE, TWO, THREE = ASKED


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return make_example(tmp_path)


@pytest.fixture
def server(example: Example) -> Iterator[LabelServer]:
    with serving(example.session()) as server:
        yield server


def settle(browser: Browser) -> None:
    """Wait until the page takes an answer: it does not before its picture is there."""
    browser.wait_for("state !== null && !busy")


def open_page(browser: Browser, server: LabelServer) -> None:
    browser.get(server.address)
    settle(browser)


def press(browser: Browser, *keys: str, holding: str = "") -> None:
    for key in keys:
        browser.press(key, holding=holding)
        settle(browser)


def visible(browser: Browser, selector: str) -> bool:
    return bool(browser.run("return document.querySelector(arguments[0]).checkVisibility()", selector))


def assert_nothing_wrong(browser: Browser, server: LabelServer) -> None:
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if url != "about:blank"]
    assert asked
    assert all(url.startswith(server.address) for url in asked)


def test_one_key_an_image_writes_the_file(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    assert browser.text("#progress") == "0 labelled"
    assert browser.text("#guess") == "dog"
    assert browser.text("#sure") == "41.2 % sure"
    assert browser.text("#reason").lower() == "hesitates between dog (41.2 %) and cat (38.0 %)"
    assert [browser.text(f"#classes li:nth-child({k}) kbd") for k in (1, 2, 3)] == ["c", "d", "o"]
    assert browser.run("return document.querySelector('#image').naturalWidth") == 384
    press(browser, "o")
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert browser.text("#progress") == "1 labelled"
    press(browser, Keys.ENTER)
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog"}
    press(browser, "c")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog", THREE: "cat"}
    assert browser.text("#end-title") == "Every photo is labelled."
    assert browser.text("#command") == server.session.command
    assert not visible(browser, "#ask")
    assert not visible(browser, "#again")
    assert_nothing_wrong(browser, server)


@pytest.mark.parametrize(
    "keys", [(Keys.BACKSPACE, ""), (Keys.ARROW_LEFT, ""), ("z", Keys.CONTROL)], ids=["Backspace", "left", "Ctrl-Z"]
)
def test_undo_takes_the_last_answer_back(
    browser: Browser, server: LabelServer, example: Example, keys: tuple[str, str]
):
    key, holding = keys
    open_page(browser, server)
    press(browser, "c", "d")
    assert browser.text("#undo span") == "Undo “dog”"
    press(browser, key, holding=holding)
    assert example.labels() == {**KNOWN, ONE: "cat"}
    assert browser.text("#name") == TWO
    press(browser, "o")
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "owl"}


@pytest.mark.parametrize(
    ("classes", "pressed"),
    [("0123456789", "709"), ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "lUv"), ("aAu+-", "Aa+")],
    ids=["digits", "letters", "controls"],
)
def test_a_key_that_is_the_name_of_a_class_means_that_class(
    browser: Browser, example: Example, classes: str, pressed: str
):
    example.tell_of_the_fit(class_names=list(classes))
    expected = [name if name in classes else name.upper() for name in pressed]
    with serving(example.session()) as server:
        open_page(browser, server)
        shown = browser.run("return [...document.querySelectorAll('#classes li')].map(e => e.textContent)")
        assert shown[: len(classes)] == [f"{name}{name}0" for name in classes]
        press(browser, *pressed)
        assert example.labels() == {**KNOWN, **dict(zip(ASKED, expected, strict=True))}
        assert browser.text("#undo span") == f"Undo “{expected[-1]}”"
        press(browser, Keys.BACKSPACE)
        assert example.labels() == {**KNOWN, ONE: expected[0], TWO: expected[1]}
        assert browser.text("#name") == THREE
        assert_nothing_wrong(browser, server)


def test_a_letter_that_two_classes_begin_with_saves_nothing(browser: Browser, example: Example):
    example.tell_of_the_fit(class_names=["cat", "cow", "dog"])
    with serving(example.session()) as server:
        open_page(browser, server)
        press(browser, "c")
        assert browser.text("#alert") == (
            "“c” is not the key of a class: nothing was saved. Press 1 for cat, 2 for cow."
        )
        press(browser, "u")
        assert browser.text("#alert") == "“u” is not the key of a class: nothing was saved."
        press(browser, "0")
        assert browser.text("#name") == ONE
        assert not example.file.exists()
        press(browser, "D")
        assert not visible(browser, "#alert")
        press(browser, "2")
        assert example.labels() == {**KNOWN, ONE: "dog", TWO: "cow"}


def test_undo_works_from_the_end_too(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    press(browser, "c", "c", "c", Keys.BACKSPACE)
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "cat"}
    assert browser.text("#name") == THREE
    assert visible(browser, "#image")


def test_skipped_images_have_no_label_and_come_back_when_asked_for(
    browser: Browser, server: LabelServer, example: Example
):
    open_page(browser, server)
    press(browser, " ", "d", Keys.ARROW_RIGHT)
    assert example.labels() == {**KNOWN, TWO: "dog"}
    assert browser.text("#end-title") == "Every photo is labelled, except 2 skipped ones."
    browser.click("#again")
    settle(browser)
    assert browser.text("#name") == ONE
    press(browser, "c", "c")
    assert browser.text("#end-title") == "Every photo is labelled."
    assert_nothing_wrong(browser, server)


def test_when_all_is_skipped_there_is_nothing_to_train_with(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    press(browser, " ", " ", " ")
    assert browser.text("#end-title") == "Every photo is labelled, except 3 skipped ones."
    assert not visible(browser, "#command")
    assert not example.file.exists()


def test_loading_the_page_again_goes_on_with_the_same_image(browser: Browser, server: LabelServer):
    open_page(browser, server)
    press(browser, "c")
    assert browser.text("#name") == TWO
    browser.get("about:blank")
    # The page says that it is closed. Its question is then free for another window, and its answer can be undone there.
    WebDriverWait(browser, PATIENCE).until(lambda _: not server.session._shown)
    open_page(browser, server)
    assert browser.text("#name") == TWO
    press(browser, Keys.BACKSPACE)
    assert browser.text("#name") == ONE


def test_two_windows_do_not_show_the_same_image(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        open_page(browser, server)
        assert browser.text("#name") == TWO
        press(browser, "o")
        assert browser.text("#name") == THREE
    finally:
        browser.close()
        browser.switch_to.window(first)
    assert browser.text("#name") == ONE
    press(browser, "c", "d")
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "owl", THREE: "dog"}


def test_none_of_these_is_an_answer(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    press(browser, "-")
    assert browser.text("#undo span") == "Undo “none of these”"
    browser.click("#none")
    settle(browser)
    assert example.labels() == {**KNOWN, ONE: "none of these", TWO: "none of these"}
    assert browser.run("return document.querySelectorAll('#classes li').length") == len(CLASSES)


def test_a_review_keeps_or_changes_a_label_with_one_key(browser: Browser, example: Example):
    example.answer([("cat/a.jpg", "cat", "owl", "0.9"), ("dog/a.jpg", "dog", "cat", "0.8")])
    with serving(open_session(example.photos, example.run, review=True)) as server:
        open_page(browser, server)
        assert browser.text("#progress") == "0 of 2 reviewed"
        assert browser.text("#given") == "Labelled cat. To a model without this label it looks like"
        assert (browser.text("#guess"), browser.text("#sure")) == ("owl", "90.0 % sure")
        assert (browser.text("#keep span"), browser.text("#accept span")) == ("Keep cat", "Change to owl")
        assert not visible(browser, "#skip")
        press(browser, " ")
        assert example.labels() == KNOWN
        press(browser, Keys.ENTER)
        assert example.labels() == {**KNOWN, "dog/a.jpg": "cat"}
        assert browser.text("#end-title") == "Every photo is reviewed."
        press(browser, Keys.BACKSPACE)
        assert example.labels() == KNOWN
        press(browser, "o")
        assert example.labels() == {**KNOWN, "dog/a.jpg": "owl"}
        assert_nothing_wrong(browser, server)


def test_labelling_starts_without_any_class(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    photos = folder_of(tmp_path / "photos", *(f"{k}.png" for k in range(9)))
    with serving(open_session(photos)) as server:
        open_page(browser, server)
        assert browser.text("#new-label") == "Name the class of this photo"
        assert not visible(browser, "#guess-box")
        browser.press("rose", Keys.ENTER)
        settle(browser)
        assert browser.text("#new-label") == "Another class"
        press(browser, "r", Keys.ENTER)
        assert browser.text("#alert") == "There is no guess to accept: choose a class."
        assert browser.text("#progress") == "2 labelled"
        assert browser.text("#classes .n") == "2"
        assert_nothing_wrong(browser, server)


def test_labelling_can_be_finished_at_any_time_and_goes_on(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    press(browser, "c")
    browser.click("#finish")
    assert browser.text("#end-title") == "1 photo labelled."
    assert browser.text("#command") == server.session.command
    press(browser, "d")
    assert example.labels() == {**KNOWN, ONE: "cat"}
    browser.click("#go-on")
    settle(browser)
    press(browser, "d")
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "dog"}


def test_the_mouse_does_all_that_the_keys_do(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    for selector in ("#classes li:nth-child(3) button", "#accept", "#undo", "#skip", "#accept"):
        browser.click(selector)
        settle(browser)
    assert example.labels() == {**KNOWN, ONE: "owl", THREE: "dog"}
    # A click leaves no button behind that Enter would press once more.
    press(browser, Keys.BACKSPACE)
    press(browser, Keys.ENTER)
    assert example.labels() == {**KNOWN, ONE: "owl", THREE: "dog"}


def test_a_button_that_has_the_focus_is_what_enter_presses(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    browser.run("document.querySelector('#classes li:nth-child(1) button').focus()")
    press(browser, Keys.ENTER)
    assert example.labels() == {**KNOWN, ONE: "cat"}


def test_a_class_can_be_added(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    browser.press("+")
    # Keys that mean something elsewhere are letters here.
    browser.press("1 u<b>")
    browser.press(Keys.BACKSPACE, Keys.ENTER)
    settle(browser)
    assert example.labels() == {**KNOWN, ONE: "1 u<b"}
    assert browser.text("#classes li:last-child span") == "1 u<b"
    press(browser, "1")
    assert example.labels()[TWO] == "1 u<b"


def test_many_classes_are_found_by_typing(browser: Browser, example: Example):
    example.tell_of_the_fit(class_names=["great owl", *CLASSES, *(f"kind {k}" for k in range(40)), "dugong"])
    with serving(example.session()) as server:
        open_page(browser, server)
        browser.press("owl")
        # One that begins with it comes before one that holds it.
        assert browser.run("return [...document.querySelectorAll('#classes li')].map(e => e.textContent)") == [
            "owl0",
            "great owl0",
        ]
        press(browser, Keys.ENTER)
        assert example.labels() == {**KNOWN, ONE: "owl"}
        press(browser, Keys.ENTER)
        assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog"}
        press(browser, Keys.BACKSPACE, " ")
        assert browser.text("#name") == THREE
        browser.press("du")
        press(browser, Keys.ENTER)
        assert example.labels() == {**KNOWN, ONE: "owl", THREE: "dugong"}
        assert_nothing_wrong(browser, server)


def test_a_name_that_is_typed_in_full_is_the_one_that_is_taken(browser: Browser, example: Example):
    classes = [f"kind {k}" for k in range(30)]
    example.tell_of_the_fit(class_names=["70", "7", "a4", "b", "B", *classes, "4"])
    with serving(example.session()) as server:
        open_page(browser, server)
        for typed in "7B4":
            browser.press(typed)
            press(browser, Keys.ENTER)
        assert example.labels() == {**KNOWN, ONE: "7", TWO: "B", THREE: "4"}


def test_a_key_that_is_held_down_answers_once(browser: Browser, server: LabelServer, example: Example):
    open_page(browser, server)
    down = "dispatchEvent(new KeyboardEvent('keydown', {key: 'c', repeat: arguments[0], bubbles: true}))"
    browser.run(f"document.body.{down}", False)
    settle(browser)
    browser.run(f"document.body.{down}", True)
    settle(browser)
    assert example.labels() == {**KNOWN, ONE: "cat"}


def test_names_are_text_and_harm_nothing(browser: Browser, tmp_path: Path):
    example = make_example(tmp_path, HOSTILE)
    classes = ["</script><script>alert(2)</script>", "<img src=x onerror=alert(3)>", *CLASSES]
    example.tell_of_the_fit(class_names=classes)
    with serving(example.session()) as server:
        open_page(browser, server)
        for key, name in zip("12c", HOSTILE, strict=True):
            assert browser.text("#name") == name
            assert browser.text("#classes li:nth-child(2) span") == classes[1]
            press(browser, key)
        labelled = dict(zip(HOSTILE, classes, strict=False))
        assert example.labels() == {**KNOWN, **labelled}
        assert browser.run("return document.images.length") == 1
        assert browser.run("return document.scripts.length") == 1
        assert_nothing_wrong(browser, server)


def test_an_image_that_cannot_be_read_can_only_be_skipped(browser: Browser, example: Example):
    (example.photos / ONE).write_bytes(b"no image")
    with serving(example.session()) as server:
        open_page(browser, server)
        assert browser.text("#problem") == "This image cannot be read: not an image. Skip it."
        press(browser, "c", Keys.ENTER)
        assert browser.text("#name") == ONE
        assert not example.file.exists()
        press(browser, " ")
        assert browser.text("#name") == TWO
        assert visible(browser, "#image")
        assert_nothing_wrong(browser, server)


def test_what_is_shown_is_told_to_a_reader_of_the_screen(browser: Browser, server: LabelServer):
    open_page(browser, server)
    press(browser, "c")
    assert browser.run("return document.querySelector('[aria-live=polite]').textContent") == (
        f"Photo {TWO}.  The model’s guess: dog, 41.2 % sure. hesitates between dog (41.2 %) and cat (38.0 %)"
    )


def test_the_focus_can_be_seen(browser: Browser, server: LabelServer):
    open_page(browser, server)
    browser.press(Keys.TAB)
    focused = "getComputedStyle(document.activeElement)"
    assert browser.run("return document.activeElement.id") == "accept"
    assert browser.run(f"return {focused}.outlineStyle + {focused}.outlineWidth") == "solid3px"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (360, 640)], ids=["desktop", "phone"])
def test_all_that_is_needed_fits_on_the_screen(
    browser: Browser, server: LabelServer, size: tuple[int, int], scheme: str
):
    browser.resize(*size)
    browser.emulate_media(color_scheme=scheme)
    open_page(browser, server)
    width, height = size
    assert browser.run("return document.documentElement.scrollWidth") == width
    for selector in ("#image", "#guess", "#accept", "#undo", "#skip", "#classes li:first-child button"):
        box = browser.run("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        assert box["top"] >= 0
        assert box["bottom"] <= height, selector
        assert 0 <= box["left"] < box["right"] <= width, selector
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(252, 251, 248)") == (scheme == "light")


def test_a_program_that_has_ended_is_noticed_and_the_image_stays(browser: Browser, example: Example):
    with serving(example.session()) as server:
        open_page(browser, server)
    browser.press("c")
    browser.wait_for("!document.querySelector('#alert').hidden")
    assert "does not respond" in browser.text("#alert")
    assert browser.text("#name") == ONE
    assert not example.file.exists()


def test_an_answer_that_cannot_be_written_is_said_and_can_be_given_again(
    browser: Browser, server: LabelServer, example: Example
):
    open_page(browser, server)
    example.file.mkdir()
    press(browser, "c")
    assert "labels.csv" in browser.text("#alert")
    assert browser.text("#name") == ONE
    example.file.rmdir()
    press(browser, "c")
    assert not visible(browser, "#alert")
    assert example.labels() == {**KNOWN, ONE: "cat"}
