"""The cuts of a study: ``25%`` of a path's tokens, or ``300`` tokens, from its end."""

import argparse
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """``amount`` is a share of the path (0 to 1) when ``relative``, else tokens. ``name`` is how it was written."""

    name: str
    amount: float
    relative: bool

    def tokens(self, length: int, ended: bool) -> int:
        """m, the number of tokens cut from a path of ``length`` tokens, rounded up, at most all.

        A path that ``ended`` by itself loses at least its end token, or nothing could be generated.
        """
        wanted = math.ceil(self.amount * length - 1e-9) if self.relative else int(self.amount)
        return min(length, max(wanted, int(ended)))


def parse_cut(text: str) -> Cut:
    """``25%`` or ``300``. Raises argparse.ArgumentTypeError."""
    relative = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) if relative else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text}: a share of the path (25%) or a number of tokens (300) is needed"
        ) from None
    if not 0 <= number <= (100 if relative else math.inf):
        raise argparse.ArgumentTypeError(f"{text}: between 0% and 100%, or a number of tokens")
    return Cut(text, number / 100 if relative else number, relative)
