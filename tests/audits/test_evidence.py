"""What is known of a program beside its module."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.audits.evidence import Evidence
from jaxcost.observation.sources import Program


@pytest.mark.parametrize(("platform", "version", "undone"), [
    ("cpu", "0.10.2", True), ("cpu", "0.11.2", False), ("cpu", "0.12.0", False), ("cpu", "1.0.0", False),
    ("cpu", None, True), ("cuda", "0.10.2", False), ("tpu", None, False),
])  # fmt: skip
def test_which_compiler_undoes_checkpoints(platform: Any, version: str | None, undone: bool) -> None:
    environment = {"versions": {"jaxlib": version}} if version else {}
    program = Program("function", "step", b"", platform, environment=environment)
    empty: Any = None
    assert Evidence(program, empty, empty, {}).undoes_checkpoints is undone
