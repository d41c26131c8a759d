"""Silent mistakes in statistics, in the readings of a run, in views and in evaluation."""

import dataclasses

import numpy as np
import torch
from catalogue import Catalogue, Patch, during, replace, wrap

from meanteacher import evaluate, stats
from meanteacher.models import fast
from meanteacher.train import vitals
from meanteacher.train.vitals import Vitals
from meanteacher.views import Crop, Cutout, FeatureDropout, Noise, PerImage, Translate, Zca, basic, normalise, strong

MUTANTS = Catalogue()
of_statistics = MUTANTS.of("statistics")
of_readings = MUTANTS.of("readings of a run")
of_views = MUTANTS.of("views and evaluation")


# --- statistics -------------------------------------------------------------------------------------------------------


@of_statistics
def interval_of_an_error_is_of_two_thirds(patch: Patch) -> None:
    patch.setattr(stats, "_Z", 1.0)


@of_statistics
def interval_of_an_error_is_that_of_large_numbers(patch: Patch) -> None:
    def wrong(n_wrong, n):
        share = n_wrong / n
        half = stats._Z * (share * (1 - share) / n) ** 0.5
        return stats.Interval(share, share - half, share + half)

    replace(patch, stats.error_interval, wrong)


@of_statistics
def interval_of_a_mean_is_that_of_many_values(patch: Patch) -> None:
    def wrong(values):
        mean, half = np.mean(values), 1.96 * np.std(values, ddof=1) / len(values) ** 0.5
        return stats.Interval(mean, mean - half, mean + half)

    replace(patch, stats.mean_interval, wrong)


@of_statistics
def deviation_stands_for_the_standard_error(patch: Patch) -> None:
    def wrong(real, values):
        found = real(values)
        half = (found.high - found.value) * len(values) ** 0.5
        return stats.Interval(found.value, found.value - half, found.value + half)

    wrap(patch, stats.mean_interval, wrong)


@of_statistics
def bins_of_the_calibration_weigh_the_same(patch: Patch) -> None:
    def wrong(probabilities, labels):
        bins = stats.reliability(probabilities, labels)
        return float(np.mean([abs(each["confidence"] - each["accuracy"]) for each in bins]))

    replace(patch, stats.calibration_error, wrong)


@of_statistics
def too_low_and_too_high_confidence_cancel(patch: Patch) -> None:
    def wrong(probabilities, labels):
        bins = stats.reliability(probabilities, labels)
        return abs(sum(each["n"] * (each["confidence"] - each["accuracy"]) for each in bins)) / len(labels)

    replace(patch, stats.calibration_error, wrong)


@of_statistics
def confidence_of_a_bin_is_that_of_its_middle(patch: Patch) -> None:
    def wrong(real, *given):
        return [each | {"confidence": (each["low"] + each["high"]) / 2} for each in real(*given)]

    wrap(patch, stats.reliability, wrong)


@of_statistics
def model_and_baseline_change_places_on_images(patch: Patch) -> None:
    wrap(patch, stats.difference_on_images, lambda real, wrong, baseline: real(baseline, wrong))


@of_statistics
def models_are_compared_as_if_on_different_images(patch: Patch) -> None:
    def wrong(better, worse, n):
        middle = (better - worse) / n
        half = stats._Z * (2 * 0.25 / n) ** 0.5
        return middle - half, middle + half

    replace(patch, stats._paired_interval, wrong)


@of_statistics
def images_needed_are_those_that_are_missing(patch: Patch) -> None:
    wrap(patch, stats._images_needed, lambda real, better, worse, n: max(1, (real(better, worse, n) or n) - n))


@of_statistics
def temperature_multiplies_the_logits(patch: Patch) -> None:
    wrap(patch, stats.fitted_temperature, lambda real, *given: 1 / real(*given))


@of_statistics
def temperature_is_judged_on_the_images_that_chose_it(patch: Patch) -> None:
    def change(inner, logits, labels):
        known = stats.fitted_temperature(logits, labels)
        inner.setattr(stats, "fitted_temperature", lambda *given: known)

    during(patch, stats.calibration, change)


# --- readings of a run ------------------------------------------------------------------------------------------------


