"""A stage of JAX (`jax.stages.Traced`, `Lowered`, `Compiled`) as a source: no more is done than the stage lacks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

from jaxcost.contracts.errors import reject
from jaxcost.observation import private
from jaxcost.observation.sources.program import Lowered, Program
from jaxcost.observation.targets import Family, Target

Kind = Literal["traced", "lowered", "compiled"]


def stage_of(value: Any) -> tuple[Kind, Any] | None:
    """Return which stage a value is, and JAX's own object where a library wrapped it; None where it is no stage."""
    if "jax" not in sys.modules:
        return None
    import jax

    kinds: dict[Kind, type] = {
        "traced": jax.stages.Traced, "lowered": jax.stages.Lowered, "compiled": jax.stages.Compiled,
    }  # fmt: skip
    try:
        inner = private.plain_stage(value)
    except Exception:  # noqa: BLE001  an object of the user's, whose attributes may raise anything
        return None
    return next(((kind, inner) for kind, type_ in kinds.items() if isinstance(inner, type_)), None)


def lowered_stage(kind: Kind, stage: Any, target: Target) -> tuple[Lowered, private.Portable]:
    """Return what a traced or lowered stage knows, and its module for the process that compiles it.

    Raises:
        RejectedError: it is lowered for another platform than the target's.
    """
    from jaxcost.observation.sources.functions import describe, lower_traced

    if kind == "traced":
        return lower_traced(stage, platform=target.family)
    platforms = private.lowered_platforms(stage)
    if target.family not in platforms:
        rule = f"the stage is lowered for {', '.join(platforms)}, the target is of {target.family}"
        remedy = "give the traced stage (function.trace(...)), or a target of that platform"
        raise reject("target", target.text, rule, remedy)
    return describe(stage, target.family)


def compiled_stage(stage: Any, target: Target | None) -> Program:
    """Return the program of a compiled stage. `target` says which device it is of, where it is of that platform.

    The executable holds the module without its buffer assignment (a CPU one has it apart, without the heap's moments).
    """
    platform, devices = private.compiled_platform(stage)
    families: Mapping[str, Family] = {"cpu": "cpu", "cuda": "cuda", "tpu": "tpu"}
    if platform not in families:
        raise reject("function", platform, "compiled for a platform that is not read here", "cpu, cuda and tpu are")
    family = families[platform]
    if target is not None and (target.family, target.device_count) != (family, devices):
        rule = f"the stage is compiled for {devices} {family} device{'s' * (devices > 1)}"
        raise reject("target", target.text, rule, "name such a target or none, or give the traced stage")
    memory, costs = stage.memory_analysis(), stage.cost_analysis()
    hlo, assigned = private.compiled_module(stage)
    note = "the heap's moments are not in a compiled stage, so its live peak is not known"
    if not assigned:
        note = "a compiled stage has no buffer assignment: what memory holds is not known"
    numbers = {name: int(getattr(memory, name)) for name in dir(memory) if name.endswith("_in_bytes")}
    return Program(
        origin="stage", name=private.compiled_name(stage).removeprefix("jit_"), hlo=hlo, platform=family,
        target=target,
        memory_analysis=numbers or None, memory_analysis_reason="" if numbers else "the stage has none",
        cost_analysis=dict(costs) if costs else None, cost_analysis_reason="" if costs else "the stage has none",
        notes=(f"{note}; give the function, its lowered stage, or an XLA dump of it for all",),
    )  # fmt: skip
