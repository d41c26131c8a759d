"""Silent mistakes around a fit: in reading photos and labels, in a model as files, and on the labelling page."""

import numpy as np
from catalogue import Catalogue, Patch, replace, rewrite

from meanteacher.photos.features import onnx_graph
from meanteacher.photos.folder import cache, decode, find, tables
from meanteacher.photos.label import page, session
from meanteacher.photos.model import bundle, evaluate, export, manifest, predict

MUTANTS = Catalogue()
of_photos = MUTANTS.of("photos")
of_models = MUTANTS.of("model files")
of_export = MUTANTS.of("export")
of_labelling = MUTANTS.of("labelling page")


# --- photos and their labels ------------------------------------------------------------------------------------------


@of_photos
def turn_of_the_camera_is_ignored(patch: Patch) -> None:
    rewrite(patch, decode._upright_rgb, "if orientation == 1", "if True")


@of_photos
def colours_are_in_the_order_of_another_library(patch: Patch) -> None:
    rewrite(patch, decode.decode, "reshape(size, size, 3)", "reshape(size, size, 3)[..., ::-1]")


@of_photos
def transparent_pixels_keep_their_hidden_colour(patch: Patch) -> None:
    rewrite(patch, decode._upright_rgb, 'if image.mode == "RGBA":', "if False:")


@of_photos
def images_are_resized_with_another_filter(patch: Patch) -> None:
    rewrite(patch, decode.resize_to_square, "FILTER", "Image.Resampling.BICUBIC")


@of_photos
def changed_file_keeps_its_old_pixels(patch: Patch) -> None:
    rewrite(patch, cache.decode_all, " and old.stamps == stamps", "")


@of_photos
def kept_pixels_are_found_by_position_instead_of_name(patch: Patch) -> None:
    """Once a file is added, every image behind it has the pixels of its neighbour."""
    rewrite(patch, cache._fill, "image[:] = old.images[row]", "image[:] = old.images[min(k, len(rows) - 1)]")


@of_photos
def classes_are_numbered_as_they_are_met_and_named_as_they_are_sorted(patch: Patch) -> None:
    rewrite(patch, find._photos, "enumerate(every)", "enumerate(dict.fromkeys(label for label in known if label))")


@of_photos
def labels_stand_one_row_below_their_images(patch: Patch) -> None:
    real = tables.read_labels

    def wrong(path):
        rows = real(path)
        return [row._replace(label=rows[k - 1].label) for k, row in enumerate(rows)]

    replace(patch, real, wrong)


@of_photos
def first_row_of_a_labels_file_is_lost(patch: Patch) -> None:
    rewrite(patch, tables.read_table, "return rows[1:]", "return rows[2:]")


@of_photos
def one_of_two_labels_of_an_image_wins_in_silence(patch: Patch) -> None:
    rewrite(patch, find._labels_of, "if before.label != row.label:", "if False:")


@of_photos
def labels_file_overrules_the_folder_in_silence(patch: Patch) -> None:
    rewrite(patch, find._labels_of, 'if known[name] not in ("", row.label):', "if False:")


@of_photos
def arrays_with_channels_first_lie_on_their_side(patch: Patch) -> None:
    rewrite(patch, tables._images, "transpose(0, 2, 3, 1)", "transpose(0, 3, 2, 1)")


# --- a model as files -------------------------------------------------------------------------------------------------


@of_models
def classes_of_a_model_are_sorted_when_it_is_saved(patch: Patch) -> None:
    rewrite(patch, manifest.manifest_of, "list(model.class_names)", "sorted(model.class_names)")


@of_models
def damaged_weights_are_used(patch: Patch) -> None:
    rewrite(patch, bundle._check_digest, "hashlib.sha256(content).hexdigest() != sha256", "False")


@of_models
def model_is_read_without_its_normalisation(patch: Patch) -> None:
    rewrite(patch, manifest.Manifest.build, "setattr(normalise, name, tensor)", "pass")


@of_models
def probabilities_have_no_temperature(patch: Patch) -> None:
    rewrite(patch, predict.ClassifierModule.forward, "logits / self.temperature", "logits")


@of_models
def folding_ignores_scales_that_turn_the_largest_into_the_smallest(patch: Patch) -> None:
    replace(patch, onnx_graph._has_negative, lambda scale: False)


