"""What must hold of statistics, of readings of a run, of views, and of evaluation, by formulas of their own."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import t as student_t
from torch import Tensor, nn

from meanteacher import evaluate, stats
from meanteacher.core import Batch, Cost
from meanteacher.data import Dataset
from meanteacher.data.dataset import BrokenImages
from meanteacher.models import fast
from meanteacher.train.vitals import Declared, Vitals
from meanteacher.views import Crop, Cutout, FeatureDropout, Noise, PerImage, Rotate, Translate, Zca
from meanteacher.views.basic import rotation, warped
from meanteacher.views.strong import Jitter, recoloured


def _close(value: float, expected: float, what: str) -> None:
    assert math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9), f"{what} is {value}, not {expected}"


# --- statistics -------------------------------------------------------------------------------------------------------

_CONFIDENCE = np.array([0.31, 0.38, 0.52, 0.55, 0.58, 0.91, 0.93, 0.97, 0.96, 0.94, 0.99])
"""Bins of 2, 3 and 6 images."""
_RIGHT = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1], dtype=bool)


def _predictions() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of four classes, whose largest is the confidence and stands in another place in every row."""
    rows = np.arange(len(_CONFIDENCE))
    guess, other = (3 * rows) % 4, (3 * rows + 1) % 4
    probabilities = np.repeat((1 - _CONFIDENCE[:, None]) / 3, 4, axis=1)
    probabilities[rows, guess] = _CONFIDENCE
    return probabilities, np.where(_RIGHT, guess, other)


def an_interval_of_an_error_ends_where_the_share_would_be_too_rare() -> None:
    """Wilson: at its ends the measured share is 1.96 standard errors away, by the variance of the end itself."""
    for wrong, n in ((3, 17), (31, 100), (250, 260)):
        found = stats.error_interval(wrong, n)
        _close(found.value, wrong / n, "the share")
        for end in (found.low, found.high):
            _close((wrong / n - end) ** 2, 1.959963984540054**2 * end * (1 - end) / n, f"the interval of {wrong}/{n}")
        assert found.low < wrong / n < found.high, "an end is on the other side"


def an_interval_of_a_mean_is_wide_for_few_values() -> None:
    for values in ([1.0, 4.0, 2.5], [0.2, 0.1, 0.4, 0.3, 0.9, 0.25, 0.15]):
        found = stats.mean_interval(values)
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        low, high = student_t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        _close(found.low, low, "the lower end")
        _close(found.high, high, "the upper end")


def _wrong(*positions: int, n: int = 40) -> np.ndarray:
    wrong = np.zeros(n, dtype=bool)
    wrong[list(positions)] = True
    return wrong


def a_difference_is_the_baselines_error_less_that_of_the_model() -> None:
    ours, theirs = _wrong(0, 5, 9), _wrong(0, 5, 12, 13, 20, 21, 22, 30)
    found = stats.difference_on_images(ours, theirs)
    _close(found.difference.value, (8 - 3) / 40, "the difference")
    half = 1.959963984540054 / 42 * math.sqrt(8 - 25 / 42)  # 6 and 1 images count, with half an image more each
    _close(found.difference.low, 5 / 42 - half, "the lower end")
    assert found.verdict == "unclear", f"of 40 images 7 differ, and the verdict is {found.verdict}"
    assert found.n_needed is not None, "no number of images would show it"
    assert found.n_needed > 40, "an unclear difference needs fewer images than there are"
    repeated = (np.tile(each, round(found.n_needed / 40 + 0.5)) for each in (ours, theirs))
    assert stats.difference_on_images(*repeated).verdict == "yes", "so many images do not make it clear"


def an_error_of_the_calibration_counts_images() -> None:
    probabilities, labels = _predictions()
    bins = ((slice(0, 2), 2), (slice(2, 5), 3), (slice(5, 11), 6))
    expected = sum(n * abs(_CONFIDENCE[its].mean() - _RIGHT[its].mean()) for its, n in bins) / 11
    _close(stats.calibration_error(probabilities, labels), expected, "the calibration error")
    found = stats.reliability(probabilities, labels)
    assert [group["n"] for group in found] == [2, 3, 6], "images are in other bins"
    for group, (its, _) in zip(found, bins, strict=True):
        _close(group["confidence"], float(_CONFIDENCE[its].mean()), "the confidence of a bin")
        _close(group["accuracy"], float(_RIGHT[its].mean()), "the accuracy of a bin")


