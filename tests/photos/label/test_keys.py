"""The key that a name suggests means that class and no other; what is left is shared out, and nothing is lost by it."""

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from label_example import ASKED, KNOWN, make_example
from meanteacher.photos.label.page import class_keys

NAMES = st.lists(
    st.one_of(
        st.sampled_from([*string.ascii_letters, *string.digits, "+", "é", "É", "猫"]),
        st.sampled_from(["cat", "Cow", "dog", "level 1", "level 2", "02", "12", "1st", "émeu", "_", "猫の手"]),
        st.text(alphabet="aAb19 ", min_size=1, max_size=4).map(str.strip).filter(bool),
    ),
    min_size=1,
    max_size=50,
    unique=True,
)


def meaning(keys: dict[str, tuple[str, ...]], pressed: str) -> str | None:
    """The class that a pressed key saves, as the page looks it up."""
    return next((name for name, mine in keys.items() if pressed in mine), None)


def test_digits_mean_the_classes_that_are_called_so():
    keys = class_keys(list(string.digits))
    assert {digit: meaning(keys, digit) for digit in string.digits} == {digit: digit for digit in string.digits}


@pytest.mark.parametrize("names", [string.ascii_uppercase, string.ascii_lowercase], ids=["upper", "lower"])
def test_letters_mean_the_classes_that_are_called_so_in_either_case(names: str):
    keys = class_keys(list(names))
    for name in names:
        assert meaning(keys, name.lower()) == meaning(keys, name.upper()) == name
        assert keys[name][0] == name


def test_a_first_letter_that_only_one_class_has_means_it():
    keys = class_keys(["cat", "Dog", "owl"])
    assert keys == {"cat": ("c", "C"), "Dog": ("d", "D"), "owl": ("o", "O")}


def test_a_first_letter_that_two_classes_share_means_neither():
    keys = class_keys(["cat", "dog", "Cow"])
    assert keys == {"cat": ("1",), "dog": ("d", "D"), "Cow": ("2",)}


def test_a_name_goes_before_a_first_letter():
    keys = class_keys(["lion", "L", "1st", "1"])
    assert (meaning(keys, "l"), meaning(keys, "1")) == ("L", "1")
    assert keys["lion"] == ("2",)
    assert keys["1st"] == ("3",)


@pytest.mark.parametrize("form", ["level {}", "class_{}", "{:02}", "grade-{:03}"])
def test_a_number_at_the_end_of_a_name_is_its_key(form: str):
    keys = class_keys([form.format(k) for k in range(12)])
    for k in range(10):
        assert meaning(keys, str(k)) == form.format(k)
    assert [keys[form.format(k)][0] in string.ascii_lowercase for k in (10, 11)] == [True, True]


def test_a_digit_that_a_name_suggests_is_given_to_no_other_class():
    keys = class_keys(["ant", "ape", "7", "bee 1", "2nd", "20s"])
    assert meaning(keys, "7") == "7"
    assert keys["bee 1"] == ("b", "B", "1")
    assert [keys["ant"], keys["ape"], keys["2nd"], keys["20s"]] == [("3",), ("4",), ("5",), ("6",)]


def test_case_tells_two_names_apart_that_differ_by_nothing_else():
    assert class_keys(["a", "A", "apple"]) == {"a": ("a",), "A": ("A",), "apple": ("1",)}


def test_a_character_that_is_composed_of_several_presses_is_no_key():
    assert class_keys(["猫", "犬小屋", "é"]) == {"猫": ("1",), "犬小屋": ("2",), "é": ("é", "É")}


def test_a_class_that_is_called_like_a_control_of_the_page_has_that_key():
    keys = class_keys(["+", "u", "owl"])
    assert (meaning(keys, "+"), meaning(keys, "u")) == ("+", "u")


def test_where_the_keys_do_not_suffice_no_class_has_one():
    assert all(class_keys([f"kind {k}" for k in range(35)]).values())
    assert not any(class_keys([f"kind {k}" for k in range(36)]).values())
    pairs = [f"{letter}{k}" for letter in string.ascii_lowercase for k in ("yes", "no")]
    assert not any(class_keys(pairs).values())


@settings(deadline=None)
@given(NAMES)
def test_whatever_the_names_a_key_means_one_class_and_never_looks_like_another(names: list[str]):
    keys = class_keys(names)
    assert list(keys) == names
    pressed = [key for mine in keys.values() for key in mine]
    assert len(pressed) == len(set(pressed))
    assert all(len(key) == 1 for key in pressed)
    if not any(keys.values()):
        assert len(names) > 10
        return
    assert all(keys.values())
    for name in names:
        alike = [other for other in names if other[0].lower() == name[0].lower()]
        for key in (name[0].lower(), name[0].upper()):
            if len(key) == 1 and meaning(keys, key) is not None:
                # Its own, or that of a class with this letter in front; never that of a stranger.
                assert meaning(keys, key) in alike
            if len(alike) == 1 and name[0].isalnum() and name[0].isascii():
                assert meaning(keys, key) == name
        if len(name) == 1 and name != "猫":
            assert meaning(keys, name) == name


@settings(deadline=None)
@given(NAMES)
def test_a_class_that_is_added_takes_no_key_of_another_unless_its_name_says_so(names: list[str]):
    keys: dict[str, tuple[str, ...]] = {}
    for k, added in enumerate(names):
        before, keys = keys, class_keys(names[: k + 1], before=keys)
        for name, mine in before.items():
            for key in mine:
                assert meaning(keys, key) in (name, added, None)
                if meaning(keys, key) == added:
                    assert key.lower() in (added[0].lower(), added[-1])


def test_a_class_that_is_added_in_a_sitting_moves_no_other_key(tmp_path: Path):
    example = make_example(tmp_path)
    example.tell_of_the_fit(class_names=["cat", "kite", "king"])
    window = example.window()

    def keys() -> dict[str, list[str]]:
        return {each["name"]: list(each["keys"]) for each in window.state["classes"]}

    # dog is the label of a folder.
    assert keys() == {"cat": ["c", "C"], "kite": ["1"], "king": ["2"], "dog": ["d", "D"]}
    window.answer("cow")
    # c could be either; cat does not get the 1 that has meant kite so far.
    assert keys() == {"cat": ["3"], "kite": ["1"], "king": ["2"], "dog": ["d", "D"], "cow": ["4"]}
    window.answer("1")
    assert keys() == {"cat": ["3"], "kite": ["5"], "king": ["2"], "dog": ["d", "D"], "cow": ["4"], "1": ["1"]}
    assert example.labels() == {**KNOWN, ASKED[0]: "cow", ASKED[1]: "1"}
