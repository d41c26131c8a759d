import json
import re
from dataclasses import replace
from typing import Any

import pytest

from fit_example import as_fit, fit_example, many_classes, pretrained_example
from meanteacher.formats import percent
from meanteacher.photos.pages import model_card as cards
from meanteacher.photos.pages.fit_page import fit_page
from meanteacher.photos.pages.model_card import escaped


def model_card(content: dict[str, Any]) -> str:
    return cards.model_card(as_fit(content))


def test_the_card_opens_with_the_headline():
    lines = [line for line in model_card(fit_example()).splitlines() if line]
    assert lines[0] == "# A classifier for forest-finds"
    assert lines[1].startswith("Right on about 3 of 4 new photos (64 to 81 %).")
    assert lines[2] == "Before 35.0 % wrong, now 25.0 %, on the same 60 photos."


def test_errors_classes_and_confusions_are_sentences_tables_and_lists():
    card = model_card(fit_example())
    assert "About 27.4 % of new photos get a wrong answer (95 % interval 19.3 % to 36.4 %)." in card
    assert "The 5,897 unlabelled photos helped: " in card
    assert "| oak leaf | 50.0 % | 6 of 12 | 50 |" in card
    assert "- oak leaf mistaken for beech leaf: 4 of 12" in card
    assert "(11.2 before the confidence was adjusted, with temperature 1.37)" in card


def test_card_and_page_count_the_wrong_images_of_each_class():
    """From the confusion matrix, because a class of 50 % error cannot tell wrong from right."""
    fit = as_fit(fit_example())
    counted = [(sum(row) - row[i], sum(row)) for i, row in enumerate(fit.confusion)]
    assert any(2 * wrong != tested for wrong, tested in counted)
    card, page = cards.model_card(fit), fit_page(fit)
    for row, (wrong, tested) in zip(fit.per_class, counted, strict=True):
        assert f"| {row.name} | {percent(wrong / tested)} | {wrong} of {tested} | {row.n_labelled} |" in card
        assert f'{percent(wrong / tested)} <span class="spread">{wrong} of {tested}</span>' in page


def test_the_model_and_its_data_are_described():
    card = model_card(fit_example())
    assert "It learned from labelled and unlabelled photos. It sees an image as 32 × 32 pix" in card
    assert "- network: FastNet\n- parameters: 298,440\n" in card
    assert "6,300 images: 400 labelled, 5,897 unlabelled, 3 unreadable. Labels from: class folders." in card


def test_limits_name_problems_and_classes_with_few_labels():
    fit = fit_example()
    fit["per_class"][0]["n_labelled"] = 3
    limits = model_card(fit).partition("## Where not to trust it")[2].partition("## ")[0]
    assert "- Warning in the data: 3 files could not be read" in limits
    assert "nearly the same" not in limits
    assert "On the 1 class with fewer than ten labels" in limits
    assert "fewer than ten labels" not in model_card(fit_example())


def test_a_pretrained_network_is_named_with_its_data_licence_and_what_it_brings_along():
    fit = pretrained_example()
    card = model_card(fit)
    model, limits = (card.partition(heading)[2].partition("\n## ")[0] for heading in ("## The model", "## Where not"))
    assert (
        "- pretrained network: EfficientNet-Lite0 (lite0), trained on ImageNet-1k, licence of the weights Apa" in model
    )
    assert "- pretrained network: EfficientNet-Lite2 (lite2), trained on ImageNet-1k" in model
    assert all(backbone["sha256"] in model for backbone in fit["backbones"])
    assert "1.2 million photos of ImageNet" in model
    assert "- On classes unlike those of ImageNet-1k: those are easier" in limits
    assert "biases of ImageNet-1k" in limits
    assert not re.search("pretrained|ImageNet|biases", model_card(fit_example()))
    assert "had learned from no other images" in model_card(fit_example())