def _logits() -> tuple[np.ndarray, np.ndarray]:
    """Logits of an overconfident model, in an order in which the halves differ."""
    draws = np.random.default_rng(3)
    labels = draws.integers(4, size=61)
    logits = draws.normal(size=(61, 4)) * np.where(np.arange(61) % 2, 6.0, 2.0)[:, None]
    logits[np.arange(61), labels] += 3.0
    return logits, labels


def _likelihood(temperature: float, logits: np.ndarray, labels: np.ndarray) -> float:
    log_p, smoothing = log_softmax(logits / temperature, axis=1), 1 / (len(labels) + 2)
    known = log_p[np.arange(len(labels)), labels]
    return float(((1 - smoothing) * known + smoothing * log_p.mean(1)).mean())


def a_temperature_makes_the_labels_most_probable() -> None:
    logits, labels = _logits()
    best = stats.fitted_temperature(logits, labels)
    assert best > 1, "the logits of a model that is too sure are enlarged"
    for factor in (0.9, 1.1):
        assert _likelihood(best, logits, labels) > _likelihood(best * factor, logits, labels), "another one is better"


def a_temperature_is_judged_on_images_that_did_not_choose_it() -> None:
    logits, labels = _logits()
    after, even = np.empty_like(logits), np.arange(61) % 2 == 0
    for half in (even, ~even):
        after[half] = softmax(logits[half] / stats.fitted_temperature(logits[~half], labels[~half]), axis=1)
    found = stats.calibration(logits, labels)
    _close(found["after"], stats.calibration_error(after, labels), "the calibration error after the temperature")
    _close(found["before"], stats.calibration_error(softmax(logits, axis=1), labels), "the calibration error before")


STATISTICS = (
    an_interval_of_an_error_ends_where_the_share_would_be_too_rare,
    an_interval_of_a_mean_is_wide_for_few_values,
    a_difference_is_the_baselines_error_less_that_of_the_model,
    an_error_of_the_calibration_counts_images,
    a_temperature_makes_the_labels_most_probable,
    a_temperature_is_judged_on_images_that_did_not_choose_it,
)


# --- readings of a run ------------------------------------------------------------------------------------------------


class _Two(nn.Module):
    def __init__(self, first: list[float], second: float) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.tensor(first)), nn.Parameter(torch.tensor([second]))


def _vitals() -> Vitals:
    return Vitals(Declared(n_labelled=3, labelled_share=0.25, exact=True, steps=100))


def a_reading_has_the_numbers_of_its_step() -> None:
    student, teacher = _Two([3.0, 4.0], 12.0), _Two([3.0, 1.0], 16.0)  # 5 apart, and the student is 13 long
    watch = _vitals()
    cost = Cost((2 * student.first).sum() + 1 * student.second.sum())
    watch.read_gradients(0, {"classification": cost}, student, list(student.parameters()))
    labels = torch.tensor([2, -1, -1, -1, 0, -1, -1, -1])
    watch.note_labels(Batch({}, labels, torch.arange(8)))
    logits = torch.eye(4)[[0, 1, 1, 1, 2, 3, 1, 0]]
    watch.read(0, {"classification": cost}, student, teacher, logits)
    (found,) = watch.readings
    _close(found.gradients["classification"], 3.0, "the length of a gradient")  # 2, 2 and 1
    _close(found.distance or 0.0, 5 / 13, "the distance of the teacher")
    _close(found.labelled_share, 0.25, "the share of labelled rows")
    _close(found.largest_class_share, 0.5, "the share of the most frequent prediction")
    assert not watch.alarms, f"a sound step is accused: {watch.alarms}"


def a_cost_that_trains_nothing_is_named_also_after_an_interruption() -> None:
    student = _Two([3.0, 4.0], 12.0)
    watch = _vitals()
    for step in range(3):
        saved = watch.state()
        watch = _vitals()
        watch.load(saved)
        watch.read_gradients(step, {"consistency": Cost(0 * student.first.sum(), 1.0)}, student, [student.first])
    assert [alarm.kind for alarm in watch.alarms] == ["dead-cost/consistency"], "nobody says so"


def a_label_that_was_not_declared_is_named() -> None:
    watch = _vitals()
    for step in range(4):
        watch.note_labels(Batch({}, torch.tensor([1, -1, -1, -1]), torch.tensor([7 * step, 1, 2, 3])))
        watch.read(step, {}, _Two([1.0, 2.0], 0.0), _Two([1.0 + step, 2.0], 3.0))
    assert [alarm.kind for alarm in watch.alarms if alarm.kind == "hidden-labels"], "four labels are shown, of three"


