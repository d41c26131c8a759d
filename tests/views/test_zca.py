import numpy as np
import pytest
import torch
from torch import Tensor

from meanteacher.views import Zca

SHAPE = (3, 4, 4)
N_VALUES = 48


def correlated(n: int = 3_000, seed: int = 0) -> Tensor:
    """Smooth images within [0, 1] or so: neighbouring pixels alike, as in photographs."""
    source = torch.Generator().manual_seed(seed)
    rough = torch.randn(n, *SHAPE, generator=source)
    smooth = 0.2 * rough + rough.roll(1, -1) + rough.roll(1, -2) + 0.5 * rough.roll(1, -3)
    return 0.5 + 0.1 * smooth


def covariance(images: Tensor) -> np.ndarray:
    return np.cov(images.flatten(1).double().numpy(), rowvar=False, bias=True)


def test_whitened_training_images_have_the_identity_as_covariance() -> None:
    images = correlated()
    whitened = Zca(contrast=False, epsilon=1e-8).fit(images)(images)
    assert whitened.shape == images.shape
    assert np.abs(covariance(images) / 0.01 - np.eye(N_VALUES)).max() > 1
    np.testing.assert_allclose(covariance(whitened), np.eye(N_VALUES), atol=5e-3)
    torch.testing.assert_close(whitened.mean(0), torch.zeros(SHAPE), atol=5e-3, rtol=0)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1])
def test_epsilon_is_added_to_the_covariance_before_its_inverse_root(epsilon: float) -> None:
    images = correlated()
    whitened = Zca(contrast=False, epsilon=epsilon).fit(images)(images)
    before = covariance(images)
    expected = before @ np.linalg.inv(before + epsilon * np.eye(N_VALUES))
    np.testing.assert_allclose(covariance(whitened), expected, atol=5e-3)


@pytest.mark.parametrize("contrast", [False, True])
def test_whitening_is_symmetric_and_positive_so_an_image_still_looks_like_itself(contrast: bool) -> None:
    module = Zca(contrast=contrast, epsilon=1e-3).fit(correlated())
    torch.testing.assert_close(module.whiten, module.whiten.T, atol=1e-4, rtol=1e-4)
    assert torch.linalg.eigvalsh(module.whiten.double()).min() > 0


def test_whitening_uses_the_training_statistics_on_other_images() -> None:
    train, test = correlated(), correlated(5, seed=1) + 0.3
    x = train.flatten(1).double().numpy()
    values, vectors = np.linalg.eigh(covariance(train) + 1e-2 * np.eye(N_VALUES))
    whiten = vectors @ np.diag(values**-0.5) @ vectors.T
    expected = (test.flatten(1).double().numpy() - x.mean(0)) @ whiten
    module = Zca(contrast=False, epsilon=1e-2).fit(train)
    np.testing.assert_allclose(module(test).flatten(1).numpy(), expected, atol=1e-3)


def test_statistics_do_not_depend_on_how_many_images_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    images = correlated(500)
    whole = Zca(contrast=True, epsilon=0.1).fit(images)(images)
    monkeypatch.setattr("meanteacher.views.normalise._CHUNK", 64)
    torch.testing.assert_close(Zca(contrast=True, epsilon=0.1).fit(images)(images), whole, atol=1e-3, rtol=1e-3)


def test_contrast_normalisation_centres_each_image_and_scales_it_to_length_55() -> None:
    images = correlated()
    module = Zca(contrast=True, epsilon=0.1).fit(images)
    # Without the whitening, what is left is the contrast normalisation.
    module.load_state_dict({"mean": torch.zeros(N_VALUES), "whiten": torch.eye(N_VALUES)})
    flat = module(images).flatten(1)
    torch.testing.assert_close(flat.norm(dim=1), torch.full((len(images),), 55.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(flat.mean(1), torch.zeros(len(images)), atol=1e-4, rtol=0)
    centred = (images - images.mean((1, 2, 3), keepdim=True)).flatten(1)
    torch.testing.assert_close(torch.cosine_similarity(flat, centred), torch.ones(len(images)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("scale", "offset"), [(0.5, 0.0), (1.0, 0.2), (3.0, -0.4)])
def test_only_the_contrast_version_ignores_the_brightness_and_contrast_of_an_image(scale: float, offset: float) -> None:
    train, test = correlated(), correlated(10, seed=1)
    changed = scale * test + offset
    with_contrast = Zca(contrast=True, epsilon=0.1).fit(train)
    without = Zca(contrast=False, epsilon=0.1).fit(train)
    torch.testing.assert_close(with_contrast(changed), with_contrast(test), atol=1e-3, rtol=1e-3)
    assert (without(changed) - without(test)).abs().max() > 0.1


@pytest.mark.parametrize("level", [0.1, 0.7, 123 / 255, 1.0])
def test_a_blank_image_is_the_same_at_every_brightness(level: float) -> None:
    module = Zca(contrast=True, epsilon=0.1).fit(correlated())
    blank = torch.zeros(1, *SHAPE)
    # Rounding leaves 0.01; if it were taken for contrast, its values would be of size 8.
    torch.testing.assert_close(module(blank + level), module(blank), atol=0.5, rtol=0)


def test_a_blank_photograph_is_the_same_at_every_brightness() -> None:
    # At the size of CIFAR-10 the mean of a constant image is off by its rounding: 0.02, or 1 if taken for contrast.
    levels = torch.linspace(0, 1, 256).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    module = Zca(contrast=True, epsilon=0.1).fit(torch.zeros(1, 3, 2, 2))
    module.mean, module.whiten = torch.zeros(3072), torch.eye(3072)
    assert module(levels).abs().max() < 0.3


def test_fewer_images_than_pixels_can_be_whitened_too() -> None:
    images = correlated(20)
    for contrast in (False, True):
        assert torch.isfinite(Zca(contrast=contrast, epsilon=1e-5).fit(images)(images)).all()
