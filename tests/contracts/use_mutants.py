"""Silent mistakes around a fit: in reading photos and labels, in a model as files, and on the labelling page."""

import dataclasses

import numpy as np
from catalogue import Catalogue, Patch, during, replace, wrap
from PIL import Image

from meanteacher.core import UNLABELLED
from meanteacher.files import images
from meanteacher.photos.features import onnx_graph
from meanteacher.photos.folder import cache, find, tables
from meanteacher.photos.folder.tables import NEXT
from meanteacher.photos.label import opening, page
from meanteacher.photos.label.session import Session
from meanteacher.photos.model import bundle, evaluate, export, manifest, predict
from meanteacher.photos.model.images import Images

MUTANTS = Catalogue()
of_photos = MUTANTS.of("photos")
of_models = MUTANTS.of("model files")
of_export = MUTANTS.of("export")
of_labelling = MUTANTS.of("labelling page")


# --- photos and their labels ------------------------------------------------------------------------------------------


@of_photos
def turn_of_the_camera_is_ignored(patch: Patch) -> None:
    wrap(patch, images._upright, lambda real, image, orientation: real(image, 1))


@of_photos
def colours_are_in_the_order_of_another_library(patch: Patch) -> None:
    wrap(patch, images.decode, lambda real, source, size: real(source, size)[..., ::-1])


@of_photos
def transparent_pixels_keep_their_hidden_colour(patch: Patch) -> None:
    wrap(patch, images._opaque, lambda real, image: real(image.convert("RGB")))


@of_photos
def images_are_resized_with_another_filter(patch: Patch) -> None:
    patch.setattr(images, "FILTER", Image.Resampling.BICUBIC)


@of_photos
def jpeg_is_decoded_smaller_than_it_is_shown(patch: Patch) -> None:
    wrap(patch, images.decode_whole, lambda real, source, reduction: real(source, lambda *sides: 8 * reduction(*sides)))


@of_photos
def changed_file_keeps_its_old_pixels(patch: Patch) -> None:
    replace(patch, cache._stamp, lambda path: (0, 0))


@of_photos
def kept_pixels_are_found_by_position_instead_of_name(patch: Patch) -> None:
    """Once a file is added, every image behind it has the pixels of its neighbour."""

    def wrong(real, out, start, photos, size, stamps, old, progress):
        if old is not None:
            n = len(old.names)
            old = dataclasses.replace(old, names=photos.names[:n], stamps=stamps[:n])
        return real(out, start, photos, size, stamps, old, progress)

    wrap(patch, cache._fill, wrong)


@of_photos
def classes_are_numbered_as_they_are_met_and_named_as_they_are_sorted(patch: Patch) -> None:
    def wrong(real, root, names, known, *rest, **options):
        met = list(dict.fromkeys(label for label in known if label))
        labels = np.array([met.index(label) if label else UNLABELLED for label in known])
        return dataclasses.replace(real(root, names, known, *rest, **options), labels=labels)

    wrap(patch, find._photos, wrong)


@of_photos
def labels_stand_one_row_below_their_images(patch: Patch) -> None:
    def wrong(real, path):
        rows = real(path)
        return [row._replace(label=rows[k - 1].label) for k, row in enumerate(rows)]

    wrap(patch, tables.read_labels, wrong)


@of_photos
def first_row_of_a_labels_file_is_lost(patch: Patch) -> None:
    wrap(patch, tables.read_table, lambda real, *given, **options: real(*given, **options)[1:])


@of_photos
def one_of_two_labels_of_an_image_wins_in_silence(patch: Patch) -> None:
    wrap(patch, tables.read_labels, lambda real, path: list({row.path: row for row in real(path)}.values()))


@of_photos
def labels_file_overrules_the_folder_in_silence(patch: Patch) -> None:
    wrap(patch, find._rows_of, lambda real, file, root, folders: real(file, root, dict.fromkeys(folders, "")))


