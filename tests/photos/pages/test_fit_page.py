import ast
import copy
import itertools
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from fit_example import NO_PLOTS, as_fit, fit_example, many_classes, pretrained_example, thumb
from meanteacher.photos.pages import fit_page as pages

OPTIONAL = {
    "per_class": ("classes", []),
    "gallery": ("pictures", {}),
}
"""part of fit.json -> the section of the page, and the part if there is nothing to show."""
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>.jpg', "' onload='alert(1)", "</style></title>")


class Page(HTMLParser):
    """The words a reader sees, and every tag and attribute, of a page whose tags are properly nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())
        self.ids = [value for name, value in self.attributes if name == "id"]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def fit_page(content: dict[str, Any]) -> str:
    return pages.fit_page(as_fit(content))


@cache
def whole_html() -> str:
    return fit_page(fit_example())


@cache
def whole() -> Page:
    return Page(whole_html())


def page_of(**changes: Any) -> Page:
    """A page of the example with changes, without the plots: they take most of the time."""
    return Page(fit_page(fit_example(**NO_PLOTS | changes)))


def test_the_headline_comes_first_then_the_fit_before_then_whether_the_unlabelled_photos_helped():
    text = whole().text
    assert re.search(
        r"A classifier for forest-finds Right on about 3 of 4 new photos \(64 to 81 %\). Weakest: oak leaf. Next: "
        r"label these 12. Before 35.0 % wrong, now 25.0 %, on the same 60 photos. The 5,897 unlabelled photos helped: ",
        text,
    )


def test_a_few_photos_give_no_percentage_of_the_fit_before():
    page = page_of(since={"n": 6, "before": 3, "now": 1})
    assert "Before, 3 of the same 6 photos were wrong; now 1." in page.text
    assert "Before" not in page_of(since=None).text


def test_it_is_said_which_photos_tested_the_model_and_for_which_mix_the_estimate_holds():
    assert "About 27.4 % of new photos get a wrong answer (95 % interval 19.3 % to 36.4 %)." in whole().text
    assert "Each of 100 labelled photos tested a model that had learned from the others only: 27" in whole().text
    assert "the mix of classes that the unlabelled photos seem to have" in whole().text
    data = fit_example()["data"] | {"n_unlabelled": 0}
    assert "It holds for photos in the mix of classes of the labels." in page_of(data=data).text


def test_nothing_is_estimated_if_nothing_was_tested():
    page = page_of(estimate={"error": None, "low": 0.0, "high": 1.0, "wrong": 0, "n": 0, "confidence": 0.95})
    assert "get a wrong answer" not in page.text
    assert "No class has two labels that do not belong together, so nothing could be tested." in page.text


def test_a_handful_of_tests_gives_no_percentage():
    few = {"error": 0.0, "low": 0.0, "high": 0.39, "wrong": 0, "n": 6, "confidence": 0.95}
    sure = [{"confidence": 0.8, "share": 0.6, "error": 0.0, "n": 19}]
    assert "get a wrong answer" not in page_of(estimate=few).text
    assert "above 80 % confidence 60.0 % – 19 test photos" in page_of(sure=sure).text


def test_sure_answers_are_fewer_and_better():
    text = whole().text
    assert "above 80 % confidence 60.0 % 5.0 % 61 test photos" in text
    assert "above 95 % confidence 10.0 % – 0 test photos" in text


@cache
def pretrained() -> Page:
    return Page(fit_page(pretrained_example(**NO_PLOTS)))


def test_the_trial_that_chose_the_network_is_told():
    assert pretrained_example()["trial"]["sentence"] in pretrained().text


def test_the_page_says_what_the_network_had_learned_before():
    assert "It builds on EfficientNet-Lite0 and EfficientNet-Lite2, which had learned from 1." in pretrained().text
    assert "pretrained" not in whole().text
    assert "had learned from no other images" in whole().text


@pytest.mark.parametrize(
    ("trained_on", "said", "about_imagenet"),
    [
        ("ImageNet-22k, ImageNet-1k", "learned from photos (ImageNet-22k, ImageNet-1k) before", True),
        ("LVD-142M", "learned from LVD-142M before", False),
        ("unknown", "learned from images of which nothing is recorded before", False),
    ],
)
def test_other_training_data_are_named_and_not_taken_for_imagenet(trained_on: str, said: str, about_imagenet: bool):
    text = page_of(backbones=[pretrained_example()["backbones"][0] | {"trained_on": trained_on}]).text
    assert said in text
    assert "1.2 million" not in text
    assert ("ImageNet shows mostly" in text) is about_imagenet


def test_disagreements_with_given_labels_are_shown_as_such():
    text = whole().text
    assert text.index("Labels to look at") < text.index("To label next") < text.index("Most certain")
    assert "labelled fern, looks like moss" in text


@pytest.mark.parametrize("part", OPTIONAL)
def test_a_part_without_content_leaves_its_section_and_its_link_out(part: str):
    section, empty = OPTIONAL[part]
    assert section in whole().ids
    page = page_of(**{part: empty})
    assert section not in page.ids
    assert ("href", f"#{section}") not in page.attributes
    assert page.ids.count("use") == 1


def test_every_link_leads_somewhere_and_every_id_is_unique():
    page = whole()
    assert sorted(page.ids) == sorted(set(page.ids))
    links = {value for name, value in page.attributes if name == "href" and not value.startswith(("data:", "#m"))}
    assert len(links) >= 9
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def test_headings_are_in_order_and_table_headers_say_what_they_head():
    html = whole_html()
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert all('scope="' in tag for tag in re.findall(r"<th[ >][^>]*", html))


def test_the_confusion_matrix_has_true_classes_in_rows():
    html = whole_html()
    row = re.search(r'<tr><th scope="row"><bdi>oak leaf</bdi></th>(<td class.*?)</tr>', html)[1]
    assert re.findall(r">([^<]+)</td>", row) == ["·", "4", "·", "·", "2", "·", "6", "·"]
    assert re.findall(r'class="(\w+)"', row) == ["nil", "wrong", "nil", "nil", "wrong", "nil", "right", "nil"]
    assert "Most frequent oak leaf mistaken for beech leaf : 4 of 12" in Page(html).text


def test_the_shade_of_a_cell_grows_with_its_share_of_the_row():
    heats = [float(heat) for heat in re.findall(r"--heat: ([\d.]+)", whole_html())]
    row = heats[6 * 8 : 7 * 8]
    assert max(heats) <= 0.45
    assert min(heat for heat in heats if heat) > 0.1, "a single confusion must be seen"
    assert row[6] > row[1] > row[4] > row[0] == 0


def test_twenty_classes_have_a_matrix_and_more_have_the_pairs_confused_most():
    assert "<td class" in fit_page(fit_example(**NO_PLOTS, **many_classes(20)))
    html = fit_page(fit_example(**NO_PLOTS, **many_classes(21)))
    table = html[html.index("Mistaken for") : html.index('id="calibration"')]
    counts = [int(n) for n in re.findall(r"<td>(\d+) of 11</td>", table)]
    assert len(counts) == 20
    assert counts == sorted(counts, reverse=True)
    assert 'style="--heat' not in html


def test_the_error_of_a_class_comes_with_what_it_rests_on():
    assert "oak leaf 50.0 % 6 of 12 50 12.5 % 862" in whole().text
    rows = fit_example()["per_class"]
    rows[0] |= {"n_tested": 0, "error": None, "n_predicted": 7}
    assert "acorn – 50 12.5 % 7" in page_of(per_class=rows).text


def test_many_classes_are_sorted_by_error_and_few_by_name():
    rows = many_classes(30)
    rows["per_class"][17]["error"] = 1.0
    text = page_of(**rows).text
    assert (
        text.index("The highest errors first.") < text.index("species 0017 100.0 %") < text.index("species 0000 27.3 %")
    )
    assert whole().text.index("acorn 23.1 %") < whole().text.index("oak leaf 50.0 %")


def test_pictures_are_embedded_with_words_for_those_who_do_not_see_them():
    page = whole()
    assert page.tags.count("img") == 36
    assert ("alt", "The image unlabelled/IMG_1000.jpg") in page.attributes
    assert ("src", thumb(0)) in page.attributes
    assert "acorn over 99.9 % IMG_1000.jpg" in page.text
    assert "beech leaf 25.3 % unlike the others IMG_2517.jpg" in page.text


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "https://example.org/a.jpg",
        "javascript:alert(1)",
        "data:text/html;base64,PHNjcmlwdD4=",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/png;base64,",
        "data:image/png;base64,AAAA\n",
        'data:image/png;base64,AAAA" onerror="alert(1)',
        "data:image/png,AAAA",
        " data:image/png;base64,AAAA",
        "data:image/png;base64," + "A" * 300_000,
    ],
)
def test_only_a_small_embedded_jpeg_or_png_is_a_picture(bad: str):
    picture = {"name": "a.jpg", "label": "cat", "confidence": 0.5, "thumb": bad}
    page = page_of(gallery={"most_confident": [picture]})
    assert "img" not in page.tags
    assert "no picture cat 50.0 % a.jpg" in page.text


def test_calibration_says_before_and_after_and_does_not_praise_itself():
    text = whole().text
    assert "differ by 4.3 percentage points on average (11.2 before the confidence was adjusted, with temper" in text
    assert "temperature 1.37). Measured on 100 images only" in text
    worse = fit_example()["calibration"] | {"before": 0.02, "after": 0.03}
    assert "differ by 3.0 percentage points on average (no better than 2.0 before" in page_of(calibration=worse).text


def test_the_calibration_plot_draws_the_groups_and_needs_one():
    html = whole_html()
    assert "5 images, 35.0 % sure, 40.0 % right; 9 images" in html
    empty = fit_example()["calibration"] | {"bins": []}
    assert "<title>Calibration</title>" not in fit_page(fit_example(calibration=empty))


def test_a_whisker_is_drawn_for_each_group():
    drawn, plain = (
        fit_page(fit_example(**NO_PLOTS | {"calibration": each}))
        for each in (fit_example()["calibration"], NO_PLOTS["calibration"])
    )
    assert drawn.count("stroke-opacity: 0.45") - plain.count("stroke-opacity: 0.45") == 7
    assert "the line through it is its 95 % interval" in drawn
    assert "the line through it" not in plain


def test_findings_are_sorted_by_severity_and_long_lists_are_cut_with_a_count():
    findings = [
        {"kind": "b", "severity": "note", "sentence": "Third."},
        {"kind": "c", "severity": "warning", "sentence": "Second.", "names": [f"{i}.jpg" for i in range(1234)]},
        {"kind": "a", "severity": "problem", "sentence": "First.", "names": ["x.jpg"]},
    ]
    text = page_of(findings=findings).text
    assert "Problem. First. 1 image x.jpg Warning. Second. 1,234 images 0.jpg" in text
    assert "49.jpg and 1,184 more, listed in fit.json Note. Third." in text


def test_classes_are_not_called_images():
    finding = {"kind": "flip", "severity": "note", "sentence": "X.", "names": ["a", "b"], "about": "class"}
    assert "Note. X. 2 classes a b" in page_of(findings=[finding]).text
    assert "Note. X. 2 images a b" in page_of(findings=[finding | {"about": "image"}]).text


def test_no_findings_are_said_to_be_none():
    assert "The check found no problems." in page_of(findings=[]).text


def test_work_and_time_are_shown():
    text = whole().text
    assert "Minutes allowed 10 Network FastNet Parameters 298,440 Pixels per side 32" in text
    assert "Mirrored views yes" in text
    assert "reading 9.1 s training 8 min 9 s results 18.4 s" in text
    assert "9 min 54 s" in text


def commands_of(**changes: Any) -> dict[str, list[str]]:
    """The command -> its words as a shell reads them."""
    html = fit_page(fit_example(**NO_PLOTS, **changes))
    shown = [unescape(each) for each in re.findall(r"<dd><code>(.*?)</code></dd>", html)]
    return {words[1]: words for words in map(shlex.split, shown)}


@pytest.mark.parametrize("name", ["photos", "my photos", 'Ann\'s "best" & <b>worst</b>', "$(rm -rf) `x` ; * ?", "öl#1"])
def test_commands_name_the_real_folders_as_one_word_each(name: str):
    folder, photos = f"/home/ann/{name} fit", f"/home/ann/{name}"
    data = fit_example()["data"] | {"photos": photos}
    commands = commands_of(folder=folder, data=data)
    assert commands["predict"] == ["meanteacher", "predict", folder, "OTHER"]
    assert commands["evaluate"] == ["meanteacher", "evaluate", folder, "OTHER"]
    assert commands["label"] == ["meanteacher", "label", photos, "--run", folder, "--review"]
    again = ["--minutes", "10", "--out", folder, "--overwrite"]
    assert commands["fit"][2:] == [photos, "--labels", f"{folder}/labels.csv", *again]
    assert commands["export"] == ["meanteacher", "export", folder, "--onnx"]
    page = page_of(folder=folder, data=data)
    assert "PHOTOS" not in page.text
    assert "DIR" not in page.text
    assert "OTHER is a folder with other photos." in page.text


def test_a_fit_with_a_labels_file_is_repeated_with_that_file():
    # The labelling page adds its answers to that file, not to one in the folder of the fit.
    data = fit_example()["data"] | {"source": "csv", "labels_file": "/data/my labels.csv", "photos": "/data"}
    assert commands_of(folder="/fit", data=data)["fit"][2:5] == ["/data", "--labels", "/data/my labels.csv"]


def test_a_folder_whose_name_is_no_text_is_quoted_for_the_shell():
    html = fit_page(fit_example(folder="/home/caf\udce9\n's", **NO_PLOTS))
    assert "meanteacher export $'/home/caf\\xe9\\x0a\\x27s' --onnx" in unescape(html)


def test_labels_of_an_npz_file_are_not_added_by_the_labelling_page():
    data = fit_example()["data"] | {"source": "npz", "photos": "/data/x.npz"}
    commands = commands_of(folder="/fit", data=data)
    assert "label" not in commands
    assert commands["fit"][2:] == ["/data/x.npz", "--minutes", "10", "--out", "/fit", "--overwrite"]


def python_of(html: str) -> str:
    return unescape(re.search(r'<pre class="python"><code>(.*?)</code>', html, flags=re.DOTALL)[1])


def test_the_python_on_the_page_is_python_and_names_the_folder():
    compile(python_of(whole_html()), "page", "exec")
    code = python_of(fit_page(fit_example(folder='/home/Ann\'s "fit"', **NO_PLOTS)))
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "mt.load"] == [
        '/home/Ann\'s "fit"'
    ]


def test_the_python_on_the_page_uses_only_the_front_door():
    modules = [node for node in ast.walk(ast.parse(python_of(whole_html()))) if isinstance(node, ast.Import)]
    assert [ast.unparse(node) for node in modules] == ["import meanteacher as mt"]
    assert "from " not in python_of(whole_html())


def test_provenance_holds_date_and_versions():
    text = whole().text
    assert "Made 2026-01-31 12:00:00 UTC meanteacher 0.1.0 python 3.11.2 torch 2.13.0 threads 2" in text
    assert "commit not recorded" in page_of(environment={"commit": None}).text


def strings_replaced(value: Any, words: str) -> Any:
    """Every string a person, a file or a machine could have put there, key or value."""
    if isinstance(value, dict):
        return {key: strings_replaced(its, words) for key, its in value.items()}
    if isinstance(value, list):
        return [strings_replaced(its, words) for its in value]
    kept = value in ("problem", "warning", "note", "class folders")
    return value if kept or not isinstance(value, str) else words


@pytest.mark.parametrize("words", HOSTILE)
def test_a_hostile_name_anywhere_is_words_and_nothing_else(words: str):
    fit = strings_replaced(fit_example(), words)
    for part in (fit["environment"], fit["pieces"]):
        part[words] = 1
    page = Page(fit_page(fit))
    assert " ".join(words.split()) in page.text
    assert set(page.tags) <= set(whole().tags)
    assert page.tags.count("style") == whole().tags.count("style")
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "img" not in page.tags


def test_the_page_fetches_nothing_and_forbids_it():
    html = whole_html()
    page = Page(html)
    sources = [value for name, value in page.attributes if name in ("src", "srcset", "href", "xlink:href", "action")]
    assert sources
    assert all(source.startswith(("#", "data:")) for source in sources)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)", html))
    assert not {"script", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert ("content", policy) in page.attributes


def test_a_thousand_classes_make_a_page_below_two_megabytes():
    html = fit_page(fit_example(**many_classes(1000)))
    assert len(html.encode()) < 2_000_000
    assert "species 0999" in html


def test_a_name_that_is_no_text_can_still_be_written():
    fit = replace(as_fit(fit_example(**NO_PLOTS)), title="caf\udce9")
    assert "caf\\udce9" in pages.fit_page(fit).encode("utf-8").decode("utf-8")


def test_the_page_is_a_function_of_the_record_as_it_is_read_back():
    fit = fit_example()
    before = copy.deepcopy(fit)
    assert fit_page(fit) == fit_page(json.loads(json.dumps(fit)))
    assert fit == before
