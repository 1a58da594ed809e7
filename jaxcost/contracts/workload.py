"""How a graph is used: phase, rows, logits rows and attention plan.

Rows follow one rule in every phase: `visible = past + new`, queries are the new rows. A prefill with past rows is a
later part of a prompt, over a cache that is handed in; it is counted, not executed. Ragged or packed work gives the
`lengths` of its sequences; ledgers then use the sums of L and of L squared instead of batch x rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Extent, Record, Size, outside_digest

Phase = Literal["training", "prefill", "decode"]
AttentionPlan = Literal["materialised", "blockwise", "cudnn", "splash"]
PHASES: tuple[str, ...] = ("training", "prefill", "decode")


class Workload(Record):
    """One executed step. `batch` counts global sequences; `logits` gives rows per sequence."""

    name: str = outside_digest("")
    phase: Phase
    batch: Size
    new_tokens: Size
    past_tokens: Extent = 0
    logits: Literal["all", "final"] | Size = "all"
    accumulate: Size = 1
    attention: AttentionPlan = "materialised"
    attention_block: Size = 512
    dropout: bool = False
    lengths: tuple[Size, ...] | None = Field(default=None)

    def problems(self) -> Iterable[Problem]:
        if self.phase == "decode" and self.new_tokens != 1:
            yield Problem(
                "new_tokens", self.new_tokens, "decode computes one new token per sequence", "write 1 (--seq 1)"
            )
        if self.phase == "training" and self.past_tokens:
            yield Problem("past_tokens", self.past_tokens, "training keeps no cache", "write 0, or use phase decode")
        if self.phase == "training" and self.logits != "all":
            rule = "training supervises every row"
            yield Problem("logits", self.logits, rule, "write all; final-row logits belong to prefill and decode")
        if isinstance(self.logits, int) and self.logits > self.new_tokens:
            rule = f"more logits rows than new rows ({self.new_tokens})"
            yield Problem("logits", self.logits, rule, "write all, final or a smaller number")
        if self.phase != "training" and self.dropout:
            yield Problem("dropout", True, "dropout acts in training only", "write false")
        if self.phase != "training" and self.accumulate != 1:
            yield Problem("accumulate", self.accumulate, "gradients accumulate in training only", "write 1")
        if self.batch % self.accumulate:
            rule = f"accumulate must divide batch ({self.batch})"
            yield Problem("accumulate", self.accumulate, rule, "use a divisor of the global batch")
        if self.lengths is not None:
            yield from self._ragged_problems(self.lengths)

    def _ragged_problems(self, lengths: tuple[int, ...]) -> Iterable[Problem]:
        if len(lengths) != self.batch:
            yield Problem(
                "lengths", len(lengths), f"one length per sequence of batch ({self.batch})", "give as many as batch"
            )
        if lengths and max(lengths) != self.new_tokens:
            rule = f"the longest must equal new_tokens ({self.new_tokens})"
            yield Problem("lengths", max(lengths), rule, "set new_tokens to the longest length")
        if self.continues:
            yield Problem(
                "lengths",
                list(lengths[:4]),
                "ragged rows over a cache are not supported",
                "use one past length for the batch",
            )

    @property
    def continues(self) -> bool:
        """Whether a cache is handed in: in decode, and in a prefill with past rows."""
        return self.phase == "decode" or self.past_tokens > 0

    @property
    def visible_tokens(self) -> int:
        """K/V rows one query can see: past plus new."""
        return self.past_tokens + self.new_tokens

    @property
    def logits_rows_per_sequence(self) -> int:
        """Rows projected onto the vocabulary, per sequence."""
        if isinstance(self.logits, int):
            return self.logits
        return self.new_tokens if self.logits == "all" else 1

    def block_for(self, rows: int) -> int:
        """Rows per block of the blockwise schedule: the largest divisor of `rows` not above `attention_block`."""
        block = min(self.attention_block, rows)
        while rows % block:
            block -= 1
        return block
