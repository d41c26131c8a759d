import pytest

from meanteacher.photos.folder.flip import flip_evidence

ANIMALS = ["cat", "dog", "horse", "fish"]


def oriented(names: list[str]) -> tuple[str, ...]:
    return flip_evidence(names).oriented


UNSAFE = """
    zero, 0, digit-3, digit3, A, b, left, text, number plate, Licence plate, turnLeft, LEFT_hand, aircraft left,
    stop sign, arrows, nach rechts, class 7, class7, upper_a, omega, twenty-one, ж, あ, ७, ٣, ½, <, →, １２, -2, 3.5,
    handwritten
"""
SAFE = """
    cat, automobile, aircraft, bright, clefts, birthright, leftover, context, designer, signal, sparrow, boneless, A320,
    x-ray, type b, model 3, wordless, two people, Löwe, lettering, class, ...
"""


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


@pytest.mark.parametrize("name", split(UNSAFE))
def test_what_a_mirror_changes_is_not_flipped(name: str):
    assert not flip_evidence([name, "other"]).is_safe
    assert oriented([name, "other"]) == (name,)


@pytest.mark.parametrize("name", split(SAFE))
def test_a_name_that_only_looks_so_does_not_forbid_it(name: str):
    assert flip_evidence([name, "other"]).is_safe


def test_sides_that_are_only_letters_are_noticed_in_pairs():
    assert oriented(["hand_L", "hand_R", "foot"]) == ("hand_L", "hand_R")
    assert flip_evidence(["hand_L", "foot_R"]).is_safe


def test_all_that_speaks_against_it_is_named():
    assert oriented(["1", "cat", "left", "2"]) == ("1", "left", "2")


@pytest.mark.parametrize("name", ["left", "digit 4", "stop_sign"])
def test_one_class_of_many_does_not_decide_for_the_others(name: str):
    many = [f"{animal} {habitat}" for animal in ANIMALS for habitat in ("indoors", "outdoors", "asleep")]
    assert flip_evidence([*many, name]).is_safe
    assert oriented([*many, name]) == (name,)


@pytest.mark.parametrize(("n_others", "safe"), [(0, False), (2, False), (3, False), (4, True), (100, True)])
def test_a_quarter_of_the_classes_about_writing_is_enough(n_others: int, safe: bool):
    assert flip_evidence(["stop sign", *(f"animal {'abc'[i % 3]} {i}" for i in range(n_others))]).is_safe is safe


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hand_L", "hand_R"),
        ("left shoe", "right shoe"),
        ("turnLeft", "turnRight"),
        ("clockwise", "counterclockwise"),
        ("clockwise", "anticlockwise"),
        ("nach links", "nach rechts"),
        ("b", "d"),
        ("p", "q"),
        ("lower_b", "lower_d"),
        ("<", ">"),
        ("(", ")"),
        ("←", "→"),
    ],
)
def test_one_pair_that_a_mirror_exchanges_is_enough_however_many_others_there_are(one: str, other: str):
    others = [f"plant of bed {word}" for word in ("oak", "elm", "fir", "ash", "yew", "bay", "box", "fig")]
    evidence = flip_evidence([*others, one, other])
    assert evidence.pairs == ((one, other),)
    assert not evidence.is_safe
    assert flip_evidence([*others, one]).is_safe


@pytest.mark.parametrize(
    "pair", [("vitamin b", "vitamin d"), ("type p", "type q"), ("bright", "blight"), ("left", "l")]
)
def test_names_that_only_resemble_a_pair_are_none(pair: tuple[str, str]):
    assert flip_evidence([*ANIMALS, *pair]).pairs == ()


@pytest.mark.parametrize("name", ["7", "six", "B"])
def test_one_bare_number_or_letter_among_many_words_may_be_a_mere_name(name: str):
    assert flip_evidence([*ANIMALS, name]).is_safe
    assert not flip_evidence([name, "cat"]).is_safe


@pytest.mark.parametrize("pair", [("b", "d"), ("six", "nine"), ("L", "R")])
def test_two_that_a_mirror_might_confuse_are_enough(pair: tuple[str, str]):
    assert oriented([*ANIMALS, *pair]) == pair


def test_a_whole_alphabet_is_not_flipped():
    names = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    assert oriented(names) == tuple(names)


def test_without_classes_nothing_speaks_against_it():
    assert flip_evidence([]).is_safe
