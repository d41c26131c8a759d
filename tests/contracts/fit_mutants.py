"""Silent mistakes in a fit and in what it leaves: all of them give a model, an error and a page that look right."""

import dataclasses

import numpy as np
from catalogue import Catalogue, Patch, wrap
from scipy.special import softmax

from meanteacher.photos.features import extraction
from meanteacher.photos.fitting import data, estimate, label_next, pretrained, results
from meanteacher.photos.folder import duplicates
from meanteacher.photos.model.bundle import Classifier, Seen

MUTANTS = Catalogue()
of_fit = MUTANTS.of("fit")


@of_fit
def copies_of_a_tested_photo_teach(patch: Patch) -> None:
    def wrong(real, features, labels, n_classes, *, groups, **options):
        return real(features, labels, n_classes, groups=np.arange(len(groups)), **options)

    wrap(patch, estimate.cross_validated, wrong)


@of_fit
def answers_for_labelled_photos_are_those_of_the_model_that_they_taught(patch: Patch) -> None:
    def wrong(real, learned, labels):
        own = softmax(learned.logits / learned.out_of_fold.temperature, axis=1)
        return dataclasses.replace(real(learned, labels), probabilities=own)

    wrap(patch, results.answers_of, wrong)


@of_fit
def outputs_of_the_folds_belong_to_other_photos(patch: Patch) -> None:
    def wrong(real, *given, **options):
        found = real(*given, **options)
        return dataclasses.replace(found, logits=np.roll(found.logits, 1, axis=0))

    wrap(patch, estimate.cross_validated, wrong)


@of_fit
def every_class_weighs_the_same_in_the_estimate(patch: Patch) -> None:
    def wrong(real, tested, frequencies):
        found = real(tested, np.full_like(frequencies, 1 / len(frequencies)))
        return dataclasses.replace(found, frequencies=tuple(frequencies))

    wrap(patch, estimate.error_estimate, wrong)


@of_fit
def frequencies_are_those_of_the_labels(patch: Patch) -> None:
    def wrong(real, probabilities):
        return np.full(probabilities.shape[1], 1 / probabilities.shape[1])

    wrap(patch, estimate.class_frequencies, wrong)


@of_fit
def error_is_that_of_the_labels_alone(patch: Patch) -> None:
    """Of the model that was not kept."""

    def wrong(real, self, features, head, tested, baseline=None):
        return real(self, features, head, baseline or tested, baseline)

    wrap(patch, pretrained.Pretrained._model, wrong)


@of_fit
def files_that_are_no_images_are_learned_from_as_black_ones(patch: Patch) -> None:
    def wrong(real, *given, **options):
        found = real(*given, **options)
        return dataclasses.replace(found, left_out={}, labels=found.photos.labels)

    wrap(patch, data.read_photos, wrong)


@of_fit
def networks_of_the_model_change_places(patch: Patch) -> None:
    def wrong(real, networks, head, size):
        half = head.weight.shape[1] // 2
        if len(networks) > 1:
            head = dataclasses.replace(head, weight=np.roll(head.weight, half, axis=1))
        return real(networks, head, size)

    wrap(patch, pretrained._whole, wrong)


@of_fit
def answers_are_those_of_another_view(patch: Patch) -> None:
    wrap(
        patch,
        extraction._view,
        lambda real, name, size, **options: real("strong-1" if name == "plain" else name, size, **options),
    )


@of_fit
def model_ships_without_its_temperature(patch: Patch) -> None:
    def wrong(real, self, *given, **options):
        real(dataclasses.replace(self, temperature=1.0), *given, **options)

    wrap(patch, Classifier.save, wrong)


@of_fit
def confusion_matrix_is_transposed(patch: Patch) -> None:
    wrap(patch, results.confusion, lambda real, truth, guess, n_classes: real(guess, truth, n_classes))


@of_fit
def errors_of_a_class_are_counted_among_its_answers(patch: Patch) -> None:
    """Of what is called a fern, how much is none, instead of how many ferns are called something else."""

    def wrong(real, fit_data, answers, *rest):
        rows = real(fit_data, answers, *rest)
        labelled = fit_data.labelled
        guesses, labels = answers.guesses[labelled], fit_data.labels[labelled]
        return tuple(
            dataclasses.replace(row, error=float((labels[guesses == k] != k).mean())) for k, row in enumerate(rows)
        )

    wrap(patch, results._per_class, wrong)


@of_fit
def labelled_photos_are_counted_among_the_answers(patch: Patch) -> None:
    def wrong(real, fit_data, answers, *rest):
        return real(fit_data, dataclasses.replace(answers, unlabelled=fit_data.usable), *rest)

    wrap(patch, results._per_class, wrong)


@of_fit
def sure_answers_are_counted_among_labelled_photos(patch: Patch) -> None:
    wrap(patch, results._sure, lambda real, unlabelled, *rest: real(unlabelled[:0], *rest))


@of_fit
def photos_that_agree_with_their_labels_are_shown_as_doubtful(patch: Patch) -> None:
    def wrong(real, fit_data, answers, *rest):
        return real(fit_data, dataclasses.replace(answers, doubts=1 - answers.doubts), *rest)

    wrap(patch, results._gallery, wrong)


@of_fit
def answers_of_unreadable_files_push_the_others_down(patch: Patch) -> None:
    def wrong(real, fit_data, answers):
        return real(fit_data, dataclasses.replace(answers, probabilities=np.roll(answers.probabilities, 1, axis=0)))

    wrap(patch, results._prediction_rows, wrong)


@of_fit
def images_with_a_label_are_asked_about_next(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, *rest, **options):
        return real(probabilities, np.flatnonzero(~np.isnan(probabilities[:, 0])), *rest, **options)

    wrap(patch, label_next.label_next, wrong)


@of_fit
def copies_of_one_image_are_asked_about_next(patch: Patch) -> None:
    def wrong(real, probabilities, candidates, groups, *rest, **options):
        return real(probabilities, candidates, np.arange(len(groups)), *rest, **options)

    wrap(patch, label_next.label_next, wrong)


@of_fit
def copies_are_not_recognised(patch: Patch) -> None:
    wrap(
        patch,
        duplicates.find_duplicates,
        lambda real, images: dataclasses.replace(real(images), near=np.arange(len(images))),
    )


@of_fit
def images_that_taught_the_model_judge_it_as_new_ones(patch: Patch) -> None:
    wrap(patch, Seen.kinds, lambda real, self, digests: np.full_like(real(self, digests), "new"))
