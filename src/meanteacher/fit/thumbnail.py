"""An image small enough to stand inside a page."""

import base64
import io

from PIL import Image

from meanteacher.fit.decode import UnreadableError, decode, squeeze
from meanteacher.fit.photos import Photos

_SIDE = 96


def thumbnail(photos: Photos, index: int) -> str:
    """As a data: address; empty where the image can no longer be read."""
    try:
        image = _image(photos, index)
    except UnreadableError:
        return ""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _image(photos: Photos, index: int) -> Image.Image:
    if photos.arrays is None:
        return Image.fromarray(decode(photos.path(index), _SIDE))
    return squeeze(Image.fromarray(photos.arrays[index]), _SIDE)
