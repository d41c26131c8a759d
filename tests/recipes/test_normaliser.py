import torch

from support import MadeUp, prepared_of, recipe


def test_images_kept_apart_for_validation_have_no_part_in_the_normalisation(tmp_path):
    spec, data = recipe(), MadeUp().load(tmp_path)
    prepared = prepared_of(spec, seed=0, data=data)
    assert len(prepared.split.validation)
    kept = torch.cat([prepared.split.labelled, prepared.split.unlabelled])
    expected = spec.training.normalise.fit(data.train.images[kept]).state_dict()
    found = prepared.normalise.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    everything = spec.training.normalise.fit(data.train.images).state_dict()
    assert any(not torch.equal(found[name], tensor) for name, tensor in everything.items())
