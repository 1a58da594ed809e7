"""Perfectly sharded state is 16 P / D bytes, and only where every component is sharded (the worksheet's caveat)."""

from __future__ import annotations

from typing import Any

import pytest

import jaxcost


def persistent(devices: int, **options: Any) -> tuple[int, int]:
    """Bytes on the worst device, and 16 P / D."""
    case = jaxcost.training(jaxcost.load("llama-3.2-1b"), batch=devices, seq=128, **options)
    found = jaxcost.predict(case)
    held, scalars = found.value("ownership.persistent_bytes"), found.value("parameters.unique")
    assert (16 * scalars) % devices == 0
    return held, 16 * scalars // devices


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_every_component_sharded(devices: int) -> None:
    held, ideal = persistent(devices, precision="bf16_master_adam", mesh={"data": devices}, zero=3)
    assert held == ideal


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mesh": {"data": 8}, "zero": 0}, "nothing is sharded"),
        ({"mesh": {"data": 8}, "zero": 1}, "parameters and gradients are whole"),
        ({"mesh": {"data": 8}, "zero": 2}, "parameters are whole"),
        ({"mesh": {"fsdp": 8}}, "vectors are replicated"),
        ({"mesh": {"tensor": 8}}, "vectors are replicated"),
    ],
)
def test_any_other_layout_holds_more(options: dict[str, Any], why: str) -> None:
    held, ideal = persistent(8, precision="bf16_master_adam", **options)
    assert held > ideal, why
