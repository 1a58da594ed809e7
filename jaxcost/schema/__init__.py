"""The JSON Schemas of the documents that --json prints: `schema("jaxcost.estimate.v1")`.

One file per document, named by its `schema` value. An unknown number is null with a reason beside it, never left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Return the documents that have a schema."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document by its `schema` value."""
    data = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data
