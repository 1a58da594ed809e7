"""Every interface of JAX or XLA used here that carries no promise, each with the reason and the versions tried.

Nothing else in the package touches one: when a release breaks jaxcost, this is the file to mend. All were tried with
jax and jaxlib 0.10.2, jax-cuda13-plugin 0.10.2 and libtpu 0.0.42.1; what the sources of jax 0.11 say is noted.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from jaxcost.observation.hlo.schema import varint

# Compiler options with no documentation of their own; each is accepted by the compiler of its family.
#
# XLA rematerialises a program that exceeds the device and says so nowhere but in instruction names (`.remat`).
# CUDA: what `jax_compiler_enable_remat_pass=False` sets; given as an option so that it is part of the compile's key and
# record. TPU: that switch has no effect, the pass is told to consider no buffer instead. CPU: there is no such pass.
WITHOUT_REMATERIALISATION: dict[str, dict[str, Any]] = {
    "cpu": {},
    "cuda": {"xla_disable_hlo_passes": "rematerialization"},
    "tpu": {"xla_tpu_rematerialization_min_size_in_bytes": 2**40},
}


def cpu_little_effort() -> dict[str, Any]:
    """Return options for code generation without effort: a program is compiled to be read, not to be run. The module
    keeps its contractions; fusions and temporary buffers differ. Together about four times faster on a two-layer
    training step. jaxlib 0.11 has the second option no more.
    """
    first = {"xla_backend_optimization_level": 0}
    old = tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11)
    return {**first, "xla_cpu_use_fusion_emitters": False} if old else first


# No buffer assignment is public for CUDA and TPU. The dump has it, in one file, also where the compiler then refuses.
DUMP_OPTIONS: dict[str, Any] = {"xla_dump_hlo_as_proto": True}
# A leaf of a module as `nnx.jit` hands it to JAX.
_NUMBERED = re.compile(r"(?P<argument>.+?)\.states\[\d+\]\[\d+\](?P<rest>.*)")
_DUMPED = re.compile(r"module_(?P<number>[0-9]+)\.(?P<rest>.+)")


def dumped_module(directory: Path, module_name: str, stage: str) -> Path | None:
    """Return the dump of a module at a stage (`after_optimizations`, `before_optimizations`), None where there is none.

    Names are `module_NNNN.NAME.[TARGET_]after_optimizations.hlo.pb`, NNNN counting the modules of the process; a
    compilation may compile helpers of its own, so the name decides, then the number.
    """
    found: list[tuple[bool, int, Path]] = []
    for path in directory.glob(f"*{stage}.hlo.pb"):
        match = _DUMPED.fullmatch(path.name)
        if match:
            found.append((match["rest"].startswith(module_name + "."), int(match["number"]), path))
    return max(found)[2] if found else None


def module_name(lowered: Any) -> str:
    """Return the name of a lowered module, `jit_step`. The MLIR module is public, its attributes are MLIR's."""
    return str(lowered.compiler_ir("stablehlo").operation.attributes["sym_name"].value)


def optimised_proto(compiled: Any) -> bytes:
    """Return the compiled module as an HloProto without buffer assignment.

    `runtime_executable()` is public, what it returns is not; works for CPU executables and for ahead-of-time CUDA and
    TPU ones. The module is field 1 of HloProto. Unchanged in jax 0.11.
    """
    module: bytes = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return b"\x0a" + varint(len(module)) + module


def compiled_module(compiled: Any) -> tuple[bytes, bool]:
    """Return the HloProto of a compiled stage and whether a buffer assignment is in it.

    The statistics of a CPU executable carry the assignment (field 3 of HloProto), without the heap's moments; those of
    CUDA and TPU carry none.
    """
    module = optimised_proto(compiled)
    assignment: bytes = getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", b"") or b""
    return (module + b"\x1a" + varint(len(assignment)) + assignment if assignment else module), bool(assignment)


