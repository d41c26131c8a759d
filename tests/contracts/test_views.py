"""Every view and every normaliser of the package holds to the contract."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from instances import ALL_VIEWS, IDENTITIES, NORMALISERS, VIEWS, shown_shape
from torch import Tensor

from meanteacher import testing as contract
from meanteacher import views
from meanteacher.core import InputError
from meanteacher.seeding import RowGenerator
from meanteacher.views import (
    Chain,
    Crop,
    Cutout,
    FeatureDropout,
    Jitter,
    Noise,
    Normaliser,
    RandAugment,
    Rotate,
    Scaled,
    Translate,
    Warp,
    Zca,
)

every_view = pytest.mark.parametrize("name", ALL_VIEWS)
every_drawing_view = pytest.mark.parametrize("name", VIEWS)
every_normaliser = pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS)
SHAPES = [(30, 3, 8, 10), (30, 1, 7, 5), (6, 4, 5, 6), (6, 3, 5, 9), (1, 3, 6, 4), (1, 1, 8, 8)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=dtype)


def bytes_of(*shape: int, seed: int = 0) -> Tensor:
    """Random images whose channels differ in brightness and contrast."""
    scale = torch.linspace(0.2, 1, shape[1]).view(1, -1, *[1] * (len(shape) - 2))
    return (torch.rand(shape, generator=seeded(seed)) * scale * 255).to(torch.uint8)


def test_every_view_and_normaliser_of_the_package_is_held_to_the_contract():
    held = {type(value) for value in (*VIEWS.values(), *NORMALISERS.values())}
    assert held == {getattr(views, name) for name in views.__all__} - {Normaliser}


@every_view
def test_view_holds_to_the_published_contract(name: str):
    contract.check_view(ALL_VIEWS[name])


@every_view
def test_some_rows_of_a_batch_are_shown_as_among_all_of_them(name: str):
    """So that a process that trains together with others computes its own rows only."""
    view, images = ALL_VIEWS[name], photographs(13, 3, 8, 10)
    some = RowGenerator().manual_seed(0)
    some.n_rows, some.rows = 13, torch.arange(13)[1::3]
    assert view.by_rows
    assert torch.equal(view(images[1::3], some), view(images, seeded())[1::3])


# --- what is shown ----------------------------------------------------------------------------------------


@every_view
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_dtype_and_device_are_kept_and_all_values_are_finite(name: str, dtype: torch.dtype):
    for shape in SHAPES:
        for images in (photographs(*shape, dtype=dtype), torch.full(shape, 3.0, dtype=dtype)):
            seen = ALL_VIEWS[name](images, seeded())
            assert seen.shape == shown_shape(ALL_VIEWS[name], shape)
            assert (seen.dtype, seen.device) == (dtype, images.device)
            assert seen.isfinite().all()


# A shift by two pixels needs images of three.
@pytest.mark.parametrize("name", [name for name in ALL_VIEWS if name not in ("chain", "translate")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_of_one_pixel_are_shown_too(name: str, dtype: torch.dtype):
    seen = ALL_VIEWS[name](torch.full((6, 1, 1, 1), 3.0, dtype=dtype), seeded())
    assert seen.shape == shown_shape(ALL_VIEWS[name], (6, 1, 1, 1))
    assert seen.dtype == dtype
    assert seen.isfinite().all()


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_without_strength_shows_the_images_as_they_are(name: str, channels: int):
    images = photographs(100, channels, 7, 10)
    seen = IDENTITIES[name](images, seeded())
    if name in (
        "jitter-of-nothing",
        "randaugment-no-magnitude",
        "rotate-by-nothing",
        "warp-by-nothing",
    ):  # they still compute
        torch.testing.assert_close(seen, images, atol=1e-5, rtol=0)
    else:
        assert torch.equal(seen, images)


# --- what is drawn ----------------------------------------------------------------------------------------


@every_drawing_view
def test_equal_generators_show_the_same_and_others_something_else(name: str):
    images, view = photographs(60, 3, 16, 16), VIEWS[name]
    seen = view(images, seeded(3))
    assert torch.equal(view(images, seeded(3)), seen)
    assert not torch.equal(view(images, seeded(4)), seen)


@every_drawing_view
def test_two_views_in_a_row_draw_differently(name: str):
    images, source = photographs(60, 3, 16, 16), seeded()
    assert not torch.equal(VIEWS[name](images, source), VIEWS[name](images, source))


@every_drawing_view
def test_every_image_has_a_draw_of_its_own(name: str):
    same = photographs(1, 3, 32, 32).expand(64, -1, -1, -1)
    seen = VIEWS[name](same, seeded()).flatten(1)
    # An image has one mirror image and 25 shifts by up to two pixels; the weakest solarisations change no pixel.
    at_least = {"flip": 2, "translate": 18, "cutout": 58, "randaugment-solarise": 48}
    assert len(seen.unique(dim=0)) >= at_least.get(name, 64)
    assert not torch.equal(seen[:32], seen[32:])


@every_view
def test_an_image_is_seen_the_same_whatever_else_is_in_the_batch(name: str):
    images = photographs(40, 3, 8, 10, dtype=torch.float64)
    others = images.clone()
    others[1::2] = 5 * photographs(20, 3, 8, 10, dtype=torch.float64, seed=8) + 2
    seen, beside_others = (ALL_VIEWS[name](batch, seeded(2))[::2] for batch in (images, others))
    torch.testing.assert_close(beside_others, seen, atol=1e-9, rtol=0)


# --- memory: views move pixels by their place in it -------------------------------------------------------


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def columns_first(images: Tensor) -> Tensor:
    return images.transpose(2, 3).contiguous().transpose(2, 3)


def behind_one_value(images: Tensor) -> Tensor:
    """Contiguous, but from an odd place on."""
    return torch.cat([images.new_zeros(1), images.flatten()])[1:].view(images.shape)


def inside_a_larger_batch(images: Tensor) -> Tensor:
    room = images.new_full([length + 2 for length in images.shape], torch.nan)
    inside = room[1:-1, 1:-1, 1:-1, 1:-1]
    inside.copy_(images)
    return inside


def dtypes_for(name: str) -> list[torch.dtype]:
    """RandAugment rounds to steps what another operation computed: in float32 a last digit may decide the step."""
    return [torch.float64] if name == "randaugment" else [torch.float32, torch.float64]


@every_view
@pytest.mark.parametrize("laid_out", [channels_last, columns_first, behind_one_value, inside_a_larger_batch])
def test_the_order_of_the_values_in_memory_does_not_matter(name: str, laid_out: Callable[[Tensor], Tensor]):
    for shape in SHAPES:
        for dtype in dtypes_for(name):
            images = photographs(*shape, dtype=dtype)
            other = laid_out(images)
            seen = ALL_VIEWS[name](other, seeded(2))
            torch.testing.assert_close(seen, ALL_VIEWS[name](images, seeded(2)), atol=1e-5, rtol=0)
            assert torch.equal(other, images)


@every_view
def test_one_image_shown_many_times_is_seen_as_its_copies_are(name: str):
    for shape in SHAPES:
        for dtype in dtypes_for(name):
            same = photographs(*shape, dtype=dtype)[:1].expand(shape)
            seen, of_copies = (ALL_VIEWS[name](images, seeded(2)) for images in (same, same.clone()))
            torch.testing.assert_close(seen, of_copies, atol=1e-5, rtol=0)


# --- values of fields -------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, dict[str, object], list[str]]] = [
    # the class, a field out of range, and what the message names besides the value given
    (Crop, {"size": 0}, ["size"]),
    *((Crop, {"scale": value}, ["scale", "(0, 1]"]) for value in [(0.0, 1.0), (0.5, 0.4), (0.5, 1.1)]),
    *((Crop, {"aspect": value}, ["aspect"]) for value in [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf)]),
    (Cutout, {"size": -1}, ["size"]),
    *((FeatureDropout, {"rate": value}, ["rate"]) for value in [-0.1, 1.0, math.nan]),
    (Jitter, {"brightness": 1.1}, ["brightness", "0 to 1"]),
    (Jitter, {"contrast": -0.1}, ["contrast", "0 to 1"]),
    (Jitter, {"saturation": 2}, ["saturation", "0 to 1"]),
    (Jitter, {"hue": 0.6}, ["hue", "0 to 0.5"]),
    *((Noise, {"deviation": value}, ["deviation"]) for value in [-0.1, math.nan]),
    (RandAugment, {"n": -1}, ["n >= 0"]),
    (RandAugment, {"magnitude": 1.5}, ["magnitude", "0 to 1"]),
    (RandAugment, {"operations": ()}, ["operations", ", ".join(RandAugment().operations)]),
    (RandAugment, {"operations": ("brightness", "melt")}, ["'melt'", ", ".join(RandAugment().operations[:-1])]),
    *((Rotate, {"degrees": value}, ["degrees", "0 to 180"]) for value in [-1.0, 181.0, math.nan]),
    *((Scaled, {"limit": value}, ["limit"]) for value in [0.0, -1.0, math.nan]),
    (Translate, {"pixels": -1}, ["pixels"]),
    *((Warp, {"translate": value}, ["translate"]) for value in [-1.0, math.nan, math.inf]),
    *((Warp, {"degrees": value}, ["degrees", "0 to 180"]) for value in [-1.0, 181.0, math.nan]),
    *((Warp, {"scale": value}, ["scale", "(0, 1]"]) for value in [(0.0, 1.0), (0.5, 0.4), (0.5, 1.1)]),
    *((Zca, {"contrast": True, "epsilon": value}, ["epsilon"]) for value in [-0.1, math.nan]),
]


@pytest.mark.parametrize(("kind", "fields", "named"), REFUSED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_field_out_of_range_is_refused_when_the_view_is_made(kind: Any, fields: dict[str, Any], named: list[str]):
    with pytest.raises(InputError) as caught:
        kind(**fields)
    *_, value = fields.values()
    given = "none" if value == () else "'melt'" if "melt" in str(value) else str(value)
    for words in (kind.__name__, f"got {given}", *named):
        assert words in str(caught.value)


def test_every_view_with_a_number_among_its_fields_refuses_some():
    """Whoever adds a view says which values of its fields make no sense."""
    with_fields = {type(view) for view in (*VIEWS.values(), *NORMALISERS.values()) if dataclasses.fields(view)}
    assert {kind for kind, *_ in REFUSED} == with_fields - {Chain}


@pytest.mark.parametrize("name", [*ALL_VIEWS, *NORMALISERS])
def test_it_is_a_frozen_value_with_a_stable_description(name: str):
    contract.is_a_frozen_value({**ALL_VIEWS, **NORMALISERS}[name])


# --- every normaliser -------------------------------------------------------------------------------------


@every_normaliser
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_batch_is_normalised_as_its_images_one_by_one(normaliser: Normaliser, as_bytes: bool):
    images = bytes_of(60, 3, 4, 4)
    images = images if as_bytes else images.float() / 255
    module = normaliser.fit(images)
    one_by_one = torch.cat([module(image) for image in images[:20].split(1)])
    torch.testing.assert_close(module(images[:20]), one_by_one, atol=1e-4, rtol=1e-4)


@every_normaliser
def test_bytes_and_their_floats_are_normalised_alike(normaliser: Normaliser):
    images = bytes_of(60, 3, 4, 4)
    floats = images.float() / 255
    torch.testing.assert_close(normaliser.fit(images)(images), normaliser.fit(floats)(floats))


@every_normaliser
def test_normalised_images_keep_shape_and_device_and_become_float32(normaliser: Normaliser):
    module = normaliser.fit(bytes_of(60, 3, 4, 4))
    for n in (1, 20):
        images = bytes_of(n, 3, 4, 4)
        normal = module(images)
        assert normal.shape == images.shape
        assert (normal.dtype, normal.device) == (torch.float32, images.device)


@every_normaliser
@pytest.mark.parametrize("laid_out", [channels_last, columns_first, behind_one_value, inside_a_larger_batch])
def test_a_normaliser_does_not_mind_the_order_in_memory(normaliser: Normaliser, laid_out: Callable[[Tensor], Tensor]):
    images = bytes_of(60, 3, 4, 6).float() / 255
    module = normaliser.fit(images)
    normal = module(images)
    torch.testing.assert_close(module(laid_out(images)), normal, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(normaliser.fit(laid_out(images))(images), normal, atol=1e-3, rtol=1e-3)


@every_normaliser
def test_the_state_of_a_normaliser_survives_being_saved_and_loaded(normaliser: Normaliser):
    train, others = bytes_of(60, 3, 4, 4), bytes_of(60, 3, 4, 4, seed=1).div(3, rounding_mode="floor")
    fitted, restored = normaliser.fit(train), normaliser.fit(others)
    assert not list(fitted.parameters())
    if fitted.state_dict():
        assert not torch.equal(restored(train), fitted(train))
    restored.load_state_dict({name: value.clone() for name, value in fitted.state_dict().items()})
    assert torch.equal(restored(train), fitted(train))


@every_normaliser
def test_neither_fitting_nor_normalising_writes_the_images(normaliser: Normaliser):
    images = bytes_of(60, 3, 4, 4).float() / 255
    before = images.clone()
    normaliser.fit(images)(images).add_(1)
    assert torch.equal(images, before)


@every_normaliser
@pytest.mark.parametrize("level", [0, 25, 123, 255])
def test_constant_images_stay_finite(normaliser: Normaliser, level: int):
    module = normaliser.fit(bytes_of(60, 3, 4, 4))
    blank = torch.full((2, 3, 4, 4), level, dtype=torch.uint8)
    assert torch.isfinite(module(blank)).all()
    assert torch.isfinite(normaliser.fit(blank)(blank)).all()


@every_normaliser
def test_fitting_to_some_images_is_fitting_to_a_copy_of_them(normaliser: Normaliser):
    images, index = bytes_of(40, 3, 4, 4), torch.tensor([31, 2, 17, 5, 8, 39, 0, 22])
    named, copied = normaliser.fit(images, index), normaliser.fit(images[index])
    for name, tensor in copied.state_dict().items():
        assert torch.equal(named.state_dict()[name], tensor), name
