"""What a worker does for an observation: build the step, trace, lower, compile, read. Imports jax.

At most two compiles: the program with XLA's own rematerialisation off; and, where it exceeds the device, was refused or
is above the limit at which XLA for CUDA recomputes of its own accord, once more with XLA's defaults, to see what XLA
recomputes and whether the compiler still refuses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcost.contracts.case import Case
from jaxcost.contracts.mesh import program_mesh
from jaxcost.observation.compiling import Compiled, Refusal, compile_lowered, make_mesh
from jaxcost.observation.live_state import StateRow, by_role, live_state, same_arrays
from jaxcost.observation.observed import SCHEMA
from jaxcost.observation.overflow import refusal_section, rematerialisation_section
from jaxcost.observation.parameters import Parameters, parameters_of, path_key
from jaxcost.observation.residuals import saved_residuals
from jaxcost.observation.sections import compiler_section, hlo_sections, jaxpr_section, known_scopes, target_section
from jaxcost.observation.targets import Target, parse_target
from jaxcost.observation.worker import task
from jaxcost.reference.model import abstract_model, parameter_tree
from jaxcost.reference.step import Step, make_step
from jaxcost.reference.training import init_state

INITIALISED_BELOW_BYTES = 16 * 2**20  # a state this small is also made for real, to see that the abstract one is right


@task
def observe_case(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Observe one case on one target.

    Args:
        payload: `case` (data), `target` (text), `optimisation_level` (None or 0), `second_compile` (bool), `return_hlo`
            (bool), and optionally `keep_hlo`, a path to write the module to.

    Returns:
        `observed`, the document (see `jaxcost.observation.observed`), and `hlo`, the module it was read from or None.
    """
    case = Case.from_data(payload["case"], "case")
    target = parse_target(payload["target"])
    scopes = known_scopes(case)
    started = time.perf_counter()
    step = make_step(case, make_mesh(target, program_mesh(case)))
    traced = step.trace()
    lowered = traced.lower()
    lowering = time.perf_counter() - started
    first = compile_lowered(lowered, target, optimisation_level=payload["optimisation_level"])
    hlo = first.modules.optimised
    started = time.perf_counter()
    empty: dict[str, Any] = {"hlo": None, "memory": None, "collectives": None}
    sections = hlo_sections(hlo, target, mesh=program_mesh(case), scopes=scopes) if hlo else empty
    reading = time.perf_counter() - started
    rematerialisation = _rematerialisation(lowered, target, first, sections, case, payload["second_compile"])
    second = rematerialisation["second_compile"]
    refused = isinstance(first, Refusal) and (second is None or second["status"] == "refused")
    if hlo and payload.get("keep_hlo"):
        Path(payload["keep_hlo"]).write_bytes(hlo)
    raw = {
        "memory_analysis": None, "memory_analysis_reason": "the compiler refused the program",
        "cost_analysis": None, "cost_analysis_reason": "the compiler refused the program",
    }  # fmt: skip
    if isinstance(first, Compiled):
        raw = {name: getattr(first, name) for name in raw}
    observed = {
        "schema": SCHEMA,
        "status": "refused" if refused else "observed",
        "reason": refusal_section(first)["text"] if refused and isinstance(first, Refusal) else "",
        "evidence_class": "compiled" if hlo else "unmeasured",
        "origin": "compiled" if isinstance(first, Compiled) else "dump of the refused compile",
        "case": case.to_data(),
        "case_digest": case.digest,
        "target": target_section(target),
        "environment": {
            "versions": _versions(first.environment),
            "flags": {
                name: str(value)
                for name, value in (
                    *first.environment["compiler_options"].items(), ("XLA_FLAGS", first.environment["xla_flags"]),
                )
            },
            "machine": first.environment["machine"],
            "optimisation_level": payload["optimisation_level"],
            "xla_rematerialisation": "off",
            "module_digest": hashlib.sha256(hlo).hexdigest() if hlo else None,
            "lowering_seconds": lowering, "compile_seconds": first.compile_seconds, "reading_seconds": reading,
        },
        "parameters": parameters_section(case),
        "state": state_section(case, step, target.family),
        "jaxpr": {
            **jaxpr_section(traced.jaxpr, scopes),
            "residuals": [row.to_dict() for row in saved_residuals(traced.jaxpr, scopes)],
        },
        **sections,
        "compiler": compiler_section(target.family, raw, sections) if hlo else None,
        "rematerialisation": rematerialisation,
    }  # fmt: skip
    return {"observed": observed, "hlo": hlo if payload.get("return_hlo") else None}


