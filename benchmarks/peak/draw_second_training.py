"""The second list of training cases, drawn by a seed after the first matrix was read.

    python benchmarks/peak/draw_second_training.py > benchmarks/peak/matrix-2-training.txt

Version 2 of the CUDA training policy learned from the first matrix; this list was drawn and committed with it, before
any of it was compiled, and shares no case with the first matrix or with the development cases.
"""

from __future__ import annotations

import random

from draw import distinct, listed, training

SEED = "jaxcost peak matrix 2, training"
EARLIER = ("matrix-1", "development-cuda", "development-cuda-2")


def second() -> list[str]:
    """Draw 60 scanned and 8 unrolled cases for H100."""
    chance, taken = random.Random(SEED), {line for name in EARLIER for line in listed(name)}
    parts = ((60, training), (8, lambda c: training(c, "unrolled")))
    return [command for count, make in parts for command in distinct(chance, count, make, taken)]


if __name__ == "__main__":
    print("\n".join(second()))
