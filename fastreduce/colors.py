"""The colours of pictures."""

from __future__ import annotations

from typing import TypeAlias

Color: TypeAlias = tuple[float, float, float, float]

INK, FAINT = "#222222", "#dddddd"
SEVERAL: Color = (0.2, 0.2, 0.23, 1.0)  # darker than any shard's


def color_of(shard: int | None, shards: int) -> Color:
    """The colour of a shard: one of ten distinct colours, or of a scale if there are more."""
    from matplotlib import colormaps

    if shard is None:
        return SEVERAL
    if shards <= 10:
        red, green, blue, alpha = colormaps["tab10"](shard)
    else:
        red, green, blue, alpha = colormaps["turbo"](0.05 + 0.9 * shard / (shards - 1))
    return red, green, blue, alpha


def ink_on(color: Color) -> str:
    """A text colour that can be read on ``color``: dark on light ones (luma of ITU-R BT.601), else
    white."""
    red, green, blue, _ = color
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.62 else "white"
