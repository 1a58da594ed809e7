"""Plans that several tests are about."""

from __future__ import annotations

from typing import Any

from jaxcost.catalog import load
from jaxcost.planning.serve import Asked, Engine, Workload, filled, serve_plan, target_of
from jaxcost.planning.serve.capacity import Capacity, capacity
from jaxcost.planning.serve.latency import Model
from jaxcost.planning.serve.load import Requests


def engine(target: str = "h100:1", **given: Any) -> Engine:
    return Engine.from_data(filled(given, target_of(target)), "engine")


def held(name: str, target: str = "h100:1", **given: Any) -> Capacity:
    return capacity(load(name).architecture, engine(target, **given), target_of(target))


def model(
    name: str = "llama-3.1-8b", target: str = "h100:1", wires: dict[str, Any] | None = None, **given: Any
) -> Model:
    return Model(load(name).architecture, engine(target, **given), target_of(target), **(wires or {}))


def requests(
    name: str = "llama-3.1-8b", target: str = "h100:1", prompt: int = 2000, output: int = 500, **given: Any
) -> Requests:
    return Requests(model(name, target, **given), held(name, target, **given), prompt, output)


def plan(
    name: str = "llama-3.1-8b", target: str = "h100:1", work: dict[str, Any] | None = None, **given: Any
) -> dict[str, Any]:
    made = Workload.from_data(work or {}, "workload")
    return serve_plan(Asked(load(name), target_of(target), engine(target, **given), made, {}))
