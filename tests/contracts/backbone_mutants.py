"""Silent mistakes in a fit on a pretrained network: the model is good with any of them, and the answer is wrong."""

import dataclasses

from catalogue import Catalogue, Patch, wrap

from meanteacher import costs
from meanteacher.photos.fitting import crossval, stands, tail

MUTANTS = Catalogue()
on_backbone = MUTANTS.of("fit on a pretrained network")


@on_backbone
def labels_of_judging_photos_spread_in_the_graph(patch: Patch) -> None:
    wrap(patch, stands.OnBackbone._spread, lambda real, self, held_out: real(self, held_out[:0]))


@on_backbone
def mean_teacher_starts_from_all_labels(patch: Patch) -> None:
    def wrong(real, self, method, held_out):
        return real(self, method, held_out[:0] if method == "mean-teacher" else held_out)

    wrap(patch, stands.OnBackbone._head, wrong)


@on_backbone
def mean_teacher_starts_from_the_labels_alone(patch: Patch) -> None:
    wrap(patch, stands.OnBackbone._head, lambda real, self, method, held_out: real(self, "supervised", held_out))


@on_backbone
def baseline_starts_from_labels_that_have_spread_to_unlabelled_photos(patch: Patch) -> None:
    """As good as the unlabelled photos make it, so that they seem to add nothing."""
    wrap(patch, stands.OnBackbone._head, lambda real, self, method, held_out: real(self, "mean-teacher", held_out))


@on_backbone
def baseline_is_the_tuned_network_where_the_linear_classifier_is_better(patch: Patch) -> None:
    def wrong(real, *given, **options):
        found, both = real(*given, **options)
        return (dataclasses.replace(found, wrong=both["tuned"], untrained=False) if both else found), both

    wrap(patch, crossval.CrossValidation.evaluate, wrong)


@on_backbone
def tuned_network_ships_with_the_error_of_the_linear_classifier(patch: Patch) -> None:
    patch.setattr(crossval.EvaluationResult, "kept", lambda self, model: model)


@on_backbone
def teacher_sees_the_strong_views_and_the_student_the_weak_ones(patch: Patch) -> None:
    def wrong(real, *given, **options):
        made = real(*given, **options)
        views = {"student": made.views["teacher"], "teacher": made.views["student"]}
        return dataclasses.replace(made, views=views)

    wrap(patch, tail.tail_training, wrong)


@on_backbone
def alignment_gives_more_to_the_class_that_has_most(patch: Patch) -> None:
    wrap(patch, costs.aligned, lambda real, logits, strength: real(logits, -strength))


@on_backbone
def predictions_have_the_pretrained_layers_behind_the_cut(patch: Patch) -> None:
    """The classifier is the trained one, the layers before it are not."""

    def wrong(real, self, network, normalise):
        whole, *rest = real(self, network, normalise)
        tail.Tail([network.head]).fill(whole, self.backbone.network())
        return whole, *rest

    wrap(patch, stands.OnBackbone.whole, wrong)
