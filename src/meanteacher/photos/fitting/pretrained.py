"""Features and heads: frozen networks turn each view of each photo into a vector, once, and a linear head learns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from meanteacher.core import UNLABELLED, InputError, MissingBackboneError, Problem
from meanteacher.formats import count
from meanteacher.models import LitePairSpec, LiteSpec, ModelSpec
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.features.compute import one_network_per_thread
from meanteacher.photos.features.extraction import Extraction, Features, computed, views
from meanteacher.photos.fitting.data import FitData, Learned
from meanteacher.photos.fitting.estimate import N_FOLDS, FitHead, OutOfFold, cross_validated, known_photos, label_doubts
from meanteacher.photos.fitting.heads import Head, fit_head, logistic_regression
from meanteacher.photos.fitting.work import Work
from meanteacher.seeding import derive_seed
from meanteacher.stats import difference_on_images
from meanteacher.train import Callback
from meanteacher.views.normalise import per_channel

_DEFAULT = ("lite0", "lite2")
SMALL = 48
"""Images of at most this side may be digits or letters, on which a network from scratch can be better."""
_SIZE, _SMALL_SIZE = 224, 160
"""Pixels per side that photos are resized to. Small images gain nothing from being enlarged further."""
_FIRST_SHARE = 0.7
"""Share of the minutes after which the first view ends, however many photos it has reached: the head comes next."""
_SECOND, _STRONG = 2.5, 1.4
"""Times that the second network takes, and a strong view, as long as none has been computed."""
_SEED = 0


def choose_backbones(wanted: str, callback: Callback) -> tuple[Backbone, ...]:
    """The pretrained networks of a name: one, for "auto" the two that are computed side by side, or none."""
    if wanted != "auto":
        return () if wanted == "none" else (find_backbone(wanted),)
    found: tuple[Backbone, ...] = ()
    try:
        for name in _DEFAULT:
            found += (find_backbone(name),)
    except MissingBackboneError as error:
        if not found:
            callback.on_message(
                "No pretrained network is there, so a small one is trained from scratch; on photos the pretrained one "
                f"makes less than half as many errors. {error}"
            )
    return found


def resumed_backbones(names: Sequence[str], wanted: str, out: Path) -> tuple[Backbone, ...]:
    """The networks of an interrupted fit.

    Its folder may be anyone's, so a name in it alone neither imports a library nor downloads or opens anything.
    """
    for name in names:
        if name not in (*_DEFAULT, wanted, str(Path(wanted))):
            raise InputError(
                f"{out} was begun with the network {name!r}. To continue with it, name it as backbone (--backbone), "
                "too: what a folder names is not loaded unasked."
            )
    return tuple(map(find_backbone, names))


def pretrained_size(backbones: tuple[Backbone, ...], side: int) -> int:
    """Pixels per side of the photos for these networks; `side` is the shorter one of the files."""
    if not isinstance(backbones[0].spec, LiteSpec):
        return backbones[0].size
    return _SMALL_SIZE if side <= SMALL else _SIZE


@dataclass(slots=True, eq=False, kw_only=True)
class Pretrained:
    """Learns from photos with one or two pretrained networks."""

    data: FitData
    backbones: tuple[Backbone, ...]
    work: Work
    features: dict[tuple[str, str], Features] = field(default_factory=dict)
    """Network and view -> the features that are complete."""
    rows: NDArray[np.int64] = field(init=False)
    """Positions of the photos that were looked at in time, of which all labelled ones are."""
    groups: NDArray[np.int64] = field(init=False)
    """Of these photos, equal for those that belong together."""
    doubts: NDArray[np.float64] | None = None
    """[N], of the labels, once they are tested."""
    n_taught: int = 0
    """Number of networks whose features the last tested head has."""

    def rounds(self) -> Iterator[Learned]:
        """Better and better models: from the labels alone, from all photos, and from whatever else the time allows.

        The first two see the photos themselves with the first network. A model is left out if it is clearly worse by
        the same cross-validation.
        """
        self._first_view()
        best = self._labels_alone()
        yield best
        if (found := self._learned(best)) is not best:
            yield (best := found)
        if self._more_features() and (found := self._learned(best)) is not best:
            yield found

    # --- features -----------------------------------------------------------------------------------------------------

    def look_at(self, rows: np.ndarray, *, ends: float = float("inf")) -> Features:
        """The features of the photos themselves by the first network; more rows may be computed than these."""
        return self._extracted(self.backbones[0], "plain", rows, ends=ends)

    def _first_view(self) -> None:
        """Look at the photos themselves, those with a label first."""
        data, work = self.data, self.work
        others = np.setdiff1d(data.usable, data.labelled)
        order = np.concatenate([data.labelled, np.random.default_rng(_SEED).permutation(others)])
        with work.piece(_piece(self.backbones[0], "plain")):
            values = self.look_at(order, ends=work.ends - (1 - _FIRST_SHARE) * 60 * work.record.minutes)
        reached = computed(values[order])
        if not reached[: len(data.labelled)].all():
            raise InputError(self._too_few_minutes(n_reached=int(reached.sum())))
        self.features[self.backbones[0].name, "plain"] = values
        self.rows = np.sort(order[reached])
        known = np.zeros(values.shape, np.float32)
        known[self.rows] = values[self.rows]
        self.groups = data.groups(known)[self.rows]

    def _too_few_minutes(self, *, n_reached: int) -> str:
        """Why there is no model, and the minutes that would do, if the speed of the machine is known."""
        work, n = self.work, len(self.data.labelled)
        advice = "Set minutes (--minutes) to a larger number, or end other programs: none of the images was reached."
        if n_reached:
            before = work.took("reading")  # the same for any number of images that are looked at
            needed = (before + (work.spent() - before) * n / n_reached) / _FIRST_SHARE
            advice = f"Set minutes (--minutes) to at least {max(ceil(needed / 60), int(work.record.minutes) + 1)}."
        return (
            f"The time (--minutes {work.record.minutes:g}) is too short for {count(n, 'labelled image')} on this "
            f"machine at its present load. {advice}"
        )

    def _more_features(self) -> bool:
        """Compute the second network, then further views, each only if it and the last head can finish in time."""
        n_before = len(self.features)
        for second in self.backbones[1:]:
            self._step([second], "plain")
        used, _ = self._used()
        for view in self._views()[1:]:
            if not self._step(used, view):
                break
        return len(self.features) > n_before

    def _views(self) -> tuple[str, ...]:
        return views(flip=self.work.record.flip)

    def _step(self, networks: list[Backbone], view: str) -> bool:
        """One view by these networks, if it can finish in time. Returns whether it is there."""
        n_networks = len({name for name, _ in self.features} | {network.name for network in networks})
        afterwards = sum(self._head_seconds(n_networks)) + self.work.took("results")
        if not self.work.fits(*(self._expected(network, view) for network in networks), afterwards):
            return False
        found = {}
        for network in networks:
            with self.work.piece(_piece(network, view)):
                values = self._extracted(network, view, self.rows, ends=self.work.ends - afterwards)
            if not computed(values[self.rows]).all():
                return False
            found[network.name, view] = values
        self.features |= found
        return True

    def _expected(self, network: Backbone, view: str) -> float:
        """The seconds that a view is expected to take, by the last one of the same network."""
        if known := self.work.took(_piece(network, view)):
            return known  # a resumed fit has it already
        times = [self.work.took(_piece(network, name)) for name in self._views()]
        strong = _STRONG if view.startswith("strong") and not times[-3] else 1.0
        plain = _SECOND * self.work.took(_piece(self.backbones[0], "plain"))
        return strong * max((time for time in times if time), default=plain)

    def _extracted(self, network: Backbone, view: str, order: np.ndarray, *, ends: float) -> Features:
        extraction = Extraction(
            images=self.data.decoded.images,
            backbone=network,
            view=view,
            flip=self.work.record.flip,
            file=self.work.cache / "features" / self.data.pixels_digest(),
            order=order,
            device=self.work.device,
        )
        what = "Looking at the photos" if view == "plain" else f"Looking again ({view})"
        return extraction.run(
            progress=partial(self.work.callback.on_progress, f"{what}, {network.title}"),
            should_stop=self.work.callback.should_stop,
            ends=ends,
        )

    # --- heads --------------------------------------------------------------------------------------------------------

    def _labels_alone(self) -> Learned:
        """Logistic regression on the features that are there, which takes a moment."""
        features = self._stacked()
        with self.work.piece("labels alone"):
            head, tested = self._fitted(features, labels_alone), self._tested(features, labels_alone)
        return self._model(features, head, tested)

    def _learned(self, earlier: Learned) -> Learned:
        """The head that learns from all photos, if it and its tests can finish in time and it is not clearly worse."""
        work, features, n_networks = self.work, self._stacked(), len(self._used()[0])
        head_seconds, test_seconds = self._head_seconds(n_networks)
        if not work.fits(head_seconds, test_seconds, work.took("results")):
            return earlier
        work.callback.on_message("Learning from the labels and from the other photos …")
        with work.piece("head"):
            head = self._fitted(features, fit_head)
        if not work.fits(test_seconds or N_FOLDS * work.took("head"), work.took("results")):
            return earlier
        with work.piece("tests"):
            baseline, tested = (self._tested(features, recipe) for recipe in (labels_alone, fit_head))
            if self.doubts is None:
                self.doubts = np.full(len(self.data.labels), np.nan)
                with one_network_per_thread():
                    self.doubts[self.rows] = label_doubts(
                        features[0], self._labels, self._n_classes, groups=self.groups, seed=_SEED
                    )
        self.n_taught = n_networks
        if is_worse(tested, baseline) or is_worse(tested, earlier.out_of_fold):
            return earlier
        return self._model(features, head, tested, baseline)

    def _head_seconds(self, n_networks: int) -> tuple[float, float]:
        """The expected seconds of a head and of its tests: in proportion to the features, whatever the views."""
        more = n_networks / max(1, self.n_taught)
        return more * self.work.took("head"), more * self.work.took("tests")

    def _fitted(self, features: Features, recipe: FitHead) -> Head:
        fit = partial(recipe, features, self._labels, self._n_classes, seed=derive_seed(_SEED, "head"))
        with one_network_per_thread() as (pool, _):
            return pool.submit(fit).result()

    def _tested(self, features: Features, recipe: FitHead) -> OutOfFold:
        with one_network_per_thread() as (pool, _):
            found = cross_validated(
                features, self._labels, self._n_classes, groups=self.groups, seed=_SEED, fit=recipe, run=pool.map
            )
        return replace(found, positions=self.rows[found.positions])

    @property
    def _labels(self) -> NDArray[np.int64]:
        return self.data.labels[self.rows]

    @property
    def _n_classes(self) -> int:
        return len(self.data.photos.class_names)

    def _used(self) -> tuple[list[Backbone], list[str]]:
        """The networks and views of which all features are there."""
        networks = [network for network in self.backbones if (network.name, "plain") in self.features]
        names = [view for view in self._views() if all((one.name, view) in self.features for one in networks)]
        return networks, names

    def _stacked(self) -> Features:
        """[n_views, n, D], the features of all networks side by side."""
        networks, names = self._used()
        return np.stack(
            [np.concatenate([self.features[one.name, view][self.rows] for one in networks], axis=1) for view in names]
        )

    def _model(self, features: Features, head: Head, tested: OutOfFold, baseline: OutOfFold | None = None) -> Learned:
        data, rows, labelled = self.data, self.rows, self._labels != UNLABELLED
        networks, names = self._used()
        logits = np.full((len(data.photos), self._n_classes), np.nan, np.float32)
        pooled = np.zeros((len(logits), features.shape[2]), np.float32)
        logits[rows], pooled[rows] = head.logits(features[0]), features[0]
        late = np.setdiff1d(data.usable, rows)
        network, spec = _whole(networks, head, data.size)
        return Learned(
            network=network,
            normalise=per_channel(networks[0].mean, networks[0].deviation),
            spec=spec,
            logits=logits,
            out_of_fold=tested,
            baseline=baseline,
            features=pooled,
            missing=data.left_out | dict.fromkeys(late.tolist(), "not reached in the given minutes"),
            backbones=tuple(networks),
            title=" and ".join(network.title for network in networks),
            n_views=len(names),
            known=known_photos(pooled[rows][labelled], self._labels[labelled], self.groups[labelled]),
            doubts=self.doubts,
        )


def labels_alone(features: np.ndarray, labels: np.ndarray, n_classes: int, *, seed: int) -> Head:
    known = labels >= 0
    return logistic_regression(np.asarray(features[0][known], np.float32), labels[known], n_classes)


def is_worse(later: OutOfFold, earlier: OutOfFold) -> bool:
    """Whether the later recipe makes clearly more errors on the same photos.

    A difference that may be chance does not count, so that the estimate of the chosen model hardly profits from the
    choice.
    """
    return len(later.wrong) > 0 and difference_on_images(later.wrong, earlier.wrong).verdict == "no"


def _piece(network: Backbone, view: str) -> str:
    return f"{network.name} {view}"


def _whole(networks: list[Backbone], head: Head, size: int) -> tuple[nn.Module, ModelSpec]:
    """The network from normalised pixels to logits, and its description."""
    spec: ModelSpec = networks[0].spec
    if len(networks) > 1:
        first, second = (network.spec for network in networks)
        assert isinstance(first, LiteSpec)
        assert isinstance(second, LiteSpec)
        spec = LitePairSpec.of(first, second)
    with torch.random.fork_rng(devices=[]):
        network = spec.build(Problem(len(head.bias), 1, (3, size, size)))
    assert isinstance(network, nn.Sequential)
    last = network[-1]
    parts = network[0].children() if len(networks) > 1 else [network[:-1]]
    for part, pretrained in zip(parts, networks, strict=True):
        part.load_state_dict(pretrained.network().state_dict())
    last.load_state_dict({"weight": torch.from_numpy(head.weight), "bias": torch.from_numpy(head.bias)})
    return network.eval(), spec