def compiled_platform(compiled: Any) -> tuple[str, int]:
    """Return the platform of a compiled stage (`cpu`, `cuda`, `rocm`, `tpu`, ...) and its number of devices.

    `Device.platform` of the shardings is public and says `gpu` for both of the second and third; a program without
    arguments has none.
    """
    made = compiled._executable._unloaded_executable
    devices = made.device_list
    return str(devices[0].client.platform), len(devices)


def compiled_name(compiled: Any) -> str:
    """Return the name of a compiled stage's module; see `optimised_proto`."""
    return str(compiled.runtime_executable().hlo_modules()[0].name)


def lowered_platforms(lowered: Any) -> tuple[str, ...]:
    """Return what a `jax.stages.Lowered` was lowered for."""
    return tuple(lowered._lowering._platforms)


def proto_of_text(text: str) -> bytes:
    """Return the HloProto of a module printed as text. For foreign dumps: the parser crashes on some inputs, so call
    it in a worker. No public reader of HLO text exists in jax 0.10.2 or 0.11.
    """
    parse: Callable[[str], Any] = importlib.import_module("jaxlib._hlo").hlo_module_from_text
    module: bytes = parse(text).as_serialized_hlo_module_proto()
    return b"\x0a" + varint(len(module)) + module


@dataclass(frozen=True)
class Portable:
    """A lowered module on its way to the process that compiles it: plain data.

    `code` is StableHLO bytecode. `free_inputs` and `free_outputs` say of each whether the partitioner may choose its
    sharding, as `jit` says of those for which none was given; effect tokens stand first. `shardy`: which partitioner
    the module was lowered for. `options` are the compiler options of the `jit` itself.
    """

    name: str
    code: bytes
    device_count: int
    free_inputs: tuple[bool, ...]
    free_outputs: tuple[bool, ...]
    tuple_arguments: bool
    shardy: bool
    options: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain data and bytes."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of `to_data`."""
        free = {name: tuple(data[name]) for name in ("free_inputs", "free_outputs")}
        return cls(**{**data, **free})


def device_count(lowered: Any) -> int:
    """Return the number of devices that a `jax.stages.Lowered` is for."""
    return int(lowered._lowering.compile_args["num_devices"])


def lower_for(traced: Any, platform: str, mesh: Any = None) -> Any:
    """Lower a `jax.stages.Traced` for a platform that this process may not have.

    Callbacks into Python are the one thing that JAX refuses to lower for another platform: their rule asks for the
    backend, which it needs to run them only. Here it gets a stand-in, and the calls stay in the module as they would.
    `_private_parameters` is what `jax.export` uses to override rules.

    `mesh`: abstract, for a trace that has no concrete one. `jit` takes an abstract mesh from its context only where an
    axis is explicit; here any does, by the parameter that it would set.
    """
    import jax

    stage = traced.lojax
    if mesh is not None and stage._params["ctx_mesh"].empty:
        stage._params = {**stage._params, "ctx_mesh": mesh}
    if platform == jax.default_backend() or (platform == "cuda" and jax.default_backend() == "gpu"):
        return traced.lower(lowering_platforms=(platform,))
    from jax._src import callback, debugging
    from jax._src.interpreters import mlir

    primitives = [
        getattr(module, name)
        for module, names in (
            (callback, ("pure_callback_p", "io_callback_p")), (debugging, ("debug_callback_p", "debug_print_p")),
        )
        for name in names
        if hasattr(module, name)
    ]  # fmt: skip
    rules: Any = tuple((primitive, _without_backend(primitive, platform)) for primitive in primitives)
    parameters = mlir.LoweringParameters(override_lowering_rules=rules)
    return traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)


class _Backend:
    """What a callback's lowering rule asks of a backend."""

    def __init__(self, platform: str):
        self.platform = platform

    def make_python_callback_from_host_send_and_recv(self, function: Any, *_: Any) -> Any:
        return function


