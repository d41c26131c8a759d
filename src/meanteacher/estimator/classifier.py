"""The estimators: scikit-learn's contract over a training run and the on-line trainer."""

import copy
import secrets
import time
import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError, Method, Problem
from meanteacher.data import Dataset
from meanteacher.devices import choose_device
from meanteacher.estimator.arrays import array_training, as_images, features, local_scale, run, takes_mlp, warn
from meanteacher.estimator.labels import encoded, read_labels
from meanteacher.estimator.simple import folds, simple_models
from meanteacher.evaluate import predict_logits
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.formats import percent
from meanteacher.models import ModelSpec
from meanteacher.online import OnlineTrainer, Replay
from meanteacher.online.arrivals import to_images
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.seeding import isolated_global_randomness

_CLIPPED = 3.0
"""Deviations from the mean of a feature, at most: further away a row says no more about its class."""
_OUTSIDE = 0.02
"""Share of the rows at either end of a feature that do not count as its usual range."""
_TRIAL = 2
"""The fits of a cross-validation take this part of the steps."""
_REPLAY = Replay(size=1024, rows=64, keep="uniform")


class SemiSupervisedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns from labelled and unlabelled rows with any of the methods, as a scikit-learn classifier.

    X is a table [N, n_features], an array or a pandas frame of numbers, or images [N, H, W], [N, H, W, C] or
    [N, C, H, W] with 1 or 3 channels. The label of a row is -1, NaN, None or pandas' NA if it is unknown: also among
    strings. So -1 cannot be a class. `score` leaves rows without a label out.

    Features are standardised, whatever a few outlying rows say; the views of a row are Gaussian noise and, with many
    features, their dropout. A multilayer perceptron learns tables and images below 16 pixels, FastNet other images. On
    a table, cross-validation on the labels also tries logistic regression, plain and with a kernel: a simple model can
    be better if the unlabelled rows tell little, and then it is what predicts (`chosen_`).

    Alarms of the training's vitals are warnings (`ConvergenceWarning`). Global random states and the number of threads
    stay as they are.

    Args:
        method: a name in `mt.methods.METHODS`, or a method such as `mt.methods.MeanTeacher(...)`; then `weight`,
            `decay` and `ramp_up` have no effect
        steps: of a fit
        batch_size: rows of a step, labelled and unlabelled; by default 200, and 160 for images
        module: a network of your own, an `nn.Module` of which a copy is trained from the weights that it has, or a
            description in `mt.models`. It takes rows [B, n_features] or images [B, C, H, W] and returns logits
            [B, n_classes].
        compare: whether cross-validation on the labels of a table may choose a simple model instead; not with `module`
        class_weight: weights of the classes in the cost of the labels: "balanced", or a dict from class to weight
        hidden: units of the perceptron's layers
        noise: deviation of the student's noise, in deviations of the features; the teacher's is a third of it. By
            default a row moves about as far as its nearest neighbour is, and pixels of small images by 0.5.
        feature_dropout: probability with which the student does not see a feature; by default 0.3, and 0 if there are
            fewer than 20
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
        chosen_: the model that predicts: "network", "logistic regression" or "kernel logistic regression"
        accuracies_: the accuracy of each of them in the cross-validation; empty if there was none

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
        module: nn.Module | ModelSpec | None = None,
        compare: bool = True,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
        steps: int = 300,
        batch_size: int | None = None,
        hidden: tuple[int, ...] = (512,),
        noise: float | None = None,
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
        self.module = module
        self.compare = compare
        self.class_weight = class_weight
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
            y: [N], -1 or a missing value if the label is unknown

        Raises:
            InputError: X, y or a parameter is wrong; a ValueError.
            DivergedError: a cost is no longer finite: lower `learning_rate` or `weight`.
        """
        began = time.perf_counter()
        labels, known, X = self._rows(X, y, reset=True)
        check_classification_targets(labels)
        classes = np.unique(labels)
        if len(classes) < 2:
            raise InputError(
                "A classifier needs labels of at least two classes, but "
                f"{f'there is one class, {classes[0]!s}' if len(classes) else 'no row has a label'}. "
                f"{UNLABELLED} marks rows without a label: if it is one of your classes, give that another name."
            )
        inputs = self._inputs(X, reset=True)
        weights = self._class_weights(classes, labels)
        seed, ends = _seed(self.random_state), None if self.minutes is None else began + 60 * self.minutes
        data = Dataset(to_images(inputs), encoded(labels, known, classes), tuple(map(str, classes)))
        self.classes_ = classes
        self._trainer: OnlineTrainer | None = None
        self._noise = local_scale(data.images) if self.noise is None else self.noise
        self._compared(inputs.numpy(), data, weights, seed, ends)
        if self.chosen_ == "network":
            self._network, self._normalise, self.n_steps_ = self._trained(data, weights, seed, ends, self.verbose)
        return self

    def _rows(self, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any]]:
        """The known labels, which rows have one, and the rows."""
        X = validate_data(self, X, allow_nd=True, reset=reset)
        labels, known = read_labels(y)
        check_consistent_length(X, known)
        return labels, known, X

    def _class_weights(self, classes: NDArray[Any], labels: NDArray[Any]) -> tuple[float, ...] | None:
        if self.class_weight is None:
            return None
        given = self.class_weight if isinstance(self.class_weight, str) else dict(self.class_weight)
        weights = tuple(compute_class_weight(given, classes=classes, y=labels).tolist())
        if min(weights) <= 0:
            raise InputError(f"The weights of the classes have to be above 0; got {given}.")
        return weights

    def _trained(
        self,
        data: Dataset,
        weights: tuple[float, ...] | None,
        seed: int,
        ends: float | None,
        verbose: bool,
        part: int = 1,
    ) -> tuple[nn.Module, nn.Module, int]:
        """The network, its normaliser and its steps, after a part of the steps on all labels of the data."""
        given = copy.copy(self).set_params(steps=max(1, self.steps // part)) if part > 1 else self
        shape = tuple(data.images.shape[1:])
        n_labelled = int((data.labels != UNLABELLED).sum())
        training = array_training(
            given, shape, n_examples=len(data.labels), n_labelled=n_labelled, noise=self._noise, class_weights=weights
        )
        state = run(training, data, seed=seed, device=choose_device(self.device), ends=ends, verbose=verbose)
        # In double precision, so that a row's prediction does not depend on the rows beside it.
        dtype = torch.float64 if takes_mlp(shape) else torch.float32
        network = state.predictor(training.method).cpu().to(dtype)
        return network, state.normalise.cpu().to(dtype), state.step - state.skipped

    def _compared(
        self,
        X: NDArray[Any],
        data: Dataset,
        weights: tuple[float, ...] | None,
        seed: int,
        ends: float | None,
    ) -> None:
        """Decide by cross-validation on the labels which model predicts. A draw is the simpler model's."""
        self.chosen_, self.accuracies_ = "network", {}
        known = (data.labels != UNLABELLED).nonzero().flatten().numpy()
        labels = data.labels.numpy()[known]
        parts = folds(labels, seed) if self.compare and self.module is None and X.ndim == 2 else []
        if not parts:
            return
        by_class = None if weights is None else dict(enumerate(weights))
        models = simple_models(X.shape[1], len(known), by_class)
        right = {name: np.zeros(len(known)) for name in (*models, "network")}
        for position, (learned, tested) in enumerate(parts):
            for name, model in simple_models(X.shape[1], len(learned), by_class).items():
                predicted = model.fit(X[known[learned]], labels[learned]).predict(X[known[tested]])
                right[name][tested] = predicted == labels[tested]
            hidden = data.labels.clone()
            hidden[torch.from_numpy(known[tested])] = UNLABELLED
            trial = Dataset(data.images, hidden, data.class_names)
            left = None if ends is None else (ends - (now := time.perf_counter())) / (len(parts) - position + _TRIAL)
            until = None if left is None else now + left
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the alarms of a fit that is cut short
                self._network, self._normalise, _ = self._trained(trial, weights, seed, until, False, part=_TRIAL)
            logits = predict_logits(self._network, torch.from_numpy(X[known[tested]]), normalise=self._normalise)
            right["network"][tested] = logits.argmax(1).numpy() == labels[tested]
        share = None if weights is None else np.asarray(weights)[labels]
        self.accuracies_ = {name: float(np.average(hits, weights=share)) for name, hits in right.items()}
        self.chosen_ = max(self.accuracies_, key=lambda name: self.accuracies_[name])
        if self.chosen_ != "network":
            self._simple, self.n_steps_ = models[self.chosen_].fit(X[known], labels), 0
        if self.verbose:
            found = ", ".join(f"{name} {percent(accuracy)}" for name, accuracy in self.accuracies_.items())
            print(f"accuracy in cross-validation: {found}; {self.chosen_} is chosen")  # noqa: T201

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Train on rows that have just arrived, once: one step per `batch_size` of them, 32 if that is not given.

        After `fit` it goes on with the fitted network; if a simple model was chosen, with the last network that it was
        compared with. Otherwise the first call also standardises the features for all later ones, so give it a few
        dozen rows. Up to 1,024 labelled rows are kept and shown again.

        Args:
            X: [N, ...], the rows
            y: [N], -1 or a missing value if the label is unknown
            classes: every class that may come, in the first call

        Raises:
            InputError: X, y, the classes or a parameter is wrong; a ValueError.
        """
        first = not hasattr(self, "classes_")
        known_labels, known, X = self._rows(X, y, reset=first)
        expected = self._expected_classes(classes)
        labels = encoded(known_labels, known, expected)
        images = to_images(self._inputs(X, reset=first))
        shape = tuple(images.shape[1:])
        if first:
            self.classes_, self.n_steps_, self._trainer = expected, 0, None
            self.chosen_, self.accuracies_ = "network", {}
            self._noise = local_scale(images) if self.noise is None else self.noise
        if self.class_weight == "balanced":
            raise InputError("class_weight='balanced' needs all labels at once. Give a dict from class to weight.")
        training = array_training(
            self,
            shape,
            n_examples=len(known),
            n_labelled=_REPLAY.rows,
            noise=self._noise,
            class_weights=self._class_weights(expected, expected),
            endless=True,
        )
        if self._trainer is None:
            self._trainer, self.chosen_ = self._online(training, images, continued=not first), "network"
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
        if self.chosen_ != "network":
            return np.asarray(self._simple.predict_proba(inputs.numpy()))
        if self._trainer is not None:
            probabilities = self._trainer.predict_proba(inputs).double()
        else:
            probabilities = predict_logits(self._network, inputs, normalise=self._normalise).double().softmax(1)
        return np.asarray(probabilities.numpy())

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """[N, n_classes], the logarithms of the probabilities of `classes_`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> NDArray[Any]:
        """[N], the most probable class of each row."""
        most_probable = self.predict_proba(X).argmax(1)  # refuses an estimator that is not fitted
        return np.asarray(self.classes_[most_probable])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of labelled rows that are predicted correctly; rows without a label are left out.

        Raises:
            InputError: no row has a label.
        """
        predicted = self.predict(X)
        labels, known = read_labels(y)
        check_consistent_length(predicted, known)
        if not known.any():
            raise InputError(f"No row has a label: all of y is {UNLABELLED}, so there is nothing to compare with.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(predicted[known] == labels, weights=weight))

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
            self._scaler = StandardScaler().fit(_without_outliers(X))
        return torch.from_numpy(self._scaler.transform(X).clip(-_CLIPPED, _CLIPPED))

    def _expected_classes(self, classes: Any) -> NDArray[Any]:
        known: NDArray[Any] | None = getattr(self, "classes_", None)
        if classes is None:
            if known is None:
                raise InputError("The first call of partial_fit needs classes=[...]: every class that may come.")
            return known
        labels, are_labels = read_labels(list(classes))
        given = np.unique(labels)
        if known is not None and not np.array_equal(given, known):
            raise InputError(f"classes are {given.tolist()}, but were {known.tolist()} before. They cannot change.")
        if len(given) < 2 or not are_labels.all():
            raise InputError(f"classes are at least two, and none of them is {UNLABELLED}; got {list(classes)}.")
        return given

    def _online(self, training: TrainingSpec, images: Tensor, *, continued: bool) -> OnlineTrainer:
        problem = Problem(n_classes=len(self.classes_), n_examples=0, input_shape=tuple(images.shape[1:]))
        model: ModelSpec | nn.Module = training.model
        normalise = None if training.normalise is None else training.normalise.fit(images)
        if continued or self.module is not None:
            with isolated_global_randomness():
                model = network = training.model.build(problem)
            if continued:
                network.load_state_dict(self._network.state_dict())
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
    """Mean Teacher (Tarvainen & Valpola 2017) as a scikit-learn classifier; y is -1 or missing if a label is unknown.

    Everything else is as in `SemiSupervisedClassifier` with `method="mean-teacher"`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> hidden = y.copy()
    >>> hidden[np.arange(150) % 10 > 0] = -1  # five labels per class
    >>> model = MeanTeacherClassifier(steps=100, random_state=0).fit(X, hidden)
    >>> model.score(X, y) > 0.8
    True
    """


def _without_outliers(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows with each feature at most one usual range outside of its usual range, for its mean and deviation.

    Otherwise one row of 1e6 would be the only one that differs from the others.
    """
    low = np.quantile(X, _OUTSIDE, axis=0, method="higher")
    high = np.quantile(X, 1 - _OUTSIDE, axis=0, method="lower")
    usual = high - low
    return np.where(usual > 0, X.clip(low - usual, high + usual), X)


def _seed(random_state: Any) -> int:
    """Without one it is new every time, and numpy's global generator is not asked."""
    if random_state is None:
        return secrets.randbelow(2**31)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
