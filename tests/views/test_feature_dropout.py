"""`FeatureDropout`: a share of the values is zero, all others are as they were."""

import torch

from meanteacher.views import FeatureDropout


def test_a_share_of_the_values_is_zero_and_the_others_keep_their_scale():
    rows = torch.full((200, 50), 3.0)
    seen = FeatureDropout(0.3)(rows, torch.Generator().manual_seed(0))
    assert set(seen.unique().tolist()) == {0.0, 3.0}
    # 10,000 draws: six standard deviations are 0.028.
    assert abs(float((seen == 0).float().mean()) - 0.3) < 0.028


def test_every_row_loses_values_of_its_own():
    seen = FeatureDropout(0.5)(torch.ones(40, 50), torch.Generator().manual_seed(0))
    assert len(seen.unique(dim=0)) == 40
