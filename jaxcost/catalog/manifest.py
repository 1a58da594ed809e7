"""A MODEL becomes a manifest: a catalogue name, a Hub id, a manifest, a config.json or its folder, a MaxText yml.

A manifest file is the data of an `Architecture` record, in TOML or JSON, with three optional tables beside it:
`[liveness]` (supplied activation events), `[expected]` (integers that must come out, by ledger path such as
`parameters.unique`) and `[[published]]` (published counts with their relation to these). The catalogue comes first: a
folder called `gpt2` in the working directory is `./gpt2`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxcost.catalog.huggingface import from_huggingface
from jaxcost.catalog.maxtext import MaxText, from_maxtext
from jaxcost.catalog.published import Published
from jaxcost.catalog.yaml_text import parse_yaml
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.liveness import Liveness
from jaxcost.contracts.record import as_table, parse_file, read_text
from jaxcost.data import room

Origin = Literal["catalogue", "manifest", "huggingface_config", "maxtext_config", "case_file"]
YAML = (".yml", ".yaml")


@dataclass(frozen=True)
class Manifest:
    """An architecture with what its file supplies beside it.

    `expected` maps ledger paths to integers. `path` is the file it was read from, `origin` the kind of that file,
    `published` the counts others give for this model.
    """

    architecture: Architecture
    liveness: Liveness | None
    expected: Mapping[str, int] | None
    path: Path | None
    origin: Origin
    published: tuple[Published, ...] = ()


def load(model: str | os.PathLike[str], folder: Path | None = None, text_only: bool = False) -> Manifest:
    """Return the manifest that MODEL names; a relative path is taken from `folder` (default: the working directory).

    Args:
        model: a name, an id or a path.
        folder: where relative paths start.
        text_only: of a config.json that nests its language model, read that one alone.

    Raises:
        RejectedError: the name is unknown (near matches are given), the file is missing, or it breaks its contract.
    """
    text = os.fspath(model)
    if isinstance(model, str):
        found = _in_catalogue(text)
        if found is not None:
            return manifest_from_data(parse_file(found), found.name, found, "catalogue")
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    path = path if folder is None else folder / path
    kind = _kind(path) if text else "missing"
    if kind == "directory":
        config = path / "config.json"
        if _kind(config) != "file":
            raise reject(
                "model", text, "the folder holds no config.json", "name a manifest, or a folder with a config.json"
            )
        return _from_file(config, path.resolve().name, text_only)
    if kind == "file":
        return _from_file(path, path.stem, text_only)
    if kind == "other":
        raise reject(
            "model", text, "neither a regular file nor a folder", "name a manifest (.toml, .json) or a config.json"
        )
    if not isinstance(model, str) or _looks_like_path(text):
        raise reject("model", text, "no such file", f"check the path{_near(Path(text).stem)}")
    remedy = f"run `jaxcost models` for the catalogue, or name a file{_near(text)}"
    raise reject("model", text, "not in the catalogue and not a file", remedy)


def load_architecture(model: str | os.PathLike[str]) -> Architecture:
    """Return the architecture that MODEL names; see `load`."""
    return load(model).architecture


def catalogue_names() -> tuple[str, ...]:
    """Return the names of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in room("models").glob("*.toml")))


def manifest_from_data(data: object, where: str, path: Path | None, origin: Origin) -> Manifest:
    """Build a manifest from the plain data of its file; `where` names the file in messages.

    Raises:
        RejectedError: with every problem of the architecture, the events and the expected integers together.
    """
    table = dict(as_table(data, where))
    problems: list[Problem] = list(_unprintable(table, where))
    liveness_data, expected_data = table.pop("liveness", None), table.pop("expected", None)
    published_data = table.pop("published", [])
    if not problems and "groups" not in table and "architectures" in table:
        rule = "looks like a Hugging Face config without model_type"
        raise reject(f"{where}.model_type", None, rule, "add model_type, or declare a manifest with [[groups]]")
    architecture, liveness = None, None
    try:
        architecture = Architecture.from_data(table, where)
    except RejectedError as error:
        problems.extend(error.problems)
    if liveness_data is not None:
        try:
            liveness = Liveness.from_data(liveness_data, f"{where}.liveness")
        except RejectedError as error:
            problems.extend(error.problems)
    problems.extend(_expected_problems(expected_data, f"{where}.expected"))
    published: list[Published] = []
    if not isinstance(published_data, list):
        rule = "must be an array of tables"
        problems.append(Problem(f"{where}.published", published_data, rule, "write [[published]]"))
        published_data = []
    for index, item in enumerate(published_data):
        try:
            published.append(Published.from_data(item, f"{where}.published.{index}"))
        except RejectedError as error:
            problems.extend(error.problems)
    if problems or architecture is None:
        raise RejectedError(problems)
    return Manifest(architecture, liveness, expected_data, path, origin, tuple(published))


