"""The second list of serving and TPU cases, drawn by a seed after the first matrix was read.

    python benchmarks/peak/draw_second.py > benchmarks/peak/matrix-2-serving-tpu.txt

Version 2 of the serving and TPU policies (ba55e1d) learned from the first matrix; this list was drawn and committed
before any of it was compiled, and shares no case with the first matrix or with the development cases.
"""

from __future__ import annotations

import random

from draw import distinct, listed, serving, tpu

SEED = "jaxcost peak matrix 2, serving and tpu"
EARLIER = ("matrix-1", "development-cuda", "development-serving", "development-tpu")


def second() -> list[str]:
    """Draw 40 serving cases for H100, and 60 cases for TPU of which 40 train."""
    chance, taken = random.Random(SEED), {line for name in EARLIER for line in listed(name)}
    parts = (
        (20, lambda c: serving(c, "prefill")),
        (20, lambda c: serving(c, "decode")),
        (40, tpu),
        (10, lambda c: tpu(c, "prefill")),
        (10, lambda c: tpu(c, "decode")),
    )
    return [command for count, make in parts for command in distinct(chance, count, make, taken)]


if __name__ == "__main__":
    print("\n".join(second()))
