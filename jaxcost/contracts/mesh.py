"""The mesh a program runs on: the declared one, with `tensor` cut in two where K/V heads are fewer than its ranks."""

from __future__ import annotations

from jaxcost.contracts.case import Case


def program_mesh(case: Case) -> dict[str, int]:
    """Return axis name to size, in mesh order.

    With fewer K/V heads than `tensor` ranks, `tensor` counts the heads and `tensor_replica`, next to it, the ranks that
    hold the same one. Groups of layers that need different cuts have no such mesh; the finest cut is returned.
    """
    copies = max(case.kv_replicas(index) for index in range(len(case.architecture.groups)))
    sizes: dict[str, int] = {}
    for name, size in case.execution.mesh_sizes.items():
        if name == "tensor" and copies > 1:
            sizes |= {"tensor": size // copies, "tensor_replica": copies}
        else:
            sizes[name] = size
    return sizes
