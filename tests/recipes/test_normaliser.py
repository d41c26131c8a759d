import torch

from meanteacher.experiment.run import _Experiment
from support import MadeUp, recipe


def test_images_kept_apart_for_validation_have_no_part_in_the_normalisation(tmp_path):
    spec, data = recipe(), MadeUp().load(tmp_path)
    experiment = _Experiment(spec, 0, data)
    assert len(experiment.split.validation)
    kept = torch.cat([experiment.split.labelled, experiment.split.unlabelled])
    expected = spec.normalise.fit(data.train.images[kept]).state_dict()
    found = experiment.normalise.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    everything = spec.normalise.fit(data.train.images).state_dict()
    assert any(not torch.equal(found[name], tensor) for name, tensor in everything.items())
