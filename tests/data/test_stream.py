import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meanteacher.core import UNLABELLED, Augment, Batch
from meanteacher.data.dataset import Dataset
from meanteacher.data.split import BatchSpec, Fixed, Mixed, make_split
from meanteacher.data.stream import ImageStream
from meanteacher.views import Chain, Flip, Noise, PerImage, Translate

N_CLASSES = 4
LABELS = torch.arange(80).remainder(N_CLASSES)
SPLIT = make_split(LABELS, n_classes=N_CLASSES, n_labelled=20, seed=0, validation=0.1)
SPECS = {
    "mixed": Mixed(size=10),
    "fixed-all": Fixed(size=10, labelled=3, unlabelled_pool="all"),
    "fixed-unlabelled": Fixed(size=10, labelled=3, unlabelled_pool="unlabelled"),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
AS_IT_IS = Chain()


def numbered() -> Tensor:
    """Image i is filled with the number i."""
    return torch.arange(80, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4).contiguous()


def identical() -> Tensor:
    one = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return one.repeat(80, 1, 1, 1)


def stream_of(
    images: Tensor,
    spec: BatchSpec = SPECS["mixed"],
    *,
    seed: int = 0,
    normalise: object = None,
    labelled_view: Augment | None = None,
    **views: Augment,
) -> ImageStream:
    return ImageStream(
        Dataset(images, LABELS, tuple("abcd")),
        spec.sampler(SPLIT, seed),
        views=views,
        labelled_view=labelled_view,
        normalise=normalise or torch.Tensor.float,
        seed=seed,
    )


def same_bytes(one: Batch, other: Batch) -> bool:
    tensors = [(one.labels, other.labels), (one.index, other.index)]
    tensors += [(one.views[role], other.views[role]) for role in one.views.keys() | other.views.keys()]
    return all(torch.equal(a, b) for a, b in tensors)


@every_spec
def test_a_hidden_label_never_enters_a_batch(spec: BatchSpec) -> None:
    stream = stream_of(numbered(), spec, student=AS_IT_IS)
    labelled = set(SPLIT.labelled.tolist())
    seen = set()
    for step in range(60):
        batch = stream[step]
        for index, label in zip(batch.index.tolist(), batch.labels.tolist(), strict=True):
            if label != UNLABELLED:
                assert index in labelled
                assert label == LABELS[index]
                seen.add(index)
    assert seen == labelled


def test_a_labelled_image_drawn_as_an_unlabelled_row_hides_its_label() -> None:
    stream = stream_of(numbered(), SPECS["fixed-all"], student=AS_IT_IS)
    batches = [stream[step] for step in range(60)]
    index = torch.stack([batch.index for batch in batches])
    labels = torch.stack([batch.labels for batch in batches])
    assert torch.isin(index[:, 3:], SPLIT.labelled).any()
    assert (labels[:, 3:] == UNLABELLED).all()
    assert (labels[:, :3] != UNLABELLED).all()


@every_spec
def test_the_index_names_the_images_of_every_role(spec: BatchSpec) -> None:
    stream = stream_of(numbered(), spec, student=AS_IT_IS, teacher=AS_IT_IS)
    for step in range(20):
        batch = stream[step]
        for role in ("student", "teacher"):
            assert batch.views[role].shape == (10, 3, 4, 4)
            assert (batch.views[role] == batch.index[:, None, None, None]).all()


def test_images_of_the_validation_part_never_enter_a_batch() -> None:
    stream = stream_of(numbered(), student=AS_IT_IS)
    shown = torch.cat([stream[step].views["student"][:, 0, 0, 0] for step in range(30)])
    assert not torch.isin(shown.long(), SPLIT.validation).any()


def test_views_are_drawn_after_normalisation() -> None:
    images = torch.randint(0, 256, (80, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    normalise = PerImage().fit(images)
    batch = stream_of(images, normalise=normalise, student=AS_IT_IS, teacher=Noise(0.15))[3]
    assert torch.equal(batch.views["student"], normalise(images[batch.index]))
    # Normalised afterwards, the noisy images would have unit variance again.
    assert (batch.views["teacher"] - batch.views["student"]).std() == pytest.approx(0.15, rel=0.1)


def test_student_and_teacher_see_independent_draws() -> None:
    stream = stream_of(torch.zeros(80, 3, 20, 20), student=Noise(1.0), teacher=Noise(1.0))
    views = stream[5].views
    pair = torch.stack([views["student"].flatten(), views["teacher"].flatten()])
    assert torch.corrcoef(pair)[0, 1].abs() < 0.04


@pytest.mark.parametrize("view", [Translate(2), Flip(), Noise(0.15)], ids=["translate", "flip", "noise"])
def test_student_and_teacher_views_of_a_step_differ(view: Augment) -> None:
    views = stream_of(identical(), student=view, teacher=view)[5].views
    assert not torch.equal(views["student"], views["teacher"])


@pytest.mark.parametrize("view", [Translate(2), Flip(), Noise(0.15)], ids=["translate", "flip", "noise"])
def test_a_view_is_drawn_anew_for_every_step_and_seed(view: Augment) -> None:
    stream, other_seed = (stream_of(identical(), seed=seed, student=view) for seed in (0, 1))
    drawn = [stream[0], stream[1], other_seed[0]]
    assert len({batch.views["student"].numpy().tobytes() for batch in drawn}) == 3


@pytest.mark.parametrize(("view", "at_least"), [(Translate(2), 15), (Flip(), 2), (Noise(0.15), 64)])
def test_an_augmentation_draws_for_every_image_of_a_batch_separately(view: Augment, at_least: int) -> None:
    batch = stream_of(identical(), Mixed(size=64), student=view)[0]
    assert len(batch.views["student"].unique(dim=0)) >= at_least


def test_what_one_role_sees_does_not_depend_on_the_other_roles() -> None:
    alone = stream_of(identical(), student=Noise(0.15))[4]
    both = stream_of(identical(), teacher=Chain((Translate(2), Noise(1.0))), student=Noise(0.15))[4]
    assert torch.equal(alone.views["student"], both.views["student"])


@every_spec
def test_a_step_gives_the_same_bytes_twice_and_in_any_order(spec: BatchSpec) -> None:
    view = Chain((Flip(), Translate(2), Noise(0.15)))
    ascending = stream_of(identical(), spec, student=view, teacher=view)
    batches = [ascending[step] for step in range(12)]
    another = stream_of(identical(), spec, student=view, teacher=view)
    for step in [11, 0, 5, 5, 7, 1]:
        torch.rand(7)  # what anyone else draws from the global generator must not matter
        assert same_bytes(another[step], batches[step])
    assert not same_bytes(batches[0], batches[1])


def test_reading_a_batch_leaves_the_data_and_the_global_generator_alone() -> None:
    images = identical()
    stream = stream_of(images, student=Chain((Flip(), Translate(2), Noise(0.15))))
    before = torch.get_rng_state()
    stream[0].views["student"].add_(1)
    stream[0].labels.fill_(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, identical())
    assert torch.equal(stream.dataset.labels, LABELS)


@pytest.mark.parametrize("labelled", [3, 10])
def test_rows_that_show_their_label_can_have_a_view_of_their_own(labelled: int) -> None:
    spec = Fixed(size=10, labelled=labelled, unlabelled_pool="all")
    stream = stream_of(
        numbered(),
        spec,
        student=lambda images, _: images + 100,
        labelled_view=lambda images, _: images + 200,
        teacher=AS_IT_IS,
    )
    for step in range(20):
        batch = stream[step]
        added = torch.where(batch.labels == UNLABELLED, 100, 200)
        assert set(batch.views) == {"student", "teacher"}
        assert torch.equal(batch.views["student"][:, 0, 0, 0], batch.index + added)
        assert torch.equal(batch.views["teacher"][:, 0, 0, 0], batch.index.float())


def test_labelled_rows_may_lie_anywhere_in_the_batch() -> None:
    stream = stream_of(numbered(), student=lambda images, _: images + 100, labelled_view=lambda images, _: images + 200)
    batches = [stream[step] for step in range(20)]
    assert any((batch.labels != UNLABELLED).diff().any() for batch in batches)
    for batch in batches:
        added = torch.where(batch.labels == UNLABELLED, 100, 200)
        assert torch.equal(batch.views["student"][:, 0, 0, 0], batch.index + added)


def test_views_of_labelled_and_other_rows_are_drawn_apart() -> None:
    both = stream_of(identical(), SPECS["fixed-all"], student=Noise(0.1), labelled_view=Noise(0.1))[0].views["student"]
    assert not torch.equal(both[0], both[3])


@settings(max_examples=30, deadline=None, database=None)
@given(
    st.one_of(
        st.builds(Mixed, size=st.integers(1, 40)),
        st.builds(
            lambda size, share, pool: Fixed(size=size, labelled=max(1, round(size * share)), unlabelled_pool=pool),
            st.integers(1, 40),
            st.floats(0, 1),
            st.sampled_from(["all", "unlabelled"]),
        ),
    ),
    st.integers(0, 2**31),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
)
def test_a_batch_depends_on_its_step_alone_and_hides_what_is_hidden(
    spec: BatchSpec, seed: int, steps: list[int]
) -> None:
    stream = stream_of(numbered(), spec, seed=seed, student=Noise(0.5))
    forwards = [stream[step] for step in steps]
    again = stream_of(numbered(), spec, seed=seed, student=Noise(0.5))
    for step, batch in reversed(list(zip(steps, forwards, strict=True))):
        other = again[step]
        assert torch.equal(batch.index, other.index)
        assert torch.equal(batch.views["student"], other.views["student"])
        assert len(batch.labels) == len(batch.index) == spec.size
        shown = batch.labels != UNLABELLED
        assert set(batch.index[shown].tolist()) <= set(SPLIT.labelled.tolist())
        assert torch.equal(batch.labels[shown], LABELS[batch.index[shown]])
        assert not set(batch.index.tolist()) & set(SPLIT.validation.tolist())
