"""Parse YAML strictly: plain data only, no duplicated keys, no aliases, bounded depth, numbers like 1e-06 as numbers.

PyYAML is imported when a .yml file is read. Its safe loader builds plain data only; two things are changed. A key that
appears twice is refused (PyYAML keeps the last). A float without a point, 1e-06, is a number as in YAML 1.2 (PyYAML
reads YAML 1.1, where it is text). Aliases are refused: nothing here needs them, and a few lines of them stand for
gigabytes.
"""

from __future__ import annotations

import re
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import MAXIMUM_DEPTH


def parse_yaml(text: str | bytes, where: str = "input") -> Any:
    """Parse one YAML document into dicts, lists and scalars.

    Raises:
        RejectedError: for bad syntax, duplicated keys, aliases, tags of other types, or nesting beyond the limit.
    """
    import yaml

    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise reject(where, f"byte {error.start}", "not UTF-8 text", "save the file as UTF-8") from None
    problems: list[Problem] = []

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError(f"line {self.line + 1}: aliases are not read")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    rule = f"the key appears twice (line {key.start_mark.line + 1})"
                    problems.append(Problem(f"{where}.{name}", name, rule, "keep one of the two"))
                seen.add(name)
            return super().construct_mapping(node, deep)

    number = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        data = yaml.load(text, Loader)  # a subclass of SafeLoader
    except RecursionError:
        raise reject(where, "nesting", "nested too deeply", f"use at most {MAXIMUM_DEPTH} levels") from None
    except (yaml.YAMLError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise reject(where, None, f"not YAML ({detail})", "correct the syntax at that position") from None
    if problems:
        raise RejectedError(problems)
    return data