def a_teacher_that_does_not_follow_is_named() -> None:
    watch, teacher = _vitals(), _Two([1.0, 2.0], 3.0)
    for step in range(5):
        watch.read(step, {}, _Two([1.0, 2.0], 3.0 + step), teacher)
    assert "stale-teacher" in [alarm.kind for alarm in watch.alarms], "the teacher stands still"


READINGS = (
    a_reading_has_the_numbers_of_its_step,
    a_cost_that_trains_nothing_is_named_also_after_an_interruption,
    a_label_that_was_not_declared_is_named,
    a_teacher_that_does_not_follow_is_named,
)


# --- views and evaluation ---------------------------------------------------------------------------------------------


def _draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_crop_has_the_share_of_the_area_and_the_shape_that_it_says() -> None:
    uniform = torch.linspace(0, 0.999, 7)
    for area, ratio, tall in ((0.25, 1.0, 1.0), (0.2, 2.0, 1.0), (0.3, 0.5, 1.5)):
        width, height = Crop(scale=(area, area), aspect=(ratio, ratio))._box(uniform, uniform, tall)
        for w, h in zip(width.tolist(), height.tolist(), strict=True):
            assert abs(w * h - area) < 1e-5, f"a crop of {area} of the area has {w * h}"
            assert abs(w / (h * tall) - ratio) < 1e-4, f"a crop of the ratio {ratio} has {w / (h * tall)}"


def a_turned_image_is_turned_by_its_angle() -> None:
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 2, 4] = 1.0  # right of the centre
    turned = warped(image, rotation(torch.tensor([math.pi / 2])))[0, 0]
    assert turned[0, 2] > 0.99, "a quarter turn counter-clockwise does not bring the right side to the top"
    assert torch.allclose(Rotate(0.0)(image, _draws()), image, atol=1e-5), "an image is turned by nothing"
    spread = torch.stack([Rotate(10.0)(image, _draws(seed)) for seed in range(40)])
    assert spread[:, 0, 0, 2, 4].min() > 0.5, "an image is turned by more than it may be"
    assert spread[:, 0, 0, 2, 4].max() - spread[:, 0, 0, 2, 4].min() > 0.1, "all images are turned alike"


def noise_has_its_deviation_and_drop_keeps_the_scale() -> None:
    large = torch.zeros(4, 3, 60, 60)
    measured = float(Noise(0.4)(large, _draws()).std())
    assert abs(measured - 0.4) < 0.02, f"noise of 0.4 has a deviation of {measured}"
    kept = FeatureDropout(0.25)(torch.full((50, 80), 3.0), _draws())
    assert set(kept.unique().tolist()) == {0.0, 3.0}, "other values than zero change, too"
    assert abs(float((kept == 0).float().mean()) - 0.25) < 0.03, "another share is dropped"


def a_cut_is_a_square_of_its_size() -> None:
    cut = Cutout(6)(torch.ones(300, 2, 20, 30), _draws()) == 0
    assert torch.equal(cut[:, 0], cut[:, 1]), "the channels have different holes"
    rows, columns = cut[:, 0].any(2).sum(1), cut[:, 0].any(1).sum(1)
    assert rows.max() == columns.max() == 6, f"the largest hole has {rows.max()} rows and {columns.max()} columns"
    assert rows.min() < 6, "a hole never extends past the border"


