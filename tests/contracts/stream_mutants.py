"""Silent mistakes in several processes, in tar shards, and in a stream that is seen once."""

import torch
from catalogue import Catalogue, Patch, rewrite
from torch import Tensor

from meanteacher import costs
from meanteacher.core import UNLABELLED
from meanteacher.data.shards import source
from meanteacher.data.stream import ImageStream
from meanteacher.distributed import rows
from meanteacher.distributed.ranks import Ranks
from meanteacher.methods import pseudo_label, supervised
from meanteacher.online import OnlineTrainer
from meanteacher.online.arrivals import Store
from meanteacher.train import parallel

MUTANTS = Catalogue()
of_processes = MUTANTS.of("several processes")
of_shards = MUTANTS.of("shards")
of_streams = MUTANTS.of("on-line learning")


@of_processes
def gradients_are_summed_over_the_ranks(patch: Patch) -> None:
    """The learning rate is that of the recipe times the number of processes."""
    rewrite(patch, Ranks.average_, "(flat / self.size).split", "flat.split")


@of_processes
def labelled_rows_are_averaged_by_each_rank(patch: Patch) -> None:
    """As when each process computes its own cost: a label weighs more where there are fewer."""
    real = costs.classification_cost

    def wrong(logits: Tensor, labels: Tensor, labelled_share: float | None = None, **options: object) -> Tensor:
        step = rows._step.get()
        if step is None:
            return real(logits, labels, labelled_share, **options)
        own = torch.full_like(labels, UNLABELLED)
        own[step.ranks.rows] = labels[step.ranks.rows]
        return real(logits, own, labelled_share, **options) / step.ranks.size

    for module in (costs, supervised, pseudo_label):
        patch.setattr(module, "classification_cost", wrong)


@of_processes
def outputs_of_the_ranks_stand_one_after_the_other(patch: Patch) -> None:
    """And the labels in the order of the batch."""
    rewrite(patch, Ranks.gather_rows, "gathered.movedim(0, 2)", "gathered.movedim(0, 1)")


@of_processes
def all_ranks_drop_the_same_units(patch: Patch) -> None:
    rewrite(patch, parallel._noise_of, " + str(ranks.rank).encode()", "")


@of_processes
def batch_statistics_of_the_first_rank_are_saved(patch: Patch) -> None:
    rewrite(patch, parallel.merge_buffers, "ranks.average_(means, doing)", "pass")


@of_shards
def classes_are_numbered_anew_in_each_shard(patch: Patch) -> None:
    rewrite(
        patch,
        source._Part._known,
        "{label: self._numbers.setdefault(name, len(self._numbers))",
        "{label: self._numbers.setdefault(name, len(self._numbers)) * 0 + label",
    )


@of_shards
def first_image_of_a_shard_is_looked_for_in_the_one_before(patch: Patch) -> None:
    rewrite(
        patch, source.ShardFiles._shard, "bisect_right(self.ends, position)", "bisect_right(self.ends, position - 1)"
    )


@of_shards
def labels_of_unlabelled_shards_are_shown(patch: Patch) -> None:
    rewrite(patch, source._Part.add, " if not hide_labels else {}", "")


@of_shards
def crops_of_a_resumed_run_begin_again(patch: Patch) -> None:
    rewrite(
        patch,
        ImageStream._begin,
        'f"crop/{role}", step)',
        'f"crop/{role}", step - vars(self).setdefault("first", step))',
    )


@of_streams
def unlabelled_examples_are_kept_and_shown_again(patch: Patch) -> None:
    rewrite(patch, Store.add, "(labels != UNLABELLED).nonzero()", "torch.ones_like(labels).nonzero()")


@of_streams
def position_in_the_stream_is_not_restored(patch: Patch) -> None:
    rewrite(patch, OnlineTrainer.load, 'state.stream["position"],', "None,")
