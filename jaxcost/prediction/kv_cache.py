"""The key/value cache: 2 x b x t x k x e scalars a layer for the visible tokens. Training keeps none.

A layer with a sliding window w needs min(t, w) rows at the least; engines that give all layers one page size allocate
as if there were none. Both are answers, under different names.
"""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row


def kv_cache(program: Program) -> Ledger:
    """Return the cache ledger: payload of visible tokens, bytes of one token of one sequence, and what is allocated.

    `minimum_bytes` keeps of each layer only the rows its window reaches, the others every visible row;
    `allocated_bytes` covers the rectangle batch x visible rows, which ragged prompts do not fill. Stored bytes are not
    reads.
    """
    dtype, sizes = program.case.state.kv_dtype, program.sizes
    rows, allocated, token, minimum = [], 0, 0, 0
    for tensor in program.tensors.values():
        if tensor.role != "cache":
            continue
        value = payload_bytes(program.elements(tensor), dtype) * tensor.repeat
        width = sizes.product("k e", tensor.group)
        least: Any = 0
        for window, layers in sizes.by_window(tensor.group, 0, tensor.repeat):
            least = least + payload_bytes(sizes.kept_rows(window) * width, dtype) * layers
        minimum = minimum + least
        work = program.case.workload
        fields = {
            "layers": tensor.repeat,
            "dtype": dtype,
            "axes": tensor.axes,
            "elements": program.elements(tensor),
            "copies": tensor.repeat,
            "placement": "device",
            "created": "by an earlier call and appended to" if work.past_tokens else "by this call",
            "released": "with its requests",
            "past_rows": sizes.axis("t") - sizes.axis("s"),
            "new_rows": sizes.axis("s"),
            "visible_rows": sizes.axis("t"),
            "minimum_bytes": least,
        }
        rows.append(
            Row(
                tensor.name,
                tensor.scope,
                program.case.workload.phase,
                value,
                "bytes",
                fields,
                "logical payload",
                "paging, padding",
            )
        )
        row = payload_bytes(width, dtype) * tensor.repeat
        token = token + row
        allocated = allocated + row * sizes.axis("b") * sizes.axis("t")
    total: Any = sum((row.value for row in rows), 0)
    return Ledger(
        "kv_cache",
        {"bytes": total, "bytes_per_token": token, "minimum_bytes": minimum, "allocated_bytes": allocated},
        tuple(rows),
    )
