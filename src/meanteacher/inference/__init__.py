"""Networks that only predict: onnxruntime computes them on a CPU, torch elsewhere."""
