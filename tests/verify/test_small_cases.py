"""Every publish gate that is about a case holds on small ones that between them use every phase, plan and mesh axis.

The catalogue's models are held to the gates too; these are the cases in which a reader can recount every number.
"""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.verify.gates import CHECKS, items, subject
from tests.prediction.cases import CLASSIC, TOY, case

SMALL_CLASSIC = CLASSIC | {"L": 2, "d": 8, "h": 4, "k": 4, "e": 2, "f": 32, "V": 16, "positions": 8, "dropout": 0.1}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "training": (TOY, {"phase": "training", "batch": 2, "seq": 4}),
    "classic with dropout": (SMALL_CLASSIC, {"phase": "training", "batch": 2, "seq": 4, "dropout": True}),
    "tied, one layer frozen": (TOY | {"tied": True}, {"phase": "training", "batch": 2, "seq": 4, "frozen": ["embed"]}),
    "recomputed": (TOY, {"phase": "training", "batch": 4, "seq": 4, "remat": "block", "accumulate": 2}),
    "blockwise": (TOY, {"phase": "training", "batch": 2, "seq": 4, "attention": "blockwise", "attention_block": 2}),
    "adafactor": (TOY | {"f": 256, "d": 128}, {"phase": "training", "batch": 2, "seq": 4, "optimizer": "adafactor"}),
    "unrolled": (TOY, {"phase": "training", "batch": 2, "seq": 4, "layers": "unrolled"}),
    "legal pairs": (TOY, {"phase": "training", "batch": 2, "seq": 4, "pairs": "legal"}),
    "fsdp": (TOY, {"phase": "training", "batch": 4, "seq": 4, "mesh": {"fsdp": 2}, "remat": "block"}),
    "tensor": (TOY, {"phase": "training", "batch": 4, "seq": 4, "mesh": {"tensor": 2}, "sequence_parallel": True}),
    "zero": (TOY, {"phase": "training", "batch": 4, "seq": 4, "mesh": {"data": 2}, "zero": 1}),
    "context": (TOY, {"phase": "training", "batch": 4, "seq": 4, "mesh": {"context": 2}}),
    "pipeline": (TOY, {"phase": "training", "batch": 4, "seq": 4, "mesh": {"pipeline": 2}, "accumulate": 2}),
    "three axes": (TOY, {"phase": "training", "batch": 8, "seq": 4, "mesh": {"data": 2, "fsdp": 2, "tensor": 2}}),
    "prefill": (TOY, {"phase": "prefill", "batch": 2, "seq": 4}),
    "decode": (TOY, {"phase": "decode", "batch": 2, "past": 5}),
    "decode on tensor": (TOY, {"phase": "decode", "batch": 2, "past": 5, "mesh": {"tensor": 2}}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_check_holds(name: str) -> None:
    sizes, options = CASES[name]
    looked_at = subject(name, case(sizes, **options))
    found = {check.name: list(items(check, looked_at)) for check in CHECKS.values() if check.over == "case"}
    assert {key: [text for text in texts if text] for key, texts in found.items() if any(texts)} == {}
    assert sum(map(len, found.values())) > 1000
