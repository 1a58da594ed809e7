"""Counting a compiled program of `flop_programs` in a test: one worker for all, one compile of each."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.flops import FlopCount, count_flops
from jaxcost.observation.hlo.primitives import Primitives, count_primitives
from jaxcost.observation.hlo.reading import read_graph
from jaxcost.observation.pool import Pool, request_for
from jaxcost.observation.targets import parse_target
from tests.observation.hlo.flop_programs import TASK

CPU = "cpu:1"
H100 = pytest.param("h100:1", marks=pytest.mark.cuda)
V5E = pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu)


class Compiled:
    """Modules of programs by (name, target); what a target cannot compile skips the test that asks for it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.made: dict[tuple[str, str], dict[str, object]] = {}

    def hlo(self, name: str, target: str) -> bytes:
        if (name, target) not in self.made:
            parsed = parse_target(target)
            payload = {"target": target, "names": [name]}
            found = self.pool.value(request_for(parsed, TASK, payload))
            self.made |= {(made, target): what for made, what in found.items()}
        what = self.made[name, target]
        if what["hlo"] is None:
            pytest.skip(f"{name} on {target}: {what['reason']}")
        assert isinstance(what["hlo"], bytes)
        return what["hlo"]

    def flops(self, name: str, target: str = CPU) -> FlopCount:
        return count_flops(*read_graph(self.hlo(name, target), platform=parse_target(target).family))

    def primitives(self, name: str, target: str = CPU) -> Primitives:
        return count_primitives(read_graph(self.hlo(name, target), platform=parse_target(target).family)[1])