@of_readings
def distance_of_the_teacher_is_squared(patch: Patch) -> None:
    wrap(patch, vitals._distance, lambda real, *given: real(*given) ** 2)


@of_readings
def distance_of_the_teacher_is_absolute(patch: Patch) -> None:
    def wrong(predictor, student):
        pairs = zip(predictor.parameters(), student.parameters(), strict=True)
        return sum(((a - b) ** 2).sum().item() for a, b in pairs) ** 0.5

    replace(patch, vitals._distance, wrong)


@of_readings
def length_of_a_gradient_is_squared(patch: Patch) -> None:
    wrap(patch, vitals._gradient_norm, lambda real, *given: real(*given) ** 2)


@of_readings
def gradient_is_read_of_the_first_weights_alone(patch: Patch) -> None:
    wrap(patch, vitals._gradient_norm, lambda real, cost, parameters, *rest: real(cost, parameters[:1], *rest))


@of_readings
def most_frequent_class_is_counted_among_the_classes(patch: Patch) -> None:
    wrap(patch, vitals._largest_class_share, lambda real, logits: len(logits.argmax(1).unique()) / logits.shape[1])


@of_readings
def streaks_end_with_an_interruption(patch: Patch) -> None:
    def wrong(real, self, state):
        real(self, state)
        self._streaks = {}

    wrap(patch, Vitals.load, wrong)


@of_readings
def labels_are_counted_among_those_of_the_last_step(patch: Patch) -> None:
    def wrong(real, self):
        self._labelled.clear()
        real(self)

    wrap(patch, Vitals._count_labels, wrong)


@of_readings
def unlabelled_rows_count_as_labelled(patch: Patch) -> None:
    during(
        patch,
        Vitals._count_labels,
        lambda inner, self: inner.setattr(vitals, "labelled_rows", lambda labels: torch.ones(len(labels)).bool()),
    )


@of_readings
def weights_are_known_by_their_first_tensor(patch: Patch) -> None:
    """A teacher whose first layer is frozen would be called stale, and one that stands still would not be."""
    replace(patch, vitals._checksum, lambda network: float(next(network.parameters()).sum()))


# --- views and evaluation ---------------------------------------------------------------------------------------------


@of_views
def scale_of_a_crop_is_that_of_its_side(patch: Patch) -> None:
    def wrong(real, self, area, shape, tall):
        return real(dataclasses.replace(self, scale=tuple(share**2 for share in self.scale)), area, shape, tall)

    wrap(patch, Crop._box, wrong)


@of_views
def width_and_height_of_a_crop_change_places(patch: Patch) -> None:
    wrap(patch, Crop._box, lambda real, *given: real(*given)[::-1])


@of_views
def images_turn_the_other_way(patch: Patch) -> None:
    wrap(patch, basic.rotation, lambda real, angle: real(-angle))


@of_views
def degrees_are_taken_for_radians(patch: Patch) -> None:
    patch.setattr(basic.math, "radians", float)


@of_views
def noise_has_its_deviation_as_variance(patch: Patch) -> None:
    def wrong(real, self, images, generator):
        return images + (real(self, images, generator) - images) * self.deviation**-0.5

    wrap(patch, Noise.__call__, wrong)


@of_views
def kept_features_are_scaled_up(patch: Patch) -> None:
    wrap(patch, FeatureDropout.__call__, lambda real, self, *given: real(self, *given) / (1 - self.rate))


@of_views
def features_are_kept_at_the_rate_of_dropping(patch: Patch) -> None:
    def wrong(real, self, *given):
        return real(dataclasses.replace(self, rate=1 - self.rate), *given)

    wrap(patch, FeatureDropout.__call__, wrong)


@of_views
def square_of_a_cut_is_measured_from_its_centre(patch: Patch) -> None:
    wrap(patch, Cutout.__call__, lambda real, self, *given: real(dataclasses.replace(self, size=2 * self.size), *given))