@of_models
def folded_normalisation_loses_its_shift(patch: Patch) -> None:
    rewrite(patch, onnx_graph._fold, "* scale + shift", "* scale")


@of_models
def colours_of_photos_to_predict_are_in_another_order(patch: Patch) -> None:
    rewrite(patch, predict.classify, "images.pixels(k, size)", "images.pixels(k, size)[..., ::-1]")


@of_models
def names_of_the_first_photos_stand_beside_every_chunk(patch: Patch) -> None:
    rewrite(patch, predict.predict, "given.names[rows]", "given.names[: len(chunk.index)]")


@of_models
def unreadable_photos_are_counted_as_a_class(patch: Patch) -> None:
    rewrite(patch, predict.predict, "row not in chunk.unreadable for row", "True for row")


@of_models
def labels_are_numbered_by_the_folder_instead_of_the_model(patch: Patch) -> None:
    rewrite(patch, evaluate._labels_of_model, "return table[found.labels]", "return found.labels")


@of_models
def confusions_of_an_evaluation_are_transposed(patch: Patch) -> None:
    real = evaluate._scores

    def wrong(*given):
        told = real(*given)
        return told | {"confusion": np.transpose(told["confusion"]).tolist()}

    replace(patch, real, wrong)


@of_models
def unreadable_photos_are_judged_as_black_ones(patch: Patch) -> None:
    rewrite(patch, evaluate.evaluate, "[k not in unreadable for k in labelled]", "[True for k in labelled]")


@of_models
def error_of_a_class_is_that_of_its_predictions(patch: Patch) -> None:
    rewrite(patch, evaluate._error, "confusion[[label]]", "confusion[:, [label]]")


@of_models
def metadata_of_an_export_sort_the_classes(patch: Patch) -> None:
    rewrite(patch, export.metadata, '"class_names": model.class_names', '"class_names": sorted(model.class_names)')


@of_export
def exported_model_has_no_temperature(patch: Patch) -> None:
    rewrite(
        patch,
        export._exported,
        "model.module()",
        "type(model.module())(model.normalise, model.network, 1.0).eval()",
    )


# --- the labelling page -----------------------------------------------------------------------------------------------


@of_labelling
def label_is_saved_for_the_next_image(patch: Patch) -> None:
    rewrite(
        patch,
        session.Session.answer,
        "self._write(self._name(position), label)",
        "self._write(self._name((position + 1) % len(self.questions)), label)",
    )


@of_labelling
def undo_takes_back_the_first_answer(patch: Patch) -> None:
    rewrite(patch, session.Session.undo, "self._done[-1]", "self._done[0]", "self._done.pop()", "self._done.pop(0)")


@of_labelling
def undo_leaves_the_label_in_the_file(patch: Patch) -> None:
    rewrite(patch, session.Session.undo, "self._write(name, last.before, instead_of=self._answers[name])", "pass")


@of_labelling
def undo_deletes_what_another_sitting_wrote(patch: Patch) -> None:
    rewrite(patch, session.Session.undo, "self._write(name, last.before,", "self._write(name, None,")


@of_labelling
def undo_asks_about_the_next_image(patch: Patch) -> None:
    rewrite(patch, session.Session.undo, "self._to_ask.appendleft(", "self._to_ask.append(")


@of_labelling
def skipped_image_takes_the_label_of_the_guess(patch: Patch) -> None:
    rewrite(
        patch,
        session.Session.skip,
        "self._skipped.append(position)",
        "self._skipped.append(position)\n            self._write(self._name(position), self.questions[position].guess)",
    )


@of_labelling
def rows_of_another_sitting_are_overwritten(patch: Patch) -> None:
    rewrite(patch, session.Session._write, "_labels_in(self.file) if self.file.exists() else ", "")


@of_labelling
def labels_of_the_fit_are_missing_in_the_new_file(patch: Patch) -> None:
    rewrite(patch, session.Session._write, "else self._known | self._answers", "else dict(self._answers)")


@of_labelling
def keys_are_given_by_position(patch: Patch) -> None:
    """With classes 0 to 9, pressing 7 saves 6."""
    replace(
        patch,
        page.class_keys,
        lambda names, before=None: {name: ("1234567890abcdefghijklmnopqrstvwxyz"[k],) for k, name in enumerate(names)},
    )
