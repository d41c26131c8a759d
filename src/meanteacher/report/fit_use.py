"""How to use the model that a fit leaves behind: the same words on the page and in the model card."""

COMMANDS = (
    ("Classify other photographs", "meanteacher predict DIR PHOTOS"),
    ("Judge the model with labels it has not seen", "meanteacher evaluate DIR PHOTOS --labels labels.csv"),
    ("Label the images that teach it most", "meanteacher label PHOTOS --run DIR"),
    ("Learn again from more labels", "meanteacher fit PHOTOS --labels DIR/labels.csv --from DIR --out NEW"),
    ("Take it elsewhere, without Python", "meanteacher export DIR --onnx"),
)
"""What it is for, and the command."""

PYTHON = """\
import torch
from pathlib import Path
from meanteacher.fit.bundle import load_bundle
from meanteacher.fit.decode import decode

bundle = load_bundle(Path("DIR"))
image = torch.tensor(decode(Path("photo.jpg"), bundle.size)).permute(2, 0, 1)
probabilities = bundle.probabilities(image[None])[0]
print(bundle.class_names[probabilities.argmax()], f"{probabilities.max():.0%}")
"""
