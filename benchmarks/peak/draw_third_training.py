"""The third list of training cases, drawn by a seed after the second matrix was read.

    python benchmarks/peak/draw_third_training.py > benchmarks/peak/matrix-3-training.txt

Version 3 of the CUDA training policy learned from the first two matrices; this list was drawn and committed with it,
before any of it was compiled, and shares no case with those matrices or with the development cases.
"""

from __future__ import annotations

import random

from draw import distinct, listed, training

SEED = "jaxcost peak matrix 3, training"
EARLIER = ("matrix-1", "matrix-2-training", "development-cuda", "development-cuda-2")


def third() -> list[str]:
    """Draw 56 scanned cases for H100."""
    chance, taken = random.Random(SEED), {line for name in EARLIER for line in listed(name)}
    return distinct(chance, 56, training, taken)


if __name__ == "__main__":
    print("\n".join(third()))
