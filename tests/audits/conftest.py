"""What the tests of audits share: a worker for functions and for named programs, and each program compiled once."""

from __future__ import annotations

import pytest

from jaxcost.audits.audit import ALLOWED
from jaxcost.observation.pool import Pool
from tests.audits.compiled_programs import TASK, compile_for


@pytest.fixture(scope="module")
def pool():
    with Pool(size=1, allow=(*ALLOWED, TASK.partition(":")[0]), timeout_seconds=600) as made:
        yield made


@pytest.fixture(scope="module")
def compiled(pool):
    """`compiled("donated", "h100:1", {"d": 8})`: the `Program` of one of `compiled_programs`, compiled once."""
    made = {}

    def get(name, target="cpu:1", mesh=None):
        key = name, target
        if key not in made:
            made[key] = compile_for(pool, name, target, mesh)
        return made[key]

    return get