@of_views
def images_move_to_one_side_only(patch: Patch) -> None:
    def wrong(real, self, images, generator):
        return real(dataclasses.replace(self, pixels=self.pixels // 2), images, generator).roll(1, 2)

    wrap(patch, Translate.__call__, wrong)


@of_views
def moved_images_repeat_their_edge(patch: Patch) -> None:
    def change(inner, self, images, generator):
        real = basic.F.pad
        inner.setattr(basic.F, "pad", lambda x, sides, mode: real(x, sides, mode="replicate"))

    during(patch, Translate.__call__, change)


@of_views
def brightness_is_half_as_strong(patch: Patch) -> None:
    patch.setattr(strong, "_MEAN_ABOVE_BLACK", 1.0)


@of_views
def luma_is_the_mean_of_the_colours(patch: Patch) -> None:
    patch.setattr(strong, "_LUMA", torch.full((3,), 1 / 3))


@of_views
def one_change_of_colour_serves_the_whole_batch(patch: Patch) -> None:
    def wrong(real, images, **changes):
        return real(images, **{name: value.flatten()[:1].expand(len(images)) for name, value in changes.items()})

    during(
        patch,
        strong.Jitter.__call__,
        lambda inner, *given: inner.setattr(strong, "recoloured", lambda images, **c: wrong(_recoloured, images, **c)),
    )


_recoloured = strong.recoloured


@of_views
def images_are_divided_by_their_variance(patch: Patch) -> None:
    def wrong(self, images):
        x = normalise.to_float(images)
        axes = tuple(range(1, x.ndim))
        return (x - x.mean(axes, keepdim=True)) / x.var(axes, keepdim=True)

    patch.setattr(normalise._PerImageModule, "forward", wrong)


@of_views
def channels_of_an_image_are_standardised_apart_for_all_images(patch: Patch) -> None:
    wrap(patch, PerImage.fit, lambda real, self, images, index=None: normalise.PerChannel().fit(images, index))


@of_views
def zca_stays_in_the_space_of_its_directions(patch: Patch) -> None:
    """PCA whitening: decorrelated as well, but no longer an image."""

    def wrong(real, self, images, index=None):
        module = real(self, images, index)
        _, vectors = torch.linalg.eigh(module.whiten)
        module.whiten = module.whiten @ vectors
        return module

    wrap(patch, Zca.fit, wrong)


@of_views
def whitening_keeps_the_directions_of_least_variance(patch: Patch) -> None:
    def wrong(real, images, kernel, stride, *, n_kept):
        filters = real(images, kernel, stride, n_kept=images.shape[1] * kernel**2)
        both = filters.chunk(2)
        return torch.cat([each[:n_kept] for each in both])

    wrap(patch, fast._whitening, wrong)


@of_views
def whitening_keeps_one_sign_twice(patch: Patch) -> None:
    def wrong(real, *given, **options):
        first, _ = real(*given, **options).chunk(2)
        return torch.cat([first, first])

    wrap(patch, fast._whitening, wrong)


@of_views
def another_image_than_the_unreadable_one_is_left_out(patch: Patch) -> None:
    wrap(patch, evaluate._readable, lambda real, *given: real(*given).roll(1))


@of_views
def unreadable_images_are_named_by_their_place_in_the_part(patch: Patch) -> None:
    def wrong(dataset, index):
        n = len(dataset) if index is None else len(index)
        broken = torch.tensor(sorted(dataset.broken.positions), dtype=torch.int64)
        return torch.isin(torch.arange(n), broken, invert=True)

    replace(patch, evaluate._readable, wrong)


@of_views
def unreadable_images_count_as_right(patch: Patch) -> None:
    """They are left out of the errors, and stay in the number that these are divided by."""

    def wrong(real, networks, dataset, index=None, **options):
        def add_up(counts):
            return torch.cat([counts[:-1], counts.new_tensor([len(dataset) if index is None else len(index)])])

        return real(networks, dataset, index, **(options | {"add_up": add_up}))

    wrap(patch, evaluate.top_error_rates, wrong)


@of_views
def first_guesses_are_the_least_probable_but_one(patch: Patch) -> None:
    def wrong(real, logits, n):
        return real(logits, n) if n == 1 else torch.cat([real(logits, 1), real(-logits, n - 1)], 1)

    wrap(patch, evaluate._most_probable, wrong)
