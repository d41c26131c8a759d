import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from meanteacher.views import RandAugment
from meanteacher.views.strong import MOVES, OPERATIONS, VALUES

every_operation = pytest.mark.parametrize("name", OPERATIONS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=seeded(9), dtype=dtype)


def strengths(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def changed(name: str, images: Tensor, strength: float) -> Tensor:
    return VALUES[name](images, images.new_full((len(images),), strength))


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_operation_without_strength_changes_nothing(name: str, channels: int) -> None:
    images = photographs(6, channels, 7, 9)
    torch.testing.assert_close(changed(name, images, 0.0), images, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("strength", [-1.0, -0.3, 0.3, 1.0])
def test_an_operation_treats_each_image_as_if_it_were_alone(name: str, strength: float) -> None:
    images = photographs(6, 3, 7, 9) * torch.linspace(0.2, 3, 6, dtype=torch.float64).view(-1, 1, 1, 1)
    alone = torch.cat([changed(name, image, strength) for image in images.split(1)])
    torch.testing.assert_close(changed(name, images, strength), alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["solarise", "posterise", "autocontrast", "equalise"])
@pytest.mark.parametrize("strength", [-1.0, 0.4, 1.0])
def test_operations_on_the_range_stay_within_it(name: str, strength: float) -> None:
    images = photographs(20, 3, 7, 9)
    result = changed(name, images, strength)
    assert (result.amin((1, 2, 3)) >= images.amin((1, 2, 3)) - 1e-9).all()
    assert (result.amax((1, 2, 3)) <= images.amax((1, 2, 3)) + 1e-9).all()
    assert (result - images).abs().max() > 0.1


@pytest.mark.parametrize("name", ["solarise", "posterise", "autocontrast", "equalise"])
def test_operations_on_the_range_follow_brightness_and_contrast(name: str) -> None:
    images = photographs(20, 3, 8, 8)
    torch.testing.assert_close(changed(name, 2 * images + 5, 0.7), 2 * changed(name, images, 0.7) + 5)


def test_brightness_adds_contrast_scales_and_saturation_moves_from_grey() -> None:
    images = photographs(4, 3, 6, 6)
    torch.testing.assert_close(changed("brightness", images, 0.5), images + 0.9)
    for name, strength, factor in [("contrast", -1.0, 0.1), ("contrast", 1.0, 1.9), ("saturation", -1.0, 0.1)]:
        luma = torch.einsum("c,bchw->bhw", strengths(0.299, 0.587, 0.114), images)[:, None]
        origin = luma.mean((2, 3), keepdim=True) if name == "contrast" else luma
        torch.testing.assert_close(changed(name, images, strength), origin + factor * (images - origin))


def test_the_strongest_hue_is_a_quarter_turn_of_the_colours() -> None:
    rgb = (0.9, -0.2, 0.1)
    y, i, q = colorsys.rgb_to_yiq(*rgb)
    turned = changed("hue", strengths(*rgb).view(1, 3, 1, 1), 1.0).flatten().tolist()
    # Two tables of YIQ agree to two digits.
    assert colorsys.rgb_to_yiq(*turned) == pytest.approx((y, -q, i), abs=0.03)


@pytest.mark.parametrize(("strength", "weight"), [(1.0, -0.9), (-1.0, 0.9), (0.5, -0.45)])
def test_sharpness_moves_from_or_to_the_mean_of_the_neighbourhood(strength: float, weight: float) -> None:
    images = photographs(1, 1, 7, 9)
    image = images[0, 0].numpy()
    n_neighbours = ndimage.convolve(np.ones_like(image), np.ones((3, 3)), mode="constant")
    blurred = ndimage.convolve(image, np.ones((3, 3)), mode="constant") / n_neighbours
    expected = (1 - weight) * image + weight * blurred
    np.testing.assert_allclose(changed("sharpness", images, strength)[0, 0].numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("strength", [0.25, -0.25])
def test_solarise_mirrors_the_brightest_part_of_the_range(strength: float) -> None:
    images = torch.arange(9.0).view(1, 1, 3, 3)
    result = changed("solarise", images, strength).flatten()
    assert result.tolist() == [0, 1, 2, 3, 4, 5, 6, 1, 0]


def test_posterise_leaves_few_values_each_the_middle_of_its_step() -> None:
    images = torch.linspace(0, 8, 1001, dtype=torch.float64).view(1, 1, 7, 143)
    result = changed("posterise", images, 1.0)
    assert result.unique().tolist() == [*(0.5 + np.arange(8)), 8.0]
    assert (result - images).abs().max() <= 0.5
    assert len(changed("posterise", images, 0.5).unique()) == 17


def test_autocontrast_stretches_each_channel_to_the_range_of_the_image() -> None:
    images = photographs(5, 3, 8, 8) * strengths(0.2, 1, 0.5).view(1, 3, 1, 1)
    images[:, 2] += 1
    result = changed("autocontrast", images, 1.0)
    for extreme in (torch.amin, torch.amax):
        whole = extreme(images, (1, 2, 3))[:, None].expand(-1, 3)
        torch.testing.assert_close(extreme(result, (2, 3)), whole)
    halfway = changed("autocontrast", images, 0.5)
    torch.testing.assert_close(halfway, (images + result) / 2)


def test_autocontrast_does_not_make_noise_of_a_blank_channel() -> None:
    images = photographs(2, 3, 8, 8)
    images[:, 1] = 0.3 + 1e-7 * images[:, 1]
    torch.testing.assert_close(changed("autocontrast", images, 1.0)[:, 1], images[:, 1])


def test_equalise_spreads_the_values_evenly_in_their_order() -> None:
    images = photographs(3, 2, 32, 32)
    flat = images.flatten(0, 1).flatten(1)
    result = changed("equalise", images, 1.0).flatten(0, 1).flatten(1)
    assert (result.gather(1, flat.argsort(1)).diff(dim=1) >= 0).all()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    torch.testing.assert_close(result.amax(1, keepdim=True), high)
    torch.testing.assert_close(result.amin(1, keepdim=True), low)
    for values, even in [(flat, False), (result, True)]:
        quarter = ((values - low) / (high - low) * 4).floor().clamp_max(3).long()
        shares = torch.stack([(quarter == k).double().mean(1) for k in range(4)])
        assert ((shares - 0.25).abs().max() < 0.02) == even


def test_equalise_is_that_of_bytes_on_images_that_were_bytes() -> None:
    pixels = torch.randint(0, 256, (1, 1, 40, 40), generator=seeded()).double().div(16).floor().mul(17)
    assert pixels.min() == 0
    assert pixels.max() == 255
    values, counts = pixels.unique(return_counts=True)
    at_most = counts.cumsum(0)
    level = 255 * (at_most - counts[0]) / (1600 - counts[0])
    expected = level[torch.searchsorted(values, pixels)]
    torch.testing.assert_close(changed("equalise", pixels, 1.0), expected.double(), atol=1e-3, rtol=0)


# --- moves ------------------------------------------------------------------------------------------------


def expected_source(name: str, strength: float, height: int, width: int) -> np.ndarray:
    source = np.eye(3)
    if name == "rotate":
        angle = np.deg2rad(30) * strength
        source[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    elif name != "identity":
        row = 0 if name.endswith("x") else 1
        column, most = (1 - row, 0.3) if name.startswith("shear") else (2, 0.3 * (width, height)[row])
        source[row, column] = most * strength
    return source


def drawn(view: RandAugment, n_images: int, seed: int) -> list[list[tuple[str, float]]]:
    """The operations and strengths of each image."""
    source = seeded(seed)
    choices = torch.randint(len(view.operations), (view.n, n_images), generator=source)
    draws = torch.rand(view.n, n_images, generator=source, dtype=torch.float64)
    return [
        [(view.operations[k], view.magnitude * (2 * u - 1)) for k, u in zip(ks, us, strict=True)]
        for ks, us in zip(choices.T.tolist(), draws.T.tolist(), strict=True)
    ]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("shape", [(12, 12), (9, 16)])
def test_moves_follow_each_other_and_are_sampled_once(n: int, shape: tuple[int, int]) -> None:
    view = RandAugment(n, 0.8, ("identity", *MOVES))
    images = photographs(40, 2, *shape)
    result = view(images, seeded(1)).numpy()
    for image, seen, steps in zip(images.numpy(), result, drawn(view, 40, 1), strict=True):
        source = np.eye(3)
        for name, strength in steps:
            source = source @ expected_source(name, strength, *shape)
        # scipy counts rows first, from the corner.
        linear, shift = source[:2, :2][::-1, ::-1], source[:2, 2][::-1]
        centre = (np.array(shape) - 1) / 2
        for channel, moved in zip(image, seen, strict=True):
            expected = ndimage.affine_transform(
                channel, linear, centre + shift - linear @ centre, order=1, mode="grid-constant"
            )
            np.testing.assert_allclose(moved, expected, atol=1e-9)


def test_what_moves_in_is_zero_whatever_happens_to_the_values() -> None:
    images = 50 + torch.rand(200, 3, 8, 8, generator=seeded(9))
    view = RandAugment(3, 1.0, ("translate_x", "brightness", "solarise"))
    result = view(images, seeded())
    n_empty = (result == 0).all((1, 2)).sum(1)
    assert (n_empty > 1).sum() > 20
    # Nothing lies between, but for the one column where the edge of the image blends into the empty border.
    assert ((result == 0) | (result > 40)).all((1, 2)).sum(1).min() >= 7


# --- the whole --------------------------------------------------------------------------------------------


def test_every_image_draws_its_own_operations_in_every_round() -> None:
    same = photographs(1, 3, 8, 8).expand(20_000, -1, -1, -1)
    for n, chance in [(1, 1 / 2), (2, 1 / 4), (3, 1 / 8)]:
        result = RandAugment(n, 1.0, ("identity", "contrast"))(same, seeded())
        untouched = (result == same).all(3).all(2).all(1)
        assert untouched.double().mean().item() == pytest.approx(chance, abs=0.015)


def test_every_operation_is_drawn_equally_often_and_does_what_it_does_alone() -> None:
    view = RandAugment(1)
    images = photographs(1, 3, 8, 8).expand(3_000, -1, -1, -1)
    result = view(images, seeded())
    steps = [name_and_strength for (name_and_strength,) in drawn(view, 3_000, 0)]
    for name in OPERATIONS:
        rows = [k for k, step in enumerate(steps) if step[0] == name]
        assert len(rows) == pytest.approx(200, abs=60)
        if name in VALUES:
            strength = strengths(*(steps[k][1] for k in rows))
            torch.testing.assert_close(result[rows], VALUES[name](images[rows], strength))
        if name == "identity":
            assert torch.equal(result[rows], images[rows])


@pytest.mark.parametrize("magnitude", [0.0, 0.25, 1.0])
def test_strengths_are_uniform_up_to_the_magnitude_either_way(magnitude: float) -> None:
    images = torch.zeros(5_000, 1, 2, 2, dtype=torch.float64)
    strength = RandAugment(1, magnitude, ("brightness",))(images, seeded())[:, 0, 0, 0] / 1.8
    assert strength.abs().max() <= magnitude
    assert strength.mean().item() == pytest.approx(0, abs=0.02)
    assert strength.std().item() == pytest.approx(magnitude / 3**0.5, abs=0.01)


@every_operation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 5, 9), (6, 3, 9, 5), (6, 1, 1, 1)])
def test_constant_images_stay_finite_and_keep_shape_and_dtype(
    name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    constant = torch.full(shape, 3.0, dtype=dtype)
    result = RandAugment(2, 1.0, (name,))(constant, seeded())
    assert result.shape == shape
    assert result.dtype == dtype
    assert result.isfinite().all()
    if name in VALUES and name != "brightness":
        torch.testing.assert_close(result, constant)


def test_a_view_can_be_given_fewer_operations() -> None:
    view = RandAugment(operations=("identity", "brightness"))
    images = photographs(50, 3, 8, 8)
    change = (view(images, seeded()) - images).flatten(1)
    torch.testing.assert_close(change, change[:, :1].expand_as(change), atol=1e-9, rtol=0)