@of_photos
def arrays_with_channels_first_lie_on_their_side(patch: Patch) -> None:
    def wrong(real, path, images):
        channels_first = images.ndim == 4 and images.shape[1] in (1, 3)
        return real(path, images.swapaxes(2, 3) if channels_first else images)

    wrap(patch, tables._images, wrong)


# --- a model as files -------------------------------------------------------------------------------------------------


@of_models
def classes_of_a_model_are_sorted_when_it_is_saved(patch: Patch) -> None:
    def wrong(real, model, weights):
        return real(dataclasses.replace(model, class_names=tuple(sorted(model.class_names))), weights)

    wrap(patch, manifest.manifest_of, wrong)


@of_models
def damaged_weights_are_used(patch: Patch) -> None:
    replace(patch, bundle._check_digest, lambda path, content, sha256: None)


@of_models
def model_is_read_without_its_normalisation(patch: Patch) -> None:
    def wrong(real, self, tensors):
        return real(self, {name: tensor for name, tensor in tensors.items() if not name.startswith("normalise.")})

    wrap(patch, manifest.Manifest.build, wrong)


@of_models
def probabilities_have_no_temperature(patch: Patch) -> None:
    wrap(
        patch,
        predict.ClassifierModule.__init__,
        lambda real, self, normalise, network, temperature: real(self, normalise, network, 1.0),
    )


@of_models
def confidences_of_second_and_third_guess_change_places(patch: Patch) -> None:
    def wrong(real, labels, probabilities):
        first, sure, second, its, third, other = real(labels, probabilities)
        return [first, sure, second, other, third, its]

    wrap(patch, predict.guesses, wrong)


@of_models
def normalisation_in_onnx_loses_its_shift(patch: Patch) -> None:
    def wrong(writer, x, scale, shift, *rest):
        return onnx_graph._batch_norm(writer, x, scale, None, *rest)

    patch.setitem(onnx_graph._WRITERS, "native_batch_norm.default", wrong)


@of_models
def colours_of_photos_to_predict_are_in_another_order(patch: Patch) -> None:
    wrap(patch, Images.pixels, lambda real, self, position, size: real(self, position, size)[..., ::-1])


@of_models
def names_of_the_first_photos_stand_beside_every_chunk(patch: Patch) -> None:
    def change(inner, model, images, **options):
        first = bundle.as_images(images).names
        wrap(inner, predict.rows_of, lambda real, names, *rest, **more: real(first[: len(names)], *rest, **more))

    during(patch, bundle.Classifier.predict, change)


@of_models
def unreadable_photos_are_counted_as_a_class(patch: Patch) -> None:
    def wrong(real, *given, **options):
        found = real(*given, **options)
        return dataclasses.replace(found, classes=found.classes.clip(min=0))

    wrap(patch, bundle.Classifier.predict, wrong)


@of_models
def labels_are_numbered_by_the_folder_instead_of_the_model(patch: Patch) -> None:
    replace(patch, evaluate._labels_of_model, lambda model, found: found.labels)


@of_models
def confusions_of_an_evaluation_are_transposed(patch: Patch) -> None:
    def wrong(real, *given):
        found = real(*given)
        return found | {"confusion": np.transpose(found["confusion"]).tolist()}

    wrap(patch, evaluate._scores, wrong)


@of_models
def unreadable_photos_are_judged_as_black_ones(patch: Patch) -> None:
    real = evaluate.classify

    def wrong(*given, **options):
        return (dataclasses.replace(chunk, unreadable={}) for chunk in real(*given, **options))

    patch.setattr(evaluate, "classify", wrong)


@of_models
def error_of_a_class_is_that_of_its_predictions(patch: Patch) -> None:
    wrap(patch, evaluate._error, lambda real, confusion, label=None: real(confusion.T, label))


@of_models
def metadata_of_an_export_sort_the_classes(patch: Patch) -> None:
    def wrong(real, model):
        return real(model) | {"class_names": sorted(model.class_names)}

    wrap(patch, export.metadata, wrong)


@of_export
def exported_model_has_no_temperature(patch: Patch) -> None:
    wrap(patch, export._exported, lambda real, model: real(dataclasses.replace(model, temperature=1.0)))