def _from_file(path: Path, name: str, text_only: bool) -> Manifest:
    if path.suffix in YAML:
        found = read_maxtext(path)
        return Manifest(found.architecture, None, None, path, "maxtext_config")
    data = as_table(parse_file(path), path.name)
    if "model_type" in data or "text_config" in data:
        problems = list(_unprintable(data, path.name))
        if problems:
            raise RejectedError(problems)
        name = name[:200] or "unnamed"
        architecture = from_huggingface(data, name=name, source=path.name, where=path.name, text_only=text_only)
        return Manifest(architecture, None, None, path, "huggingface_config")
    return manifest_from_data(data, path.name, path, "manifest")


def read_maxtext(path: Path) -> MaxText:
    """Return what a MaxText .yml says.

    Raises:
        RejectedError: the file cannot be read, is no YAML, or says something that is not understood.
    """
    data = parse_yaml(read_text(path), path.name)
    return from_maxtext(data, name=path.stem[:200] or "unnamed", source=path.name, where=path.name)


def _expected_problems(data: object, where: str) -> Iterable[Problem]:
    if data is None:
        return
    if not isinstance(data, dict):
        yield Problem(
            where, data, "a table from ledger path to integer", 'write [expected] and "parameters.unique" = 1256'
        )
        return
    for path, value in data.items():
        if isinstance(value, dict):
            yield Problem(
                f"{where}.{path}", value, "a path is one key", f'quote it: "{path}.{next(iter(value), "total")}"'
            )
        elif not isinstance(value, int) or isinstance(value, bool):
            yield Problem(
                f"{where}.{path}", value, "must be an exact integer", "write a whole number without a decimal point"
            )


def _unprintable(node: Any, where: str) -> Iterable[Problem]:
    """Text with lone surrogates parses as JSON and cannot be written anywhere."""
    pending = [(where, node)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                yield Problem(
                    path, ascii(item), "not valid Unicode text (a lone surrogate)", "write the character itself"
                )
        elif isinstance(item, dict):
            pending += [
                (f"{path}.{ascii(key)[1:-1]}", part) for key, value in item.items() for part in (str(key), value)
            ]
        elif isinstance(item, list):
            pending += [(f"{path}.{index}", value) for index, value in enumerate(item)]


def _kind(path: Path) -> Literal["file", "directory", "other", "missing"]:
    try:
        if path.is_file():
            return "file"
        if path.is_dir():
            return "directory"
        return "other" if path.exists() else "missing"
    except OSError:  # for example a name longer than the file system allows
        return "missing"


def _looks_like_path(text: str) -> bool:
    path = Path(text)
    return path.suffix in (".toml", ".json", *YAML) or text.startswith((".", "/", "~")) or len(path.parts) > 2


def _plain(name: str) -> str:
    """A name without case, and without hyphens before a version: llama-3.1-8b and Llama3.1-8B are one."""
    return re.sub(r"[-_ ](?=v?[0-9])", "", name.strip().lower())


def _in_catalogue(text: str) -> Path | None:
    wanted = _plain(text)
    files = sorted(room("models").glob("*.toml"))
    for path in files:
        if _plain(path.stem) == wanted:
            return path
    if text.count("/") == 1:
        for path in files:
            if str(parse_file(path).get("huggingface_id", "")).lower() == text.strip().lower():
                return path
    return None


def _near(text: str) -> str:
    names = {_plain(name): name for name in catalogue_names()}
    close = difflib.get_close_matches(_plain(text.rsplit("/", 1)[-1])[:100], names, n=3, cutoff=0.5)
    return f" (near: {', '.join(names[name] for name in close)})" if close else ""