@task
def calibrate(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Compile one small fixed program for the CPU, so that seconds of one machine can be read on another."""

    def step(x: jax.Array, weights: jax.Array) -> jax.Array:
        def layer(carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.softmax(jnp.tanh(carry @ weight), axis=-1), None

        gradient: jax.Array = jax.grad(lambda w: jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2))(weights)
        return gradient

    lowered = jax.jit(step).lower(
        jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((8, 128, 128), jnp.float32)
    )
    started = time.perf_counter()
    lowered.compile()
    return {"compile_seconds": time.perf_counter() - started}


def parameters_section(case: Case) -> dict[str, Any]:
    """Return the parameters of the reference network: every array, its component, axes, storage and whether it trains.

    A tied head is a name of its own for the token table, as in a state mapping.
    """
    records = {
        ".".join(map(path_key, path)): record
        for path, record in jax.tree_util.tree_flatten_with_path(parameter_tree(case))[0]
    }
    found: Parameters = parameters_of(abstract_model(case), declared={name: r.axes for name, r in records.items()})
    entries, assumptions = [], list(found.assumptions)
    for leaf in found.leaves:
        record = records[leaf.name]
        repeat = leaf.shape[0] if record.axes[:1] == ("layer",) else 1
        entries.append({
            **leaf.to_dict(), "scope": record.scope, "repeat": repeat, "per_layer": leaf.scalars // repeat,
            "trainable": not case.is_frozen(record.scope),
        })  # fmt: skip
    if case.architecture.tied:
        table = next(entry for entry in entries if entry["scope"] == "embed/tokens")
        entries.append({**table, "name": "head.weight", "scope": "head"})
        assumptions.append("a tied head is a second name of the token table; the network stores one array")
    owned = [entry for entry in entries if entry["alias"] == entry["name"]]
    by_scope: dict[str, int] = {}
    for entry in owned:
        by_scope[entry["scope"]] = by_scope.get(entry["scope"], 0) + entry["scalars"]
    return {
        "entries": entries,
        "unique": sum(entry["scalars"] for entry in owned),
        "named": sum(entry["scalars"] for entry in entries),
        "trainable": sum(entry["scalars"] for entry in owned if entry["trainable"]),
        "bytes": sum(entry["bytes"] for entry in owned),
        "by_scope": dict(sorted(by_scope.items())),
        "assumptions": assumptions,
    }


def named_arguments(step: Step, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a step by name, a train state split into its parts."""
    named = dict(zip(step.argument_names, arguments, strict=True))
    if "state" not in named:
        return named
    state = named.pop("state")
    parts = {"parameters": state.parameters, "master": state.master, "optimizer": state.optimizer}
    return {**{name: part for name, part in parts.items() if part is not None}, **named}


def state_section(case: Case, step: Step, family: str) -> dict[str, Any]:
    """Return the rows of everything the step takes, and whether a really initialised state has the same arrays.

    The real state is made on the CPU devices of the worker: model of zeros, optimizer state by optax's own `init`. On a
    CPU target it is placed by the step's shardings and the bytes of its shards are compared too.
    """
    scopes = {
        ".".join(map(path_key, path)): record.scope
        for path, record in jax.tree_util.tree_flatten_with_path(parameter_tree(case))[0]
    }
    state = named_arguments(step, step.arguments)
    rows = live_state(state)
    donated = {name for number in step.donate for name in _parts(step.argument_names[number])}
    different, basis = "", "abstract"
    if sum(row.bytes for row in rows) <= INITIALISED_BELOW_BYTES:
        different, basis = _initialised(case, step, state, family), "initialised"
    return {
        "rows": [_state_row(row, scopes, row.argument in donated) for row in rows],
        "by_role": by_role(rows),
        "device_bytes": sum(row.device_bytes for row in rows),
        "basis": basis,
        "initialised_equal": None if basis == "abstract" else not different,
        "reason": different if basis == "initialised" else "too large to be made here",
    }


def _initialised(case: Case, step: Step, abstract: dict[str, Any], family: str) -> str:
    """Return "" where a real state has the arrays of the abstract one, else what differs."""

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), tree)

    arguments = tuple(zeros(tree) for tree in step.arguments[1:])
    if case.workload.phase == "training":
        first: Any = init_state(case, zeros(step.arguments[0].parameters))
    else:
        first = zeros(step.arguments[0])
    real = named_arguments(step, (first, *arguments))
    different = same_arrays(abstract, real)
    if different or family != "cpu":
        return different
    placed = jax.device_put((first, *arguments), step.in_shardings)
    for row, leaf in zip(live_state(abstract), _arrays(named_arguments(step, placed)), strict=True):
        largest = max(shard.data.nbytes for shard in leaf.addressable_shards)
        if largest != row.device_bytes:
            return (
                f"{row.argument}.{row.name}: a device holds {largest} bytes, the abstract state says {row.device_bytes}"
            )
    return ""


def _arrays(state: Mapping[str, Any]) -> list[Any]:
    return [leaf for tree in state.values() for leaf in jax.tree.leaves(tree)]


def _state_row(row: StateRow, scopes: Mapping[str, str], donated: bool) -> dict[str, Any]:
    return {**row.to_dict(), "scope": scopes.get(row.parameter, ""), "donated": donated}


def _parts(argument: str) -> tuple[str, ...]:
    return ("parameters", "master", "optimizer") if argument == "state" else (argument,)


def _rematerialisation(
    lowered: Any, target: Target, first: Compiled | Refusal, sections: Mapping[str, Any], case: Case, allowed: bool
) -> dict[str, Any]:
    return rematerialisation_section(
        target, first, sections,
        again=(lambda: compile_lowered(lowered, target, rematerialisation=True)) if allowed else None,
        read=lambda hlo: hlo_sections(hlo, target, mesh=program_mesh(case), scopes=known_scopes(case)),
    )  # fmt: skip


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    found = {str(name): str(version) for name, version in environment["versions"].items()}
    for package in ("equinox", "optax", "chex", "numpy", "protobuf", "jaxcost"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
