"""Use a model that `meanteacher fit` trained: python examples/use_model.py MODEL PHOTOS"""

import sys

import meanteacher as mt


def main(model: str, photos: str) -> None:
    predictions = mt.load(model).predict(photos)
    for name, label, confidence in zip(predictions.names, predictions, predictions.confidence, strict=True):
        print(f"{name}\t{label or predictions.problems[name]}\t{confidence:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
