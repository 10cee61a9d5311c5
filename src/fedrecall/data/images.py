"""An image file's content as pixels."""

from __future__ import annotations

import io
import re

import numpy as np
from numpy.typing import NDArray

from fedrecall.errors import UserError

Pixels = NDArray[np.uint8]


def decode(content: bytes, where: str, size: int = 0, channels: int = 0) -> Pixels:
    """An image's pixels: grey stays ``[H, W]`` unless three channels are asked for."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as opened:
            image: Image.Image = opened
            image.load()
            if image.format in ("JPEG", "MPO"):
                image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise UserError(f"{where} has pixels of more than 16 bits, which cannot be used.")
            grey = image.mode in ("1", "L", "LA") if not channels else channels == 1
            image = image.convert("L" if grey else "RGB")
            if size:
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on a broken file
        why = re.sub(
            " <_io.BytesIO object at 0x[0-9a-f]+>", "", str(error)
        )  # Pillow's name for what it was given
        raise UserError(f"{where} is not an image that can be decoded: {why}.") from error
