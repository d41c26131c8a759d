"""Pretrained networks and the features that they compute, by onnxruntime or torch."""
