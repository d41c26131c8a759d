"""Pretrained networks: their weights, the features of photos, and training of the last layers."""
