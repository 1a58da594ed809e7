"""A released Hugging Face config.json becomes an architecture, for the model types that are understood.

Every key of the file falls in one of three kinds. Keys of the graph are read, with the class's own default where a key
is left out (absent is not null: null has a meaning of its own, stated per key). Inert keys change neither the graph nor
a number and are listed with the reason. Anything else, and an inert key with a value that is not inert, is rejected by
name. What is read for each type stands in `families/`.

A config that nests its language model (`text_config`) is read when asked for the language model alone: the parts beside
it, a vision tower for example, have parameters too, and leaving them out silently would be a wrong count. In a nested
config the inner file decides, also about ties: an outer `tie_word_embeddings` says nothing about the inner head.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from jaxcost.catalog.families import FAMILIES, Family
from jaxcost.catalog.inert import INERT, is_inert, is_known
from jaxcost.catalog.keys import ABSENT, Keys
from jaxcost.catalog.refused import refusal
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import as_table


def from_huggingface(
    config: object, name: str = "unnamed", source: str = "", where: str = "", text_only: bool = False
) -> Architecture:
    """Return the architecture of a parsed config.json.

    Args:
        config: the parsed file, a mapping with `model_type`.
        name: the architecture's name; outside the digest.
        source: where the config came from; outside the digest.
        where: a prefix for the paths in messages, usually the file's name.
        text_only: read the language model of a config that nests it, and leave its other parts aside.

    Raises:
        RejectedError: for another model type, for each key that is not understood, and for each bad value.
    """
    data = as_table(config, where or "config")
    try:
        json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise reject(
            where or "config", type(error).__name__, "not plain JSON data", "pass a parsed config.json"
        ) from None
    if "text_config" in data:
        return _nested(data, name, source, where, text_only)
    return _flat(data, name, source, where, "")


def _flat(data: Mapping[str, Any], name: str, source: str, where: str, notes: str) -> Architecture:
    kind = data.get("model_type", ABSENT)
    if not isinstance(kind, str) or kind not in FAMILIES:
        value = None if kind is ABSENT else kind
        rule, remedy = ("missing", "add it") if kind is ABSENT else refusal(kind)
        remedy += f"; the types are {', '.join(sorted(FAMILIES))}"
        raise reject(f"{where}.model_type".lstrip("."), value, rule, remedy)
    family = FAMILIES[kind]
    keys = Keys(data, where)
    keys.read.add("model_type")
    record = family.read(keys)
    _check_class(keys, family)
    for key in data:
        if key not in keys.read:
            _check_unread(keys, str(key), data[key], kind)
    if keys.problems:
        raise RejectedError(keys.problems)
    head = {"name": name, "family": kind, "source": source, "notes": notes}
    return Architecture.from_data({**head, **record}, where)


def _check_unread(keys: Keys, key: str, value: object, kind: str) -> None:
    if not is_known(key, kind):
        rule = f"a key that model type {kind} does not define"
        near = difflib.get_close_matches(key, keys.read - set(keys.data), n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}? Else " if near else ""
        keys.problem(key, value, rule, f"{hint}remove it if it has no effect, or write a manifest")
    elif not is_inert(key, value):
        rule = f"changes the graph ({INERT[key].reason})"
        keys.problem(key, value, rule, "such a model cannot be imported yet; write a manifest")


def _check_class(keys: Keys, family: Family) -> None:
    """`architectures` names the class; `auto_map` names code on the Hub, which may be the same class's older form."""
    value = keys.get("architectures")
    if value is not None and value not in [[name] for name in family.classes]:
        rule = "another class has other parameters (a different head, for example)"
        keys.problem("architectures", value, rule, f"only {' or '.join(family.classes)} is understood here")
    if not family.remote or "auto_map" not in keys.data:
        return
    table = keys.get("auto_map")
    stem = family.classes[0].removesuffix("ForCausalLM").lower()
    entries = [table]
    if isinstance(table, dict):  # a tokenizer changes no number
        entries = [entry for kind, entry in table.items() if not str(kind).startswith("AutoTokenizer")]
    flat = [name for entry in entries for name in (entry if isinstance(entry, list) else [entry]) if name is not None]
    for name in flat:
        if not isinstance(name, str) or not name.rpartition(".")[2].lower().startswith(stem):
            rule = "names code of its own, which may compute anything"
            keys.problem("auto_map", name, rule, f"only classes named {family.classes[0].removesuffix('ForCausalLM')}*")


_OUTER = ("text_config", "model_type", "architectures", "tie_word_embeddings")


def _nested(data: Mapping[str, Any], name: str, source: str, where: str, text_only: bool) -> Architecture:
    inner = data["text_config"]
    path = f"{where}.text_config".lstrip(".")
    if not isinstance(inner, dict):
        raise reject(path, inner, "must be an object", "copy it from the released config")
    beside = [key for key in data if key not in _OUTER and key not in INERT]
    if not text_only:
        problems = [
            Problem(
                f"{where}.{key}".lstrip("."),
                data[key] if not isinstance(data[key], dict | list) else f"{len(data[key])} entries",
                "stands beside the language model, whose parameters would not be the whole model's",
                "import the language model alone (--text-only), or write a manifest",
            )
            for key in beside
        ]
        if problems:
            raise RejectedError(problems)
    found = [f"the language model (text_config) of a {data.get('model_type', 'nested')} config"]
    if beside:
        found.append(f"left aside: {', '.join(beside)}")
    outer = data.get("tie_word_embeddings")
    if outer is not None and outer != inner.get("tie_word_embeddings"):
        found.append(f"the outer tie_word_embeddings = {str(outer).lower()} says nothing about the inner head")
    return _flat(inner, name, source, path, "; ".join(found))