def test_the_name_of_a_pretrained_network_cannot_become_a_link_or_a_heading():
    backbone = dict.fromkeys(("name", "title", "trained_on", "licence", "sha256"), "[x](y)\n# z <b>") | {"size": 224}
    card = model_card(pretrained_example(backbones=[backbone]))
    assert "[x](y)" not in card
    assert "<b>" not in card
    assert "\n# z" not in card


def test_use_and_provenance_close_the_card():
    # The card travels with the model: it does not tell whose machine it comes from.
    card = model_card(fit_example(folder="/home/ann/fit"))
    assert "/home/ann" not in card
    again = "meanteacher fit PHOTOS --labels DIR/labels.csv --minutes 10 --out DIR --overwrite"
    assert f"{again}  # Fit again with more labels" in card
    data = fit_example()["data"] | {"source": "csv", "labels_file": "/home/ann/labels.csv"}
    card_of_table = model_card(fit_example(data=data))
    assert "/home/ann" not in card_of_table
    assert "meanteacher fit PHOTOS --labels LABELS --minutes" in card_of_table
    assert "LABELS is the file of their labels" in card_of_table
    assert "DIR is the folder of this card, PHOTOS is the folder of your photos, OTHER is a folder with other" in card
    assert "```python\nimport meanteacher as mt\n\nmodel = mt.load('DIR')\n" in card
    assert "- Made: 2026-01-31T12:00:00Z\n- meanteacher: 0.1.0\n- python: 3.11.2" in card
    assert "- Time: 9 min 54 s" in card


def test_a_handful_of_tests_gives_no_percentage():
    few = {"error": 0.0, "low": 0.0, "high": 0.39, "wrong": 0, "n": 6, "confidence": 0.95}
    assert "get a wrong answer" in model_card(fit_example(estimate=few | {"n": 20}))
    assert "get a wrong answer" not in model_card(fit_example(estimate=few))


def test_a_card_has_no_empty_headings():
    card = model_card(fit_example(per_class=[]))
    assert "### By class" not in card
    assert not re.search(r"^#+ [^\n]*\n+#", card, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ('"><img src=x onerror=alert(1)>.jpg', '"&gt;&lt;img src=x onerror=alert(1)&gt;.jpg'),
        ("[a](javascript:alert(1))", r"\[a\](javascript:alert(1))"),
        ("![a](https://example.org/a.png)", r"\!\[a\](https\://example.org/a.png)"),
        ("x\n\n# Heading\n", r"x \# Heading"),
        ("a | b", r"a \| b"),
        ("`code` *b* _i_ ~s~ $m$", r"\`code\` \*b\* \_i\_ \~s\~ \$m\$"),
        ("back\\slash &lt;", "back\\\\slash &amp;lt;"),
        ("WWW.example.org", r"WWW\.example.org"),
    ],
)
def test_hostile_words_are_shown_as_they_are_wherever_they_stand(words: str, shown: str):
    assert escaped(words) == shown
    fit = fit_example(title=words)
    fit["headline"] = fit["helped"]["sentence"] = words
    fit["data"] |= {"class_names": [words, *fit["data"]["class_names"][1:]]}
    fit["per_class"][0]["name"] = words
    fit["findings"][1]["sentence"] = words
    fit["network"] = words
    fit["environment"] = {words: words}
    fit |= {"created": words, "version": words}
    card = model_card(fit)
    assert card.count(shown) >= 11
    assert words not in card.replace(shown, "")
    assert "<" not in card


def test_a_thousand_classes_are_cut_and_counted():
    card = model_card(fit_example(**many_classes(1000)))
    assert "The highest errors first; 950 more classes are in report.html." in card
    assert " and 950 more." in card
    assert len(card) < 10_000


def test_a_card_of_names_that_are_no_text_can_be_written():
    fit = replace(as_fit(fit_example()), title="caf\udce9")
    assert "caf\\udce9" in cards.model_card(fit).encode("utf-8").decode("utf-8")


def test_the_card_is_a_function_of_the_record_as_it_is_read_back():
    fit = fit_example()
    assert model_card(fit) == model_card(json.loads(json.dumps(fit)))
