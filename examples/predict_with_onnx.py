"""A model that `meanteacher export` wrote, without meanteacher and torch: python predict_with_onnx.py MODEL IMAGE..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main(model: str, *paths: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    size, gap = (about["size"], about["size"]), about["resize_reducing_gap"]
    for path in paths:
        with Image.open(path) as image:
            scaled = image.draft(None, (int(gap * size[0]), int(gap * size[1])))  # JPEG at a half, a quarter, an eighth
            plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
        small = plain.resize(size, Image.Resampling[about["resize_filter"].upper()], scaled and scaled[1], gap)
        upright = ImageOps.exif_transpose(small).convert("RGBA")
        opaque = Image.alpha_composite(Image.new("RGBA", size, about["background"]), upright)
        pixels = np.asarray(opaque.convert(about["colour_order"])).transpose(2, 0, 1)  # bytes [3, size, size]
        (probabilities,) = session.run(["probabilities"], {"images": pixels[np.newaxis]})[0]
        print(path, about["class_names"][probabilities.argmax()], f"{probabilities.max():.4f}", sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
