"""One worker for all tests that compile a program to be counted, started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jaxcost.observation.pool import Pool
from tests.observation.hlo.counting import Compiled
from tests.observation.hlo.flop_programs import TASK


@pytest.fixture(scope="session")
def programs() -> Iterator[Compiled]:
    """Compiled programs by name and target; each is compiled once."""
    with Pool(allow=(TASK.partition(":")[0],), timeout_seconds=300) as pool:
        yield Compiled(pool)
