"""An image file's content as pixels."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecall.errors import UserError

Pixels = NDArray[np.uint8]


_LEAST = 4096
"""A brightest pixel of 16 bits: below it a byte would keep 4 bits of 12, as X-rays and scans often have."""


_STARTS = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP"}
"""How common files begin: left to itself, Pillow tries kind after kind, which takes as long as decoding."""


def decode(content: bytes, where: str, size: int = 0, channels: int = 0) -> Pixels:
    """An image's pixels: grey stays ``[H, W]`` unless three channels are asked for."""
    from PIL import Image, ImageOps

    try:
        likely = [kind for start, kind in _STARTS.items() if content.startswith(start)]
        with Image.open(io.BytesIO(content), formats=likely or None) as opened:
            image: Image.Image = opened
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode in ("I", "F") or image.mode.startswith("I;16"):
                image = Image.fromarray(_top_byte(np.asarray(image), where))
            grey = image.mode in ("1", "L", "LA") if not channels else channels == 1
            if image.has_transparency_data:  # as if on paper: what lies under it is often black, like ink
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            if image.mode != (wanted := "L" if grey else "RGB"):
                image = image.convert(wanted)
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


def _top_byte(pixels: NDArray[Any], where: str) -> Pixels:
    """8 of 16 bits, if the others do not hold the picture."""
    least, most = pixels.min(), pixels.max()
    if pixels.dtype.kind == "f" or least < 0 or most >= 2**16:
        raise UserError(f"{where} has pixels of more than 16 bits, which cannot be used.")
    if 0 < most < _LEAST:
        raise UserError(
            f"{where} has pixels of 16 bits, of which the brightest is {most}: 8 bits would leave "
            f"{int(most) // 256 + 1} shades of grey. Scale them to 0 to 255 and save them so."
        )
    return (pixels.astype(np.int64) >> 8).astype(np.uint8)