def _without_backend(primitive: Any, platform: str) -> Callable[..., Any]:
    from jax._src.interpreters import mlir

    entry = mlir._platform_specific_lowerings[platform].get(primitive) or mlir._lowerings[primitive]
    rule: Callable[..., Any] = entry.rule

    def lower(context: Any, *operands: Any, **parameters: Any) -> Any:
        module = context.module_context
        own, module.backend = module.backend, _Backend(platform)
        try:
            return rule(context, *operands, **parameters)
        finally:
            module.backend = own

    return lower


def trace_filter_jit(function: Any, *args: Any, **keywords: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Trace a call of an `eqx.filter_jit` function; return it, and the leaves that it holds fixed by their paths.

    Its public `lower` lowers for the platform present and takes only real arrays; an abstract one would be static.
    Here its own jit is traced with the arguments split as it splits them, abstract arrays on the traced side. It hands
    its jit lists of leaves, so that JAX names them by number; the order of the leaves gives them the names they have in
    the call. Read from equinox 0.13.8 (`equinox._jit`).
    """
    import equinox as eqx
    import jax
    from equinox._compile_utils import hashable_partition

    def traced(leaf: Any) -> bool:
        return bool(eqx.is_array(leaf)) or isinstance(leaf, jax.ShapeDtypeStruct)

    bound = function._signature.bind(*args, **keywords)
    every: tuple[Any, ...] = (*bound.args, None)  # its own dummy, for a call without arguments
    names = argument_names(function._signature, len(bound.args))
    dynamic_first, static_first = hashable_partition(every[0], traced)
    dynamic_rest, static_rest = hashable_partition((every[1:], bound.kwargs), traced)
    kept: dict[str, Any] = {}
    given: dict[str, Any] = {}
    (given if function.donate_first else kept)["first"] = dynamic_first
    (given if function.donate_rest else kept)["fun"] = function._dynamic_fun
    (given if function.donate_rest else kept)["rest"] = dynamic_rest
    own = jax.tree_util.tree_unflatten(function._static_fun[1], range(len(function._dynamic_fun)))
    rest = list(zip(names[1:], every[1:-1], strict=False)) + sorted(bound.kwargs.items())
    paths = {
        "first": _leaf_paths([(names[0], every[0])] if names else []),
        "fun": _leaf_paths([("self", own)]),
        "rest": _leaf_paths(rest),
    }
    leaves = {"first": dynamic_first, "fun": function._dynamic_fun, "rest": dynamic_rest}
    order = [name for part in (given, kept) for name in sorted(part)]
    called = [path for name in order for path, leaf in zip(paths[name], leaves[name], strict=True) if leaf is not None]
    held = {"first": static_first[0], "fun": function._static_fun[0], "rest": static_rest[0]}
    fixed = [
        (path, leaf)
        for name, values in held.items()
        if len(paths[name]) > (name == "fun")  # a function is itself its only leaf
        for path, leaf, array in zip(paths[name], values, leaves[name], strict=True)
        if array is None
    ]
    stage = function._cached.trace(given, kept, (function._static_fun, static_first, static_rest))
    return renamed(stage, called), fixed


def argument_names(signature: Any, count: int) -> list[str]:
    """The names of positional arguments, as JAX writes them."""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{index}]" for index in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]


def _leaf_paths(named: Sequence[tuple[str, Any]]) -> list[str]:
    """The paths of all leaves of some named values, in order."""
    import jax

    return [
        name + jax.tree_util.keystr(path)
        for name, value in named
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    ]


def renamed(traced: Any, names: Sequence[str]) -> Any:
    """Return a `jax.stages.Traced` whose arguments have other names; the same where their number is another one.

    The names are in the debug information of its jaxpr, which JAX keeps for later calls: that one stays as it is. In
    jax 0.10 a closed jaxpr holds another, in 0.11 it is one.
    """
    closed = traced.jaxpr
    inner = closed.jaxpr
    old = inner.debug_info
    if old.arg_names is None or len(old.arg_names) != len(names) or tuple(old.arg_names) == tuple(names):
        return traced
    named = inner.replace(debug_info=old._replace(arg_names=tuple(names)))
    made = copy(traced)
    made._params = {**traced._params, "jaxpr": named if type(inner) is type(closed) else closed.replace(jaxpr=named)}
    made._lojax = None  # made of the other one
    return made


def with_own_names(traced: Any) -> Any:
    """Return a `jax.stages.Traced` with the paths of a module's variables, where `nnx.jit` numbered them.

    It hands its jit each module as a graph definition and a list of leaves; put together again with names for leaves,
    the module says where each lies. Read from flax 0.12.8 (`flax.nnx.extract`); names that cannot be told so stay.
    """
    old = traced.jaxpr.jaxpr.debug_info.arg_names
    if old is None or len(old) != traced._in_tree.num_leaves or not any(_NUMBERED.fullmatch(name) for name in old):
        return traced
    try:
        paths = _paths_in_modules(traced._in_tree.unflatten(list(old)))
    except (ImportError, AttributeError, LookupError, TypeError, ValueError):
        return traced
    return renamed(traced, [paths.get(name, name) for name in old])


def _paths_in_modules(call: Any) -> dict[str, str]:
    import jax
    from flax import nnx
    from flax.nnx import extract

    def merge(context: Any, path: Any, prefix: Any, leaf: Any) -> Any:
        whole = isinstance(leaf, extract.NodeStates)
        return context.unflatten(leaf.graphdef, *leaf.states) if whole else leaf

    found: dict[str, str] = {}
    args, keywords = extract.from_tree(call, merge_fn=merge, is_inner=True, ctxtag=None)
    for value in (*args, *keywords.values()):
        for path, variable in () if isinstance(value, str) else nnx.to_flat_state(nnx.state(value)):
            keys = "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in path)
            for leaf in jax.tree_util.tree_leaves(variable):
                match = _NUMBERED.fullmatch(leaf) if isinstance(leaf, str) else None
                if match is not None and leaf not in found:  # a variable of two modules is handed over once
                    found[leaf] = f"{match['argument']}{keys}{match['rest']}"
    return found


def plain_stage(stage: Any) -> Any:
    """Return JAX's own stage out of one that a library wrapped: `flax.nnx` keeps it as `traced`, `lowered`, `compiled`,
    equinox as `lowered`, `compiled`. Read from flax 0.12.8 and equinox 0.13.8.
    """
    for name in ("traced", "lowered", "compiled"):
        inner = getattr(stage, name, None)
        if inner is not None and type(inner).__module__.startswith("jax"):
            return inner
    return stage


def portable(lowered: Any) -> Portable:
    """Return what a compile of a `jax.stages.Lowered` needs.

    `jax.export` is the public way to carry a lowered function, but its module is another one: constants and calling
    convention differ, donation is lost. What `Lowered.compile` itself hands to XLA is `_lowering`: the MLIR module and
    `compile_args`. The rule for free shardings is that of `jax._src.interpreters.pxla.get_prop_to_input_output`.
    """
    from jax._src import config
    from jax._src.interpreters import mlir, pxla

    lowering = lowered._lowering
    known = lowering.compile_args
    if known["shape_poly_state"] is not None and known["shape_poly_state"].uses_dim_vars:
        raise NotImplementedError("a shape with a symbolic dimension has no size")
    module, code = lowering.stablehlo(), io.BytesIO()
    with mlir.make_ir_context():
        module.operation.write_bytecode(code)
    free = pxla.get_prop_to_input_output(known["in_shardings"], known["out_shardings"], len(known["ordered_effects"]))
    return Portable(
        module_name(lowered), code.getvalue(), known["num_devices"], tuple(map(bool, free[0])),
        tuple(map(bool, free[1])), bool(known["tuple_args"]), bool(config.use_shardy_partitioner.value),
        dict(lowering._compiler_options_kvs),
    )  # fmt: skip


def compile_portable(module: Portable, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compile a module for devices in their logical order and return the runtime's executable.

    `Lowered.compile` takes no devices of another platform than the process has, so its last step is taken here, with
    the options that it would make. Ahead-of-time devices give an executable that is never loaded. Tried with jax 0.10.2
    alone: of 0.11 only the sources of `compiler` were looked at, and nothing was compiled with it.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir

    # Names that the modules import without exporting.
    ir: Any = importlib.import_module("jax._src.lib.mlir").ir
    device_list: Any = importlib.import_module("jax._src.lib")._jax.DeviceList
    grid = np.empty((1, len(devices)), dtype=object)
    grid[0, :] = devices
    backend = devices[0].client
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module.code)
        made = compiler.get_compile_options(
            1, len(devices), device_assignment=grid, env_options_overrides={**module.options, **options},
            backend=backend,
        )  # fmt: skip
        made.parameter_is_tupled_arguments = module.tuple_arguments
        build = made.executable_build_options
        build.use_shardy_partitioner = module.shardy
        build.allow_spmd_sharding_propagation_to_parameters = list(module.free_inputs)
        build.allow_spmd_sharding_propagation_to_output = list(module.free_outputs)
        return compiler.backend_compile_and_load(backend, parsed, device_list(tuple(devices)), made, [])


def executable_costs(executable: Any) -> dict[str, float] | None:
    """Return the cost analysis of a runtime executable; None where its compiler has none (CUDA ahead of time).

    `Compiled.cost_analysis` is public and reads the same; an executable of another process's module has no `Compiled`.
    """
    import jax

    try:
        found: dict[str, float] | None = executable.cost_analysis()
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("UNIMPLEMENTED"):
            raise
        return None
    return dict(found) if found else None


def executable_memory(executable: Any) -> Any:
    """Return the memory statistics of a runtime executable, None where it has none; `Compiled.memory_analysis` is
    public and reads the same.
    """
    return executable.get_compiled_memory_stats()


@dataclass(frozen=True)
class LoweringFacts:
    """What a lowering knows of its arguments: names as they stand in the module, which are kept, and shardings.

    `shardings` are those of the kept arguments, in order, None where none was given; `results` those of the results.
    `meshes` are all meshes met, on arguments, results or inside.
    """

    names: tuple[str, ...]
    kept: frozenset[int]
    shardings: tuple[Any, ...]
    results: tuple[Any, ...]
    meshes: tuple[Any, ...]


def lowering_facts(lowered: Any) -> LoweringFacts:
    """Return what a `jax.stages.Lowered` knows of its arguments beyond `args_info`, which is public."""
    import jax

    known = lowered._lowering.compile_args
    every = known["all_args_info"]
    count = len(every.in_avals) if every is not None else len(known["global_in_avals"])
    names = every.debug_info.safe_arg_names(count) if every is not None else [f"argument {i}" for i in range(count)]

    def given(listed: Any) -> tuple[Any, ...]:
        return tuple(item if isinstance(item, jax.sharding.Sharding) else None for item in listed or ())

    inside = given(known.get("intermediate_shardings"))
    taken, returned = given(known["in_shardings"]), given(known["out_shardings"])
    meshes = [getattr(item, "mesh", None) for item in (*taken, *returned, *inside)]
    meshes.append(known.get("context_mesh"))
    return LoweringFacts(
        tuple(names), frozenset(known["kept_var_idx"]), taken, returned,
        tuple(mesh for mesh in meshes if mesh is not None and getattr(mesh, "axis_names", None)),
    )  # fmt: skip


def saved_residuals(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[tuple[Any, str]]:
    """Return what a backward pass keeps, as (abstract value, where it comes from).

    The public `jax.ad_checkpoint.print_saved_residuals` prints the same list. Unchanged in jax 0.11.
    """
    from jax._src.ad_checkpoint import saved_residuals as residuals

    return list(residuals(function, *arguments, **keywords))
