"""The compiler's cycles: text in a configuration, loops counted, what has no estimate listed and not zero."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.cycles import compiler_cycles, estimated_cycles, read_cycles
from jaxcost.observation.hlo.schema import message


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        ({"window_config": {"estimated_cycles": "6336"}}, 6336),
        ({"window_config": {"estimated_cycles": 7}}, 7),
        ({"window_config": {"estimated_cycles": "0"}}, 0),
        ({"window_config": {"estimated_cycles": "-1"}}, None),
        ({"window_config": {"estimated_cycles": "9" * 40}}, None),
        ({"window_config": {"estimated_cycles": True}}, None),
        ({"window_config": {"estimated_cycles": 1.5}}, None),
        ({"window_config": []}, None),
        ({}, None),
    ],
)
def test_one_estimate(config: dict[str, Any], cycles: int | None) -> None:
    assert estimated_cycles(SimpleNamespace(backend_config=lambda: config)) == cycles  # type: ignore[arg-type]


def program(trip_count: int | None, inner: int) -> bytes:
    """A module whose entry calls a loop; its body holds one copy of `inner` cycles and one without an estimate."""
    whole = message("HloProto")
    module = whole.hlo_module
    module.name, module.entry_computation_name, module.entry_computation_id = "step", "main", 3

    def computation(number: int, name: str) -> Any:
        made = module.computations.add()
        made.id, made.name = number, name
        return made

    def add(
        into: Any, number: int, opcode: str, operands: tuple[int, ...] = (), config: Any = None, **more: Any
    ) -> None:
        at = into.instructions.add()
        at.id, at.name, at.opcode = number, f"{opcode}.{number}", opcode
        at.shape.element_type = 11
        at.operand_ids.extend(operands)
        if config is not None:
            at.backend_config = json.dumps(config).encode()
        for key, value in more.items():
            if key == "called_computation_ids":
                at.called_computation_ids.extend(value)
            else:
                setattr(at, key, value)
        into.root_id = number

    body = computation(1, "body")
    add(body, 10, "parameter", parameter_number=0)
    add(body, 11, "copy", (10,), {"window_config": {"estimated_cycles": str(inner)}})
    add(body, 12, "negate", (11,))
    condition = computation(2, "condition")
    add(condition, 20, "parameter", parameter_number=0)
    entry = computation(3, "main")
    add(entry, 30, "parameter", parameter_number=0)
    known = {} if trip_count is None else {"known_trip_count": {"n": str(trip_count)}}
    add(entry, 31, "while", (30,), known, called_computation_ids=(1, 2))
    data: bytes = whole.SerializeToString()
    return data


def test_loops_are_counted_and_what_has_no_estimate_is_listed() -> None:
    found = read_cycles(program(12, 100), frozenset())
    assert (found["cycles"], found["loops"]) == (1200, 1)
    assert found["without_estimate"] == {"negate": 12}
    assert sum(row["cycles"] for row in found["by_place"]) == 1200


def test_a_loop_of_unknown_count_makes_the_cycles_unknown() -> None:
    found = read_cycles(program(None, 100), frozenset())
    assert found["cycles"] is None
    assert found["reason"]
    assert found["without_estimate"] == {"negate": None}


def test_damaged_bytes_are_refused() -> None:
    with pytest.raises(RejectedError):
        read_cycles(program(12, 100)[:-9], frozenset())


@pytest.mark.tpu
def test_a_compile_for_a_tpu_has_cycles_in_its_scopes() -> None:
    case = jaxcost.training(jaxcost.load("toy-tied"), batch=2, seq=8)
    found = compiler_cycles(case, "tpu-v5e")
    assert found["failed"] == ""
    assert found["cycles"] > 0
    scopes = {row["scope"].split("/")[0] for row in found["by_place"]}
    assert "group0" in scopes


def test_mesh_and_target_must_agree() -> None:
    case = jaxcost.training(jaxcost.load("toy-tied"), batch=2, seq=8, mesh={"data": 2})
    with pytest.raises(RejectedError, match="mesh"):
        compiler_cycles(case, "cpu:1")