def a_translated_image_is_moved_by_at_most_its_reach() -> None:
    image = torch.zeros(200, 1, 11, 13)
    image[:, 0, 5, 6] = 1.0
    moved = Translate(2)(image, _draws())[:, 0]
    places = {(int(p) // 13 - 5, int(p) % 13 - 6) for p in moved.flatten(1).argmax(1)}
    assert places == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}, "other shifts than up to two pixels"
    ramp = torch.arange(6.0).view(1, 1, 1, 6).expand(60, 1, 6, 6)
    first = Translate(2)(ramp, _draws())[:, 0, 0, 0]
    assert set(first.tolist()) == {0.0, 1.0, 2.0}, "beyond the border an image is not its mirror image"
    moved_right = Translate(2)(ramp, _draws())[:, 0, 0]
    assert [2.0, 1.0, 0.0, 1.0] in moved_right[:, :4].tolist(), "the mirror image repeats the edge"


def colours_change_as_they_are_told() -> None:
    images = torch.randn(3, 3, 4, 5, generator=_draws())
    luma = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    brighter = recoloured(images, brightness=0.1)
    assert torch.allclose(brighter - images, torch.full_like(images, 0.2), atol=1e-5), "the brightness is another"
    grey = recoloured(images, saturation=-1.0)
    assert torch.allclose(grey, (luma * images).sum(1, keepdim=True).expand(-1, 3, -1, -1), atol=1e-3), "it is not grey"
    flat = recoloured(images, contrast=-1.0)
    mean = (luma * images).sum(1).mean((1, 2)).view(3, 1, 1, 1)
    assert torch.allclose(flat, mean.expand_as(flat), atol=1e-3), "without contrast an image is not its mean luma"
    turned = recoloured(images, hue=0.25)
    assert torch.allclose((luma * turned).sum(1), (luma * images).sum(1), atol=1e-3), "a hue changes the luma"
    assert float((turned - images).abs().mean()) > 0.1, "a hue changes nothing"
    several = Jitter()(images[:1].expand(64, -1, -1, -1), _draws())
    assert len(several.flatten(1).unique(dim=0)) == 64, "images of a batch change alike"


def a_normalised_image_has_unit_variance() -> None:
    images = torch.rand(5, 3, 6, 7, generator=_draws()) * torch.tensor([1.0, 9.0, 0.2, 3.0, 5.0]).view(5, 1, 1, 1)
    seen = PerImage().fit(images)(images).flatten(1)
    assert torch.allclose(seen.mean(1), torch.zeros(5), atol=1e-4), "an image has another mean"
    assert torch.allclose(seen.std(1, unbiased=False), torch.ones(5), atol=1e-2), "an image has another deviation"


def zca_decorrelates_pixels_and_keeps_them_in_place() -> None:
    images = torch.randn(400, 1, 2, 3, generator=_draws()).cumsum(3)
    seen = Zca(contrast=False, epsilon=1e-5).fit(images)(images).flatten(1)
    covariance = torch.cov(seen.T)
    assert torch.allclose(covariance, torch.eye(6), atol=0.02), "pixels are still correlated"
    flat = images.flatten(1)
    own = torch.corrcoef(torch.cat([seen, flat], 1).T)[:6, 6:].diagonal()
    assert own.min() > 0.3, "a pixel of the result stands for other pixels"


def whitening_keeps_the_directions_in_which_patches_differ_most() -> None:
    images = 0.01 * torch.randn(40, 2, 8, 8, generator=_draws())
    images[:, 1, ::2, ::2] += torch.randn(40, 4, 4, generator=_draws(1))  # one pixel of every patch
    filters = fast._whitening(images, 2, 2, n_kept=1)
    assert filters.shape[0] == 2, "both signs of one direction are kept"
    largest = filters[0].abs().flatten().argmax()
    assert int(largest) == 1 * 4, "the first filter looks at a pixel that hardly varies"
    assert torch.equal(filters[0], -filters[1]), "the two filters are not opposite"


@dataclass(frozen=True, eq=False)
class _PartlyBroken(Dataset):
    @property
    def broken(self) -> BrokenImages:
        found = BrokenImages()
        found.positions = {5, 11}
        return found


class _FirstPixel(nn.Module):
    """The first pixel is the class that it predicts; the next ones are second and third."""

    def forward(self, x: Tensor) -> Tensor:
        steps = (torch.arange(6) - x[:, 0, 0, 0][:, None].round()) % 6
        return -steps


def an_unreadable_image_is_left_out_and_no_other() -> None:
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0])
    guess = labels.clone()
    guess[[5, 11, 2, 7]] = (guess[[5, 11, 2, 7]] + 1) % 6  # two of them cannot be read
    guess[7] = (labels[7] - 2) % 6  # its class is the third guess
    dataset = _PartlyBroken(guess.float().view(-1, 1, 1, 1), labels, tuple("abcdef"))
    index = torch.tensor([12, 11, 2, 0, 7, 5, 9, 8, 1])  # 7 can be read, and 2 of them are wrong
    first, second, third = evaluate.top_error_rates(
        {"it": _FirstPixel()}, dataset, index, normalise=Tensor.float, tops=(1, 2, 3)
    )
    _close(first["it"], 2 / 7, "the error")
    _close(second["it"], 2 / 7, "the error of two guesses")  # the class of image 2 is the sixth guess
    _close(third["it"], 1 / 7, "the error of three guesses")


VIEWS = (
    a_crop_has_the_share_of_the_area_and_the_shape_that_it_says,
    a_turned_image_is_turned_by_its_angle,
    noise_has_its_deviation_and_drop_keeps_the_scale,
    a_cut_is_a_square_of_its_size,
    a_translated_image_is_moved_by_at_most_its_reach,
    colours_change_as_they_are_told,
    a_normalised_image_has_unit_variance,
    zca_decorrelates_pixels_and_keeps_them_in_place,
    whitening_keeps_the_directions_in_which_patches_differ_most,
    an_unreadable_image_is_left_out_and_no_other,
)
