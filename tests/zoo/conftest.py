"""The programs of the zoo: built once, counted once, audited by one worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

import pytest

from jaxcost.audits.audit import ALLOWED
from jaxcost.observation.pool import Pool
from tests.zoo.count import Counted, count
from tests.zoo.programs import ZOO, Program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/zoo/" in str(item.path):
            # Packages that others wrote warn as they please.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def zoo_program() -> Callable[[str], Program]:
    """`zoo_program("vit")`; skips where the package is not installed."""

    @cache
    def build(name: str) -> Program:
        entry = ZOO[name]
        try:
            metadata.version(entry.package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{entry.package} is not installed; add it with: pip install -e '.[dev]'")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return entry.build()

    return build


@pytest.fixture(scope="session")
def zoo_count(zoo_program: Callable[[str], Program]) -> Callable[[str], Counted]:
    @cache
    def counted(name: str) -> Counted:
        return count(*zoo_program(name))

    return counted


@pytest.fixture(scope="session")
def zoo_pool() -> Iterator[Pool]:
    with Pool(size=1, allow=ALLOWED) as pool:
        yield pool


@pytest.fixture(scope="session")
def zoo_audit(zoo_program: Callable[[str], Program], zoo_pool: Pool) -> Callable[[str, str], dict[str, Any]]:
    """`zoo_audit("vit", "h100")`: the document."""
    from jaxcost.audits.audit import audit

    @cache
    def audited(name: str, target: str) -> dict[str, Any]:
        function, arguments = zoo_program(name)
        return audit(function, *arguments, target=target, pool=zoo_pool).to_dict()

    return audited
