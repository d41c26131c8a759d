"""Silent mistakes in a fit on a pretrained network: the model is good with any of them, and the answer is wrong."""

from catalogue import Catalogue, Patch, rewrite

from meanteacher import costs
from meanteacher.photos.fitting import crossval, stands, tail

MUTANTS = Catalogue()
on_backbone = MUTANTS.of("fit on a pretrained network")


@on_backbone
def labels_of_judging_photos_spread_in_the_graph(patch: Patch) -> None:
    rewrite(
        patch, stands.OnBackbone._spread, "self.data.training_rows(held_out)", "self.data.training_rows(held_out[:0])"
    )


@on_backbone
def mean_teacher_starts_from_all_labels(patch: Patch) -> None:
    rewrite(patch, stands.OnBackbone._head, "self._spread(held_out)", "self._spread(held_out[:0])")


@on_backbone
def mean_teacher_starts_from_the_labels_alone(patch: Patch) -> None:
    rewrite(patch, stands.OnBackbone._head, 'if method == "mean-teacher" and len(unlabelled):', "if False:")


@on_backbone
def baseline_starts_from_labels_that_have_spread_to_unlabelled_photos(patch: Patch) -> None:
    """As good as the unlabelled photos make it, so that they seem to add nothing."""
    rewrite(patch, stands.OnBackbone._head, 'method == "mean-teacher" and len(unlabelled)', "len(unlabelled)")


@on_backbone
def baseline_is_the_tuned_network_where_the_linear_classifier_is_better(patch: Patch) -> None:
    rewrite(patch, crossval.CrossValidation.evaluate, "if probe_wrong.sum() <= wrong.sum():", "if False:")


@on_backbone
def tuned_network_ships_with_the_error_of_the_linear_classifier(patch: Patch) -> None:
    rewrite(patch, crossval.EvaluationResult.kept, "self.untrained and model.start is not None", "False")


@on_backbone
def teacher_sees_the_strong_views_and_the_student_the_weak_ones(patch: Patch) -> None:
    rewrite(
        patch,
        tail.tail_recipe,
        '{"student": strong, "teacher": CachedView(0, n_weak)}',
        '{"student": CachedView(0, n_weak), "teacher": strong}',
    )


@on_backbone
def alignment_gives_more_to_the_class_that_has_most(patch: Patch) -> None:
    rewrite(patch, costs.aligned, "logits - strength", "logits + strength")


@on_backbone
def predictions_have_the_pretrained_layers_behind_the_cut(patch: Patch) -> None:
    """The classifier is the trained one, the layers before it are not."""
    rewrite(
        patch,
        stands.OnBackbone.whole,
        "network.fill(whole, list(self.backbone.network())[: self.plan.cut])",
        "Tail([network.head]).fill(whole, self.backbone.network())",
    )
