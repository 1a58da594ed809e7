"""What two audits of one program were made from, in sentences: the program, the compiler, and what it did.

The program comes first: where its arguments or what it computes differ, later differences may be its own. Where the
versions differ and the program does not, they are the compiler's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COMPILERS = ("jax", "jaxlib", "libtpu")
_SHOWN = 6
_PATHS = 3  # of arguments, in one sentence
_ARGUMENT = re.compile(
    r"(?P<path>.*): (?P<type>[a-z0-9_]+(?:<[^<>]*>)?\[[0-9,]*\])(?P<donated> donated)?(?P<sharding> .*)?", re.DOTALL
)
_MEMORY = {
    "argument_bytes": "arguments", "output_bytes": "results", "temp_bytes": "temporaries",
    "alias_bytes": "results that lie in arguments",
    "required_bytes": "all that must be allocated", "live_peak_bytes": "the live peak",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One sentence; `about` is program, versions, target, fusions, instructions, contractions, loops, collectives,
    layouts, kernels, memory or findings.
    """

    about: str
    text: str

    def to_dict(self) -> dict[str, str]:
        """Return the difference as plain data."""
        return {"about": self.about, "text": self.text}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Say what differs between two audit documents, the program first; [] where nothing does."""
    found = [*_program(old, new)]
    changed = bool(found)
    versions = [*_versions(old, new)]
    before, after = _table(old, "compiled"), _table(new, "compiled")
    compiled = [*_compiled(before, after)] if before and after else []
    if not (before and after) and _digest(old) != _digest(new):
        side = "the recorded audit" if not before else "this audit"
        compiled.append(Difference("instructions", f"{side} does not say what the compiler made: record it again"))
    found += versions
    found += compiled
    found += _memory(old, new)
    found += _findings(old, new)
    if compiled and versions and not changed:
        why = "the program is the same: what follows is the compiler's doing"
        if not _known(before):
            why = "whether the program is the same cannot be told: only its compiled module was audited"
        found.insert(len(versions), Difference("versions", why))
    return found


def _table(data: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    value: Any = data
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _digest(data: Mapping[str, Any]) -> Any:
    return _table(data, "program").get("digest")


def _known(compiled: Mapping[str, Any]) -> bool:
    return _table(compiled, "program").get("arguments") is not None


def _program(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "program"), _table(new, "program")
    if before.get("name") != after.get("name"):
        yield Difference("program", f"the recorded program is {before.get('name')}, this one {after.get('name')}")
    if before.get("mesh") != after.get("mesh"):
        yield Difference("program", f"the mesh was {_axes(before.get('mesh'))} and is {_axes(after.get('mesh'))}")
    one, two = _table(old, "compiled", "program"), _table(new, "compiled", "program")
    if one.get("arguments") is not None and two.get("arguments") is not None:
        if one.get("arguments_digest") != two.get("arguments_digest"):
            aliases = [_table(data, "memory").get("alias_bytes") for data in (old, new)]
            yield from (Difference("program", text) for text in _arguments(one["arguments"], two["arguments"], aliases))
        if one.get("results") != two.get("results"):
            yield Difference("program", _results(one.get("results"), two.get("results")))
    left, right = one.get("jaxpr_digest"), two.get("jaxpr_digest")
    if left and right and left != right:
        counts = _counts(_table(one, "operations"), _table(two, "operations"))
        same = _versions_of(old) == _versions_of(new)
        cause = "" if same else " (another jax may also trace the same code differently)"
        yield Difference(
            "program", f"what it computes differs before any compiler{cause}" + (f": {counts}" if counts else "")
        )


def _axes(mesh: Any) -> str:
    if not isinstance(mesh, Mapping) or not mesh:
        return "none"
    return ", ".join(f"{name}={size}" for name, size in mesh.items())


def _arguments(old: Any, new: Any, aliases: Sequence[Any]) -> Iterator[str]:
    """Sentences on arguments, by path: which are new, gone, of another type, sharded otherwise or donated otherwise."""
    tables = [{}, {}]  # type: list[dict[str, re.Match[str]]]
    for found, lines in zip(tables, (old, new), strict=True):
        for at in lines if isinstance(lines, list) else []:
            match = _ARGUMENT.fullmatch(str(at))
            if match is None or match["path"] in found:
                yield f"its arguments differ: {_lists(old, new)}"
                return
            found[match["path"]] = match
    before, after = tables
    both = [path for path in before if path in after]
    gone, came = ([path for path in one if path not in other] for one, other in ((before, after), (after, before)))
    said = []
    for part, verb in (("type", "changed"), ("sharding", "sharded otherwise")):
        sides = ((path, *((table[path][part] or "").strip() or "as the compiler likes" for table in tables))
                 for path in both)  # fmt: skip
        moved = [f"{path} {left} -> {right}" for path, left, right in sides if left != right]
        said.append(_listed(moved, verb))
    lost = [path for path in both if before[path]["donated"] and not after[path]["donated"]]
    given = [path for path in both if after[path]["donated"] and not before[path]["donated"]]
    left, right = aliases
    known = isinstance(left, int) and isinstance(right, int) and left != right
    amount = f"; donation saves {right:,} bytes, not {left:,}" if known else ""
    said += [f"{text}{amount}" for text in (_listed(lost, "no longer donated"), _listed(given, "donated now")) if text]
    said += [
        _listed([f"{path} {after[path]['type']}" for path in came], "new"),
        _listed([f"{path} {before[path]['type']}" for path in gone], "gone"),
    ]
    yield from [text for text in said if text] or ["its arguments differ in their order, or beyond those listed"]


def _listed(items: list[str], verb: str) -> str:
    """`3 arguments changed: a, b and 1 more`; '' of none."""
    if not items:
        return ""
    verb = verb if verb == "changed" else f"{'is' if len(items) == 1 else 'are'} {verb}"
    more = f" and {len(items) - _PATHS} more" if len(items) > _PATHS else ""
    return f"{len(items):,} argument{'s' * (len(items) != 1)} {verb}: {', '.join(items[:_PATHS])}{more}"


def _results(old: Any, new: Any) -> str:
    """Results have no names: those at the same place are compared where there are as many."""
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):
        return f"its results differ: {_lists(old, new)}"
    pairs = [f"{left} -> {right}" for left, right in zip(old, new, strict=True) if left != right]
    counts = dict.fromkeys(pairs, 0)
    for pair in pairs:
        counts[pair] += 1
    return f"{len(pairs):,} results changed: {_some([f'{pair} ({counts[pair]:,})' for pair in counts])}"


def _lists(old: Any, new: Any) -> str:
    before = [str(item) for item in old] if isinstance(old, list) else []
    after = [str(item) for item in new] if isinstance(new, list) else []
    gone = [item for item in before if item not in set(after)]
    added = [item for item in after if item not in set(before)]
    parts = []
    if gone:
        parts.append(f"without {_some(gone)}")
    if added:
        parts.append(f"with {_some(added)}")
    return "; ".join(parts) or "their order, or beyond those listed"


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _versions_of(data: Mapping[str, Any]) -> dict[str, str]:
    found = _table(data, "program", "environment", "versions")
    return {name: str(version) for name, version in found.items() if name in _COMPILERS or str(name).startswith("jax-")}


def _versions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _versions_of(old), _versions_of(new)
    said = [
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    if said:
        yield Difference("versions", f"the compiler changed: {', '.join(said)}")
    one, two = _table(old, "program", "environment"), _table(new, "program", "environment")
    for name in ("xla_flags", "compiler_options"):
        if one.get(name) != two.get(name):
            yield Difference("versions", f"{name} were {one.get(name)!r} and are {two.get(name)!r}")


def _compiled(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """What the compiler does differently, by subject."""
    fusions = _table(old, "fusions"), _table(new, "fusions")
    if fusions[0] != fusions[1]:
        kinds = _counts(_table(fusions[0], "by_kind"), _table(fusions[1], "by_kind"))
        yield Difference(
            "fusions",
            f"{_from_to('fusions', fusions[0].get('count'), fusions[1].get('count'))}"
            + (f": {kinds}" if kinds else ""),
        )
    opcodes = _counts(_table(old, "opcodes"), _table(new, "opcodes"))
    if opcodes:
        whole = _from_to("instructions", old.get("instructions"), new.get("instructions"))
        yield Difference("instructions", f"{whole}: {opcodes}")
    yield from _products(old, new)
    yield from _loops(old, new)
    yield from _transfers(old, new)
    yield from _placing(old, new)


def _products(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "contractions"), _table(new, "contractions")
    for name, what in (("count", "contractions"), ("merged", "contractions that hold several products"),
                       ("split", "contractions cut along the contracted dimension")):  # fmt: skip
        if before.get(name) != after.get(name):
            yield Difference("contractions", _from_to(what, before.get(name), after.get(name)))
    if before.get("digest") != after.get("digest"):
        shapes = _counts(_table(before, "by_shape"), _table(after, "by_shape"))
        yield Difference("contractions", "the products differ: " + (shapes or "beyond those listed"))
    if old.get("strength_reduced") != new.get("strength_reduced"):
        what = "products turned into multiply and reduce"
        yield Difference("contractions", _from_to(what, old.get("strength_reduced"), new.get("strength_reduced")))
    if old.get("rematerialised") != new.get("rematerialised"):
        what = "instructions that XLA recomputes on its own"
        yield Difference("memory", _from_to(what, old.get("rematerialised"), new.get("rematerialised")))


def _loops(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "loops"), _table(new, "loops")
    if before.get("count") != after.get("count"):
        yield Difference(
            "loops",
            _from_to("loops", before.get("count"), after.get("count")) + " (unrolled, merged, split or removed)",
        )
    elif before.get("trips") != after.get("trips"):
        yield Difference("loops", f"trips of loops were {before.get('trips')} and are {after.get('trips')}")


def _transfers(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "collectives"), _table(new, "collectives")
    moves = _counts(_table(before, "instructions"), _table(after, "instructions"))
    arrays = _counts(_table(before, "arrays"), _table(after, "arrays"))
    if moves and not arrays:
        yield Difference("collectives", f"the same arrays are combined into other collectives: {moves}")
    elif moves or arrays:
        said = [f"instructions {moves}" if moves else "", f"arrays {arrays}" if arrays else ""]
        yield Difference("collectives", f"collectives differ: {'; '.join(part for part in said if part)}")


def _placing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "layouts"), _table(new, "layouts")
    if before.get("digest") != after.get("digest"):
        left, right = _table(before, "arguments"), _table(after, "arguments")
        said = [
            f"{name}: {left[name]} -> {right[name]}"
            for name in left
            if name in right and left[name] != right[name] and _shape(left[name]) == _shape(right[name])
        ]
        same = {name: _shape(at) for name, at in left.items()} == {name: _shape(at) for name, at in right.items()}
        if said or same:  # what has another shape has another layout, and was said
            yield Difference("layouts", "arguments are laid out differently: " + (_some(said) or "beyond those listed"))
    if old.get("copies") != new.get("copies"):
        yield Difference("layouts", _from_to("copies", old.get("copies"), new.get("copies")))
    kernels = _counts(_table(old, "kernels"), _table(new, "kernels"))
    if kernels:
        yield Difference("kernels", f"other library kernels: {kernels}")


def _shape(layout: Any) -> str:
    return str(layout).partition(" ")[0]


def _memory(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = _table(old, "memory"), _table(new, "memory")
    said = []
    for name, what in _MEMORY.items():
        left, right = before.get(name), after.get(name)
        if isinstance(left, int) and isinstance(right, int) and left != right:
            said.append(f"{what} {left:,} -> {right:,} bytes ({right - left:+,})")
    if said:
        yield Difference("memory", "; ".join(said))
    classes = _counts(_table(before, "by_class_at_peak"), _table(after, "by_class_at_peak"))
    if classes:
        yield Difference("memory", f"bytes at the peak by class: {classes}")


def _findings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    def kinds(data: Mapping[str, Any], key: str, name: str) -> dict[str, int]:
        rows = data.get(key)
        found: dict[str, int] = {}
        for row in rows if isinstance(rows, list) else []:
            kind = str(row.get(name)) if isinstance(row, Mapping) else "?"
            found[kind] = found.get(kind, 0) + 1
        return found

    for key in ("findings", "unknowns"):
        said = _counts(kinds(old, key, "kind"), kinds(new, key, "kind"))
        if said:
            yield Difference("findings", f"{key} by kind: {said}")


def _counts(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """`dot 3 -> 2, copy 1 -> 0`, the largest changes first; '' where nothing differs."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name) or 0, new.get(name) or 0
        if before != after and isinstance(before, int) and isinstance(after, int):
            found.append((-abs(after - before), f"{name} {before:,} -> {after:,}"))
        elif before != after:
            found.append((0, f"{name} {before} -> {after}"))
    return _some([text for _, text in sorted(found, key=lambda item: item[0])])


def _from_to(what: str, old: Any, new: Any) -> str:
    return f"{what} {old} -> {new}"
