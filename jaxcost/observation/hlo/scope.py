"""From JAX's operation names to (scope, phase).

JAX names an operation by its path of transformations, control flow, named scopes and, last, the primitive:

    jit(step)/transpose(jvp(group0))/while/body/closed_call/checkpoint/rematted_computation/attn/q_proj/bsd,dhk->bshk/dot_general

The scope is what the author wrote with `jax.named_scope` (`group0/attn/q_proj`); the phase is what autodiff did to it
(`replay` here). XLA joins the names of operations it combined: `a/(b/dot_general:c/dot_general)` is two names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

FORWARD, BACKWARD, REPLAY, OPTIMIZER, MIXED = "forward", "backward", "replay", "optimizer", "mixed"

_WRAPPER = re.compile(r"(jvp|transpose|vmap|vmap_of|linearize|partial_eval|mesh|checkpoint|remat)\((.*)\)\Z", re.DOTALL)
_CALL = re.compile(r"(jit|pjit|xla_call|core_call|remat2|custom_jvp|custom_vjp|named_call)\(.*\)\Z", re.DOTALL)
_STRUCTURE = re.compile(
    r"""(while|body|cond|body_pred|cond_pred|scan|closed_call|eval_jaxpr|program_order|core_call|checkpoint|remat2?
    |rematted_computation|pjit|custom_jvp_call|custom_vjp_call|custom_vjp_call_jaxpr|custom_lin|branch_\d+_fun|shard_map
    |shmap_body|xla_call|jit|)\Z""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation belongs. `scope` is '' when the name holds none; `exact` is False when it was inferred."""

    scope: str
    phase: str
    exact: bool = True


def split_path(name: str) -> list[str]:
    """The parts of a path, cut at '/' outside parentheses."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(name):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "/" and depth <= 0:
            parts.append(name[start:i])
            start = i + 1
    parts.append(name[start:])
    return parts


@lru_cache(maxsize=1 << 16)
def names_of(op_name: str) -> tuple[str, ...]:
    """The single names in an op_name that XLA combined as `prefix/(one:two)/rest`."""
    parts = split_path(op_name)
    for i, part in enumerate(parts):
        if part.startswith("(") and part.endswith(")"):
            inner, depth, start = [], 0, 1
            for j in range(1, len(part) - 1):
                char = part[j]
                depth += (char == "(") - (char == ")")
                if char == ":" and depth == 0:
                    inner.append(part[start:j])
                    start = j + 1
            inner.append(part[start:-1])
            head, tail = "/".join(parts[:i]), "/".join(parts[i + 1 :])
            return tuple("/".join(x for x in (head, name, tail) if x) for name in inner)
    return (op_name,)


@lru_cache(maxsize=1 << 16)
def primitive_of(op_name: str) -> str:
    """The last part of a name: JAX's primitive (`dot_general`)."""
    return split_path(names_of(op_name)[0])[-1]


def _place(name: str, scopes: frozenset[str] | None, *, primitive: bool) -> Place:
    parts = split_path(name)
    if primitive:
        parts = parts[:-1]
    kept: list[str] = []
    reopened: list[int] = []
    transposed = replayed = False
    for part in parts:
        wrapped = False
        while match := _WRAPPER.match(part):
            transposed |= match.group(1) == "transpose"
            part, wrapped = match.group(2), True
        replayed |= part in ("rematted_computation", "replay")
        if part == "replay" or _STRUCTURE.match(part) or _CALL.match(part) or "->" in part:
            continue
        if wrapped and kept:
            reopened.append(len(kept))
        for piece in part.split("/"):  # a transformation may wrap a whole path
            if scopes is None or piece in scopes:
                kept.append(piece)
    # A checkpoint inside scope a/b, transposed, is named transpose(jvp(a))/b/jvp(a)/b/...: the same scope entered
    # twice.
    for start in reversed(reopened):
        for size in range(min(start, len(kept) - start), 0, -1):
            if kept[start - size : start] == kept[start : start + size]:
                del kept[start : start + size]
                break
    if transposed:
        _enter_once(kept)
    scope = "/".join(kept)
    phase = REPLAY if replayed else BACKWARD if transposed else FORWARD
    if kept and kept[0] == OPTIMIZER:
        phase = OPTIMIZER
    return Place(scope, phase)


def _enter_once(kept: list[str]) -> None:
    """Drop the second of two equal paths in a row: a checkpoint within one component names it a/b/a/b in backward."""
    for size in range(len(kept) // 2, 0, -1):
        for start in range(len(kept) - 2 * size + 1):
            if kept[start : start + size] == kept[start + size : start + 2 * size]:
                del kept[start : start + size]
                return


def common_scope(scopes: Iterable[str]) -> str:
    """The longest scope that contains all the given ones."""
    paths = [s.split("/") if s else [] for s in scopes]
    if not paths:
        return ""
    shared: list[str] = []
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)


@lru_cache(maxsize=1 << 16)
def place(op_name: str, scopes: frozenset[str] | None = None, *, primitive: bool = True) -> Place:
    """Scope and phase of an op_name.

    `scopes`: names of scope components to keep (`q_proj`, not paths); None keeps everything that is no JAX structure.
    `primitive`: whether the last part is a primitive's name (HLO) or not (a jaxpr's name stack). Of a combined name the
    scope is the part all share (`exact` False) and the phase is theirs, or `mixed`.
    """
    places = {_place(name, scopes, primitive=primitive) for name in names_of(op_name)}
    if len(places) == 1:
        return places.pop()
    phases = {p.phase for p in places}
    scope = common_scope(p.scope for p in places)
    return Place(scope, phases.pop() if len(phases) == 1 else MIXED, exact=len({p.scope for p in places}) == 1)


def scope_parts(scopes: Iterable[str] | None) -> frozenset[str] | None:
    """The component names in a set of scopes given as names or as paths."""
    if scopes is None:
        return None
    return frozenset(part for scope in scopes for part in scope.split("/") if part)
