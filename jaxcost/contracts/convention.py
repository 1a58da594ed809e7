"""How operations and bytes are counted. A number without its convention cannot be compared."""

from __future__ import annotations

from typing import Literal

from jaxcost.contracts.record import Record, outside_digest


class Convention(Record):
    """The default counts one multiply-add as two FLOPs and every (query, key) pair of the rectangle."""

    name: str = outside_digest("jaxcost-fma2-rectangular-v1")
    flops_per_multiply_add: Literal[2] = 2
    attention_pairs: Literal["rectangular", "legal"] = "rectangular"
    embedding_lookup: Literal["gather"] = "gather"
    transfer_boundary: Literal["logical_payload"] = "logical_payload"


RECTANGULAR = Convention()
LEGAL = Convention(name="jaxcost-fma2-legal-v1", attention_pairs="legal")