# --- the labelling page -----------------------------------------------------------------------------------------------


@of_labelling
def label_is_saved_for_the_next_image(patch: Patch) -> None:
    def wrong(real, self, name, label, chosen):
        names = self.photos.names
        following = names[(names.index(name) + 1) % len(names)]
        return real(self, following if label and name not in self._given else name, label, chosen)

    wrap(patch, Session._append, wrong)


@of_labelling
def undo_takes_back_the_first_answer(patch: Patch) -> None:
    wrap(patch, Session._last, lambda real, self, window: 0 if self._done else None)


@of_labelling
def undo_takes_back_the_answer_of_another_window(patch: Patch) -> None:
    wrap(patch, Session._last, lambda real, self, window: len(self._done) - 1 if self._done else None)


@of_labelling
def undo_leaves_the_label_in_the_file(patch: Patch) -> None:
    wrap(
        patch,
        Session._append,
        lambda real, self, name, label, chosen: real(self, name, label, chosen) if label else None,
    )


@of_labelling
def undo_deletes_what_another_program_wrote(patch: Patch) -> None:
    def wrong(real, self, name, label, chosen):
        return real(self, name, "" if name in self._given and self._given[name].chosen == NEXT else label, chosen)

    wrap(patch, Session._append, wrong)


@of_labelling
def undo_asks_about_the_next_image(patch: Patch) -> None:
    def wrong(real, self, window):
        real(self, window)
        self._shown.pop(window, None)

    wrap(patch, Session.undo, wrong)


@of_labelling
def skipped_image_takes_the_label_of_the_guess(patch: Patch) -> None:
    def wrong(real, self, window, index):
        guess = self._shown[window].guess
        real(self, window, index)
        self._refresh()
        self._append(self.photos.names[index], guess, NEXT)

    wrap(patch, Session.skip, wrong)


@of_labelling
def rows_of_another_program_are_overwritten(patch: Patch) -> None:
    def wrong(real, self):
        self.file.unlink(missing_ok=True)
        return real(self)

    wrap(patch, Session._refresh, wrong)


@of_labelling
def labels_of_the_fit_are_missing_in_the_new_file(patch: Patch) -> None:
    def wrong(real, self):
        if not self.file.exists():
            self._given = {}
        return real(self)

    wrap(patch, Session._refresh, wrong)


@of_labelling
def two_windows_share_a_question(patch: Patch) -> None:
    wrap(patch, Session.state, lambda real, self, window: real(self, "all"))
    wrap(patch, Session.answer, lambda real, self, window, index, label: real(self, "all", index, label))
    wrap(patch, Session.undo, lambda real, self, window: real(self, "all"))
    wrap(patch, Session.skip, lambda real, self, window, index: real(self, "all", index))


@of_labelling
def none_of_these_becomes_a_class(patch: Patch) -> None:
    patch.setattr(find.Given, "is_none", property(lambda self: False))


@of_labelling
def first_answer_about_an_image_counts(patch: Patch) -> None:
    wrap(patch, tables.read_labels, lambda real, path: list({row.path: row for row in real(path)[::-1]}.values()))


@of_labelling
def chosen_image_counts_as_drawn_at_random(patch: Patch) -> None:
    wrap(
        patch, tables.append_label, lambda real, path, columns, row: real(path, columns, row._replace(chosen="random"))
    )


@of_labelling
def review_offers_labels_that_the_model_confirms(patch: Patch) -> None:
    def wrong(real, run, photos, known):
        return real(run, photos, {name: given._replace(label="") for name, given in known.items()})

    wrap(patch, opening._disagreements, wrong)


@of_labelling
def keys_are_given_by_position(patch: Patch) -> None:
    """With classes 0 to 9, pressing 7 saves 6."""
    replace(
        patch,
        page.class_keys,
        lambda names, before=None: {name: ("1234567890abcdefghijklmnopqrstvwxyz"[k],) for k, name in enumerate(names)},
    )
