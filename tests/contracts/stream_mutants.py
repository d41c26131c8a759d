"""Silent mistakes in several processes, in tar shards, and in a stream that is seen once."""

import dataclasses

import numpy as np
import torch
from catalogue import Catalogue, Patch, during, replace, wrap

from meanteacher import costs, distributed, seeding
from meanteacher.core import UNLABELLED
from meanteacher.data import EncodedDataset, encoded, stream
from meanteacher.data.shards import source
from meanteacher.data.shards.index import index_path, load_index
from meanteacher.data.stream import ImageStream
from meanteacher.distributed import Ranks
from meanteacher.online import OnlineTrainer, arrivals
from meanteacher.online.arrivals import Store
from meanteacher.photos.folder import packing
from meanteacher.train import TrainState, parallel

MUTANTS = Catalogue()
of_processes = MUTANTS.of("several processes")
of_shards = MUTANTS.of("shards")
of_streams = MUTANTS.of("on-line learning")


@of_processes
def gradients_are_summed_over_the_ranks(patch: Patch) -> None:
    """The learning rate is that of the recipe times the number of processes."""

    def wrong(real, trained, ranks):
        step = real(trained, ranks)
        return lambda compute: step(compute) * ranks.size

    wrap(patch, parallel.engine, wrong)


@of_processes
def labelled_rows_are_averaged_by_each_rank(patch: Patch) -> None:
    """As when each process computes its own cost: a label weighs more where there are fewer."""

    def wrong(real, logits, labels, *rest, **options):
        step = distributed._step.get()
        if step is None:
            return real(logits, labels, *rest, **options)
        own = torch.full_like(labels, UNLABELLED)
        own[step.ranks.rows] = labels[step.ranks.rows]
        return real(logits, own, *rest, **options) / step.ranks.size

    wrap(patch, costs.classification_cost, wrong)


@of_processes
def outputs_of_the_ranks_stand_one_after_the_other(patch: Patch) -> None:
    """And the labels in the order of the batch."""

    def wrong(real, self, x, n, doing):
        order = [row for rank in range(self.size) for row in range(n)[rank :: self.size]]
        return real(self, x, n, doing).unflatten(0, (-1, n))[:, order].flatten(0, 1)

    wrap(patch, Ranks.gather_rows, wrong)


@of_processes
def all_ranks_drop_the_same_units(patch: Patch) -> None:
    wrap(patch, parallel.seed_networks, lambda real, seed, step, ranks: real(seed, step, Ranks(0, ranks.size)))


@of_processes
def batch_statistics_of_the_first_rank_are_saved(patch: Patch) -> None:
    wrap(patch, Ranks.average_, lambda real, self, tensors, doing: None)


@of_shards
def classes_are_numbered_anew_in_each_shard(patch: Patch) -> None:
    wrap(patch, source._Part._known, lambda real, *given: {label: label for label in real(*given)})


@of_shards
def first_image_of_a_shard_is_looked_for_in_the_one_before(patch: Patch) -> None:
    wrap(patch, source.ShardFiles._shard, lambda real, self, position: real(self, position - 1))


@of_shards
def labels_of_unlabelled_shards_are_shown(patch: Patch) -> None:
    def wrong(real, self, path, index, *, hide_labels=False, **options):
        real(self, path, index, **options)

    wrap(patch, source._Part.add, wrong)


@of_shards
def crops_of_a_resumed_run_begin_again(patch: Patch) -> None:
    def change(inner, self, dataset, step):
        first = vars(self).setdefault("first", step)

        def wrong(seed, purpose, number=0, *device):
            return seeding.generator(seed, purpose, number - (first if purpose.startswith("crop/") else 0), *device)

        inner.setattr(stream, "generator", wrong)

    during(patch, ImageStream._begin, change)


@of_shards
def index_of_a_shard_is_kept_after_its_labels_were_corrected(patch: Patch) -> None:
    def wrong(real, shard, folder):
        made = source._cached(shard, folder, ".index.jsonl")
        return load_index(made) if made.exists() else real(shard, folder)

    wrap(patch, source._index, wrong)


@of_shards
def flipped_byte_of_a_shard_is_trained_on(patch: Patch) -> None:
    replace(patch, source._verify, lambda shard, index, folder: None)


@of_shards
def packing_that_is_resumed_keeps_labels_that_were_corrected(patch: Patch) -> None:
    def change(inner, self, group):
        inner.setattr(self, "photos", dataclasses.replace(self.photos, labels=np.zeros_like(self.photos.labels)))

    during(patch, packing._Packer._packed_from, change)


@of_shards
def packing_that_is_resumed_keeps_photos_that_were_replaced(patch: Patch) -> None:
    """By others of the same size."""
    replace(patch, packing._version, lambda path: str(path.stat().st_size))


@of_shards
def packing_that_is_resumed_keeps_a_damaged_shard(patch: Patch) -> None:
    def change(inner, *given):
        inner.setattr(packing, "file_sha256", lambda path: load_index(index_path(path)).sha256)

    during(patch, packing._Packer._complete, change)


@of_shards
def small_crops_are_enlarged_from_a_reduced_image(patch: Patch) -> None:
    wrap(patch, EncodedDataset._training_reduction, lambda real, self, *sides: 4 * real(self, *sides))


@of_shards
def evaluation_enlarges_a_reduced_image(patch: Patch) -> None:
    patch.setattr(encoded, "REDUCING_GAP", 0.5)


@of_streams
def unlabelled_examples_are_kept_and_shown_again(patch: Patch) -> None:
    def all_of(labels):
        return torch.ones(len(labels), dtype=torch.bool)

    during(patch, Store.add, lambda inner, *given: inner.setattr(arrivals, "labelled_rows", all_of))


@of_streams
def position_in_the_stream_is_not_restored(patch: Patch) -> None:
    def wrong(real, self, folder):
        real(self, folder)
        self.position = None
        return self

    wrap(patch, OnlineTrainer.load, wrong)


@of_streams
def predictions_are_those_of_the_student(patch: Patch) -> None:
    during(
        patch,
        OnlineTrainer.predict_proba,
        lambda inner, *given: inner.setattr(TrainState, "predictor", lambda self, method: self.student),
    )


@of_streams
def kept_examples_are_always_those_of_the_first_step(patch: Patch) -> None:
    wrap(patch, Store.draw, lambda real, self, step: real(self, 0))


@of_streams
def labels_of_kept_examples_are_hidden(patch: Patch) -> None:
    def wrong(real, self, step):
        images, labels, index = real(self, step)
        return images, torch.full_like(labels, -1), index

    wrap(patch, Store.draw, wrong)


@of_streams
def recent_examples_are_the_first_ones(patch: Patch) -> None:
    def wrong(real, self, images, labels, index):
        if len(self) < self.replay.size:
            real(self, images, labels, index)

    wrap(patch, Store.add, wrong)


@of_streams
def uniform_sample_forgets_what_is_old(patch: Patch) -> None:
    """Every new example takes a place."""
    during(patch, Store.add, lambda inner, *given: inner.setattr(torch, "randint", lambda n, *rest, **options: _LAST))


_LAST = torch.tensor([0])


@of_streams
def count_of_examples_begins_again(patch: Patch) -> None:
    def wrong(real, self, folder):
        real(self, folder)
        self.n_seen = 0
        return self

    wrap(patch, OnlineTrainer.load, wrong)


@of_streams
def kept_examples_are_lost_with_an_interruption(patch: Patch) -> None:
    def wrong(real, self, *given):
        real(self, *given)
        self._kept = []

    wrap(patch, Store.load, wrong)
