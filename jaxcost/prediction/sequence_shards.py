"""The axes that split the rows of a sequence: what of the stream and of keys and values a device has.

Sequence parallelism is bound to the tensor ranks and splits the stream [b, s, d] between tensor-parallel regions; no
weight is split by it, and the world does not grow. A context axis splits the rows everywhere; weights are replicated
over it, and a query still meets the keys of all rows. They come together in one of two ways: gathered whole before the
pairwise products, or passed round a ring block by block (Liu et al. 2023, arXiv:2310.01889). A ring keeps the local
block and the one that travels, two where the next block is received while the last is being used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import exact_div
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row


class KeysValues(NamedTuple):
    """Keys and values of one layer of a group and one microbatch on a device, as its tensor slice.

    `full_bytes` of all rows, `local_bytes` of the device's own, `remote_bytes` of the others; `buffer_bytes` is what
    stands at once under the declared method, `ring_bytes` and `double_buffered_bytes` under the two forms of a ring.
    """

    group: int
    layers: Any
    full_bytes: Any
    local_bytes: Any
    buffer_bytes: Any
    ring_bytes: Any
    double_buffered_bytes: Any

    @property
    def remote_bytes(self) -> Any:
        """Bytes that come from the other context ranks."""
        return self.full_bytes - self.local_bytes


def keys_values(program: Program) -> tuple[KeysValues, ...]:
    """Return the keys and values of each group of layers; without a context axis all rows are local."""
    run, dtype = program.case.execution, program.case.state.kv_dtype
    found = []
    for group, layers in enumerate(program.sizes.repeats):
        each = program.device_microbatch_sizes.product("b k e", group) * program.sizes.axis("t")
        full = 2 * payload_bytes(each, dtype)
        local = exact_div(full, run.degree("context"))
        ring = local if run.degree("context") == 1 else 2 * local
        double = min(full, ring + local) if run.degree("context") > 1 else local
        buffer = full if run.context_method == "all_gather" else double
        found.append(KeysValues(group, layers, full, local, buffer, ring, double))
    return tuple(found)


def stream_bytes(program: Program) -> tuple[Any, Any]:
    """Return the bytes of the stream [b, s, d] of one microbatch: with a device's rows whole, and as it keeps it."""
    stream = program.tensors["group0/in"]
    whole = program.elements(stream, program.device_microbatch_sizes)
    return payload_bytes(whole, stream.dtype), payload_bytes(program.device_elements(stream), stream.dtype)


def row_rows(program: Program) -> tuple[Row, ...]:
    """Return the rows of a context axis and of sequence parallelism."""
    run, rows = program.case.execution, []
    if run.degree("context") > 1:
        for item in keys_values(program):
            fields = {**item._asdict(), "remote_bytes": item.remote_bytes, "method": run.context_method}
            fields |= {"dtype": program.case.state.kv_dtype, "copies": 1, "placement": "device"}
            fields |= {"created": "before the pairwise products", "released": "after them"}
            convention = "one layer, one microbatch; a ring receives the next block while it uses the last"
            rows.append(
                Row(
                    "keys and values",
                    f"group{item.group}/attn",
                    "forward",
                    item.full_bytes,
                    "bytes",
                    fields,
                    convention,
                    "partial results of a ring, buffers of a collective",
                    per_device=item.buffer_bytes,
                )
            )
    if run.sequence_parallel:
        whole, own = stream_bytes(program)
        fields = {
            "ranks": run.degree("tensor"),
            "axes": "b s d",
            "dtype": program.tensors["group0/in"].dtype,
            "copies": 1,
            "placement": "device",
            "created": "by each residual sum",
            "released": "after its last use",
        }
        convention = "one microbatch; rows over the tensor ranks, weights not split by it"
        rows.append(
            Row("stream", "", "forward", whole, "bytes", fields, convention, "the gathered operand", per_device=own)
        )
    return tuple(rows)
