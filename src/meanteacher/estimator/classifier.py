"""The estimators: scikit-learn's contract over a training run and the on-line trainer."""

import copy
import secrets
import time
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError, Method, Problem
from meanteacher.data import Dataset
from meanteacher.devices import choose_device
from meanteacher.estimator.arrays import array_training, as_images, encoded, features, run, takes_mlp, unlabelled, warn
from meanteacher.evaluate import predict_logits
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.models import ModelSpec
from meanteacher.online import OnlineTrainer, Replay
from meanteacher.online.arrivals import to_images
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.seeding import isolated_global_randomness

_CLIPPED = 3.0
"""Deviations from the mean of a feature, at most: further away a row says no more about its class."""
_REPLAY = Replay(size=1024, rows=64, keep="uniform")


class SemiSupervisedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns from labelled and unlabelled rows with any of the methods, as a scikit-learn classifier.

    X is a table [N, n_features], an array or a pandas frame of numbers, or images [N, H, W], [N, H, W, C] or
    [N, C, H, W] with 1 or 3 channels. A row whose label is unknown has y == -1: also among strings, where numpy makes
    "-1" of it. So -1 cannot be a class. `score` leaves rows without a label out.

    Features are standardised; the views of a row are Gaussian noise and the dropout of features. A multilayer
    perceptron learns tables and images below 16 pixels, FastNet other images. Alarms of the training's vitals are
    warnings (`ConvergenceWarning`). Global random states and the number of threads stay as they are.

    Args:
        method: a name in `mt.methods.METHODS`, or a method such as `mt.methods.MeanTeacher(...)`; then `weight`,
            `decay` and `ramp_up` have no effect
        steps: of a fit
        batch_size: rows of a step, labelled and unlabelled; by default 200, and 160 for images
        hidden: units of the perceptron's layers
        noise: deviation of the student's noise, in deviations of the features; the teacher's is a third of it
        feature_dropout: probability with which the student does not see a feature; by default 0.3, and less where
            there are fewer than 10
        flip: whether a mirrored image is of the same class
        backbone: a pretrained network whose features are learned from instead of the images: "lite0" or another name
            that `mt.fit` takes
        learning_rate: of Adam, at its highest; by default 0.01, and Muon trains FastNet
        weight: of the method's cost on unlabelled rows; by default one that suits the method
        decay: of the teacher's average; by default it averages over about a twentieth of the steps
        ramp_up: share of the steps in which the weight rises
        minutes: that a fit may take: when they run short it leaves steps out
        device: to train on; "auto" takes a GPU if there is one
        random_state: an int for the same model every time, a RandomState to draw a seed from, None for a new seed
        verbose: whether to print the costs ten times per fit

    Attributes:
        classes_: the classes, sorted
        n_features_in_: the columns of a table; for images the length of their second axis
        feature_names_in_: of a data frame
        n_steps_: steps that were taken

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> hidden = y.copy()
    >>> hidden[np.arange(150) % 10 > 0] = -1  # five labels per class
    >>> model = SemiSupervisedClassifier("pi-model", steps=100, random_state=0).fit(X, hidden)
    >>> model.score(X, y) > 0.8
    True
    """

    def __init__(
        self,
        method: str | Method = "mean-teacher",
        *,
        steps: int = 800,
        batch_size: int | None = None,
        hidden: tuple[int, ...] = (512,),
        noise: float = 0.5,
        feature_dropout: float | None = None,
        flip: bool = False,
        backbone: str | None = None,
        learning_rate: float | None = None,
        weight: float | None = None,
        decay: float | None = None,
        ramp_up: float = 0.1,
        minutes: float | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.steps = steps
        self.batch_size = batch_size
        self.hidden = hidden
        self.noise = noise
        self.feature_dropout = feature_dropout
        self.flip = flip
        self.backbone = backbone
        self.learning_rate = learning_rate
        self.weight = weight
        self.decay = decay
        self.ramp_up = ramp_up
        self.minutes = minutes
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all rows, from the beginning.

        Args:
            X: [N, ...], the rows
            y: [N], -1 where the label is unknown

        Raises:
            InputError: X, y or a parameter is wrong; a ValueError.
            DivergedError: a cost is no longer finite: lower `learning_rate` or `weight`.
        """
        began = time.perf_counter()
        X, y = validate_data(self, X, y, allow_nd=True)
        known = ~unlabelled(y)
        check_classification_targets(y[known])
        classes = np.unique(y[known])
        if len(classes) < 2:
            raise InputError(
                "A classifier needs labels of at least two classes, but "
                f"{f'there is one class, {classes[0]!s}' if len(classes) else 'no row has a label'}. "
                f"{UNLABELLED} marks rows without a label: if it is one of your classes, give that another name."
            )
        images = to_images(self._inputs(X, reset=True))
        training = array_training(self, tuple(images.shape[1:]), n_examples=len(y), n_labelled=int(known.sum()))
        state = run(
            training,
            Dataset(images, encoded(y, classes), tuple(map(str, classes))),
            seed=_seed(self.random_state),
            device=choose_device(self.device),
            ends=None if self.minutes is None else began + 60 * self.minutes,
            verbose=self.verbose,
        )
        self.classes_ = classes
        self.n_steps_ = state.step - state.skipped
        self._trainer: OnlineTrainer | None = None
        # In double precision, so that a row's prediction does not depend on the rows beside it.
        dtype = torch.float64 if takes_mlp(tuple(images.shape[1:])) else torch.float32
        self._network = state.predictor(training.method).cpu().to(dtype)
        self._normalise = state.normalise.cpu().to(dtype)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Train on rows that have just arrived, once: one step per `batch_size` of them, 32 if that is not given.

        After `fit` it goes on with the fitted network. Otherwise the first call also standardises the features for
        all later ones, so give it a few dozen rows. Up to 1,024 labelled rows are kept and shown again.

        Args:
            X: [N, ...], the rows
            y: [N], -1 where the label is unknown
            classes: every class that may come, in the first call

        Raises:
            InputError: X, y, the classes or a parameter is wrong; a ValueError.
        """
        first = not hasattr(self, "classes_")
        X, y = validate_data(self, X, y, allow_nd=True, reset=first)
        expected = self._expected_classes(classes)
        labels = encoded(y, expected)
        images = to_images(self._inputs(X, reset=first))
        shape = tuple(images.shape[1:])
        training = array_training(self, shape, n_examples=len(y), n_labelled=_REPLAY.rows, endless=True)
        if first:
            self.classes_, self.n_steps_, self._trainer = expected, 0, None
        if self._trainer is None:
            self._trainer = self._online(training, images, continued=not first)
        size = self.batch_size or 32
        for start in range(0, len(images), size):
            done = self._trainer.step(images[start : start + size], labels[start : start + size])
            self.n_steps_ += 1
            for alarm in done.alarms:
                warn(alarm)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """[N, n_classes], the probabilities of `classes_`."""
        check_is_fitted(self, "classes_")
        X = validate_data(self, X, allow_nd=True, reset=False)
        inputs = self._inputs(X, reset=False)
        if self._trainer is not None:
            probabilities = self._trainer.predict_proba(inputs).double()
        else:
            probabilities = predict_logits(self._network, inputs, normalise=self._normalise).double().softmax(1)
        return np.asarray(probabilities.numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """[N], the most probable class of each row."""
        most_probable = self.predict_proba(X).argmax(1)  # refuses an estimator that is not fitted
        return np.asarray(self.classes_[most_probable])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of labelled rows that are predicted correctly; rows with y == -1 are left out.

        Raises:
            InputError: no row has a label.
        """
        predicted = self.predict(X)
        labels = np.asarray(y).reshape(len(predicted))
        known = ~unlabelled(labels)
        if not known.any():
            raise InputError(f"No row has a label: all of y is {UNLABELLED}, so there is nothing to compare with.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(predicted[known] == labels[known], weights=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _inputs(self, X: NDArray[Any], *, reset: bool) -> Tensor:
        """What the network takes: a standardised table in double precision, or images [N, C, H, W]."""
        if reset:
            self._shape = X.shape[1:]
            self._backbone = None if self.backbone is None else find_backbone(self.backbone)
        if X.shape[1:] != self._shape:
            raise InputError(f"Expected rows of shape {self._shape}, as in the fit; got {X.shape[1:]}.")
        if X.ndim > 2:
            images = as_images(X)
            if self._backbone is None:
                return images
            X = features(images, self._backbone)
        elif self._backbone is not None:
            raise InputError(f"backbone={self.backbone!r} takes images; got a table of shape {X.shape}.")
        X = np.ascontiguousarray(X, np.float64)  # sums of a frame's columns would round otherwise
        if reset:
            self._scaler = StandardScaler().fit(X)
        return torch.from_numpy(self._scaler.transform(X).clip(-_CLIPPED, _CLIPPED))

    def _expected_classes(self, classes: Any) -> NDArray[Any]:
        known: NDArray[Any] | None = getattr(self, "classes_", None)
        if classes is None:
            if known is None:
                raise InputError("The first call of partial_fit needs classes=[...]: every class that may come.")
            return known
        given = np.unique(np.asarray(classes))
        if known is not None and not np.array_equal(given, known):
            raise InputError(f"classes are {given.tolist()}, but were {known.tolist()} before. They cannot change.")
        if len(given) < 2 or unlabelled(given).any():
            raise InputError(f"classes are at least two, and none of them is {UNLABELLED}; got {given.tolist()}.")
        return given

    def _online(self, training: TrainingSpec, images: Tensor, *, continued: bool) -> OnlineTrainer:
        problem = Problem(n_classes=len(self.classes_), n_examples=0, input_shape=tuple(images.shape[1:]))
        model: ModelSpec | nn.Module = training.model
        normalise = None if training.normalise is None else training.normalise.fit(images)
        if continued:
            with isolated_global_randomness():
                model = training.model.build(problem)
            model.load_state_dict(self._network.state_dict())
            normalise = copy.deepcopy(self._normalise).float()
        return OnlineTrainer(
            model,
            training.method,
            training.optim,
            n_classes=problem.n_classes,
            input_shape=problem.input_shape,
            views=training.views,
            normalise=normalise,
            replay=_REPLAY,
            seed=_seed(self.random_state),
            device=self.device,
        )


class MeanTeacherClassifier(SemiSupervisedClassifier):
    """Mean Teacher (Tarvainen & Valpola 2017) as a scikit-learn classifier: y == -1 marks rows without a label.

    Everything else is as in `SemiSupervisedClassifier` with `method="mean-teacher"`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> hidden = y.copy()
    >>> hidden[np.arange(150) % 10 > 0] = -1  # five labels per class
    >>> model = MeanTeacherClassifier(steps=100, random_state=0).fit(X, hidden)
    >>> model.score(X, y) > 0.8
    True
    """


def _seed(random_state: Any) -> int:
    """Without one it is new every time, and numpy's global generator is not asked."""
    if random_state is None:
        return secrets.randbelow(2**31)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
