"""A Python function to a lowered module, where the function lives: no compiler runs here, no device is touched.

What is audited is what a call would run. A function that is compiled already (`jax.jit`, `nnx.jit`, `eqx.filter_jit`)
is traced by its own rules, donation and static arguments included. A plain one is jitted; leaves of its arguments that
are no arrays (the activation function of a module, a name) are held fixed, as `eqx.filter_jit` does, and a callable
that holds arrays, such as a network, becomes its own first argument: its weights are arguments, not constants.

    lowered, module = lower_function(step, (state, batch), {}, platform="cuda", options={"donate_argnums": 0})
"""

from __future__ import annotations

import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import numpy as np

from jaxcost.contracts.errors import RejectedError, reject
from jaxcost.observation import private
from jaxcost.observation.hlo.frames import Frame
from jaxcost.observation.jaxpr import inside
from jaxcost.observation.sections import jaxpr_section
from jaxcost.observation.sources.program import Argument, Constant, Lowered
from jaxcost.observation.targets import Family

# Keywords of `jax.jit` that an audit of a plain function takes.
JIT_OPTIONS = (
    "donate_argnums", "donate_argnames", "static_argnums", "static_argnames", "in_shardings", "out_shardings",
    "keep_unused",
)  # fmt: skip
# A module holds its constants as text or bytes several times over on its way; jit would make the same program of them.
MOST_CONSTANT_BYTES = 2**30
_NARROW = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2, "int1": 1, "uint1": 1}
_NAMED, _SHORT = 8, 32  # fixed leaves that a note names, and the longest value it shows


def lower_function(
    function: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    platform: Family,
    options: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> tuple[Lowered, private.Portable]:
    """Trace and lower a function for a platform.

    Args:
        function: plain, `jax.jit`, `eqx.filter_jit`, `nnx.jit`, or a `functools.partial` of one.
        args, keywords: its arguments: arrays, `jax.ShapeDtypeStruct`, pytrees and modules of them, numbers.
        platform: what it is lowered for; no plugin of it is needed.
        options: keywords of `jax.jit` (`JIT_OPTIONS`), for a plain function.
        mesh: axes in whose context it is traced, so that a bare `PartitionSpec` has a meaning.

    Raises:
        RejectedError: it is no function, JAX cannot trace it with these arguments, or cannot lower it.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    unknown = sorted(given.keys() - set(JIT_OPTIONS))
    if unknown:
        raise reject(unknown[0], given[unknown[0]], "not an option of an audit", f"one of {', '.join(JIT_OPTIONS)}")
    if not callable(function):
        remedy = "give a function, and its arguments after it; or a stage of jax.jit (traced, lowered, compiled)"
        raise reject("function", function, "cannot be called", remedy)
    with _axes(mesh) as within:
        traced, fixed = _refusing(
            "trace", function, lambda: trace(function, tuple(args), dict(keywords), given, within)
        )
        lowered, module = lower_traced(traced, platform=platform, function=function, mesh=within, fixed=fixed)
    inner, _, _ = _unwrapped(function, (), {})
    return replace(lowered, jitted="eqx.filter_jit" if _is_filter_jit(inner) else "jax.jit"), module


def lower_traced(
    traced: Any, *, platform: Family, function: Any = None, mesh: Any = None, fixed: Sequence[tuple[str, Any]] = ()
) -> tuple[Lowered, private.Portable]:
    """Lower a `jax.stages.Traced` for a platform, in the context of a mesh where one is given. `fixed`: leaves of the
    call that are no arrays, by their paths.

    A shard_map or a constraint over abstract devices, in a program whose arguments name no mesh, brings its own.

    Raises:
        RejectedError: JAX cannot lower it.
    """
    name = function if function is not None else getattr(traced, "fun_name", "the traced stage")
    traced = private.with_own_names(traced)
    captured = sum(constant.bytes for constant in constants(traced.jaxpr))
    if captured > MOST_CONSTANT_BYTES:
        rule = f"captures {captured:,} bytes of arrays, which would be written into the module"
        raise reject("function", str(traced.fun_name), rule, "make them arguments of the function")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        lowered = _refusing("lower", name, lambda: private.lower_for(traced, platform, mesh))
        inner = _inner_mesh(traced.jaxpr)
        if mesh is None and inner is not None and inner.size > private.device_count(lowered):
            lowered = _refusing("lower", name, lambda: private.lower_for(traced, platform, inner))
    said = tuple(dict.fromkeys(str(item.message).split("\n")[0][:400] for item in heard))
    return describe(lowered, platform, jaxpr=traced.jaxpr, said=(*said, *_held_fixed(fixed)))


def _held_fixed(fixed: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """One note on the leaves that are no arrays. Another value of one of them is another program."""
    if not fixed:
        return
    shown = ", ".join(f"{path} ({_short(leaf)})" for path, leaf in fixed[:_NAMED])
    more = f", and {len(fixed) - _NAMED} more" if len(fixed) > _NAMED else ""
    several = (
        "leaves of the arguments are no arrays and are"
        if len(fixed) > 1
        else "leaf of the arguments is no array and is"
    )
    yield f"{len(fixed)} {several} held fixed: {shown}{more}"


def _short(leaf: Any) -> str:
    """A leaf in a few words: a name, a small value, or its type."""
    name = getattr(leaf, "__name__", None)
    if isinstance(name, str):
        return name
    plain = isinstance(leaf, bool | int | float | complex | str) and len(repr(leaf)) <= _SHORT
    return repr(leaf) if plain else type(leaf).__name__


def describe(
    lowered: Any, platform: Family, *, jaxpr: Any = None, said: tuple[str, ...] = ()
) -> tuple[Lowered, private.Portable]:
    """Return what a `jax.stages.Lowered` knows, and the module for the process that compiles it.

    Raises:
        RejectedError: a shape has a symbolic dimension.
    """
    facts = private.lowering_facts(lowered)
    try:
        module = private.portable(lowered)
    except NotImplementedError as error:
        raise reject("function", str(error), "cannot be compiled", "give every dimension a number") from None
    kept = iter(facts.shardings)
    arguments = []
    for index, info in enumerate(jax.tree_util.tree_leaves(lowered.args_info)):
        stays = index in facts.kept
        sharding = next(kept, None) if stays else None
        arguments.append(Argument(
            facts.names[index] if index < len(facts.names) else f"argument {index}", tuple(info.shape),
            str(info.dtype), array_bytes(info.shape, info.dtype), bool(info.donated), stays,
            "" if sharding is None else _sharding_text(sharding),
        ))  # fmt: skip
    mesh, conflict = _one_mesh(facts.meshes, module.device_count)
    results = tuple(
        f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree_util.tree_leaves(lowered.out_info)
    )
    return Lowered(
        name=module.name.removeprefix("jit_"), platform=platform, device_count=module.device_count,
        arguments=tuple(arguments), results=results,
        constants=tuple(constants(jaxpr)) if jaxpr is not None else (), mesh=mesh,
        jaxpr=jaxpr_section(jaxpr, open_kernels=True) if jaxpr is not None else None, warnings=(*said, *conflict),
    ), module  # fmt: skip


def trace(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], options: Mapping[str, Any], mesh: Any = None
) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the `jax.stages.Traced` of a call, and the leaves that it holds fixed. Raises what the function or JAX
    raises.
    """
    function, args, keywords = _unwrapped(function, args, keywords)
    own = _compiled_already(function)
    if own is not None:
        if options:
            name = next(iter(options))
            rule, remedy = "the function is jitted: it has its own", f"give {name} to its jit, or pass the function"
            raise reject(name, options[name], rule, remedy)
        return own(*args, **keywords)
    function, args, keywords, options = _opened(function, args, keywords, dict(options))
    if mesh is not None:
        for name in ("in_shardings", "out_shardings"):
            if name in options:
                options[name] = _placed(options[name], mesh)
    return _jitted(function, args, keywords, options)


def _unwrapped(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Take the arguments out of a partial or a bound method of something compiled."""
    while True:
        if _is_partial(function) and _has_stages(function.func):
            function, args, keywords = function.func, (*function.args, *args), {**function.keywords, **keywords}
        elif _is_method(function) and _has_stages(function.__func__):
            function, args = function.__func__, (function.__self__, *args)
        else:
            return function, args, keywords


def _has_stages(function: Any) -> bool:
    return _is_partial(function) or _is_method(function) or _compiled_already(function) is not None


def _is_partial(function: Any) -> bool:
    """One of functools, of JAX or of equinox."""
    return all(hasattr(function, name) for name in ("func", "args", "keywords"))


def _is_method(function: Any) -> bool:
    """One of Python, or equinox's, which is a module."""
    return all(hasattr(function, name) for name in ("__func__", "__self__"))


def _is_filter_jit(function: Any) -> bool:
    return hasattr(function, "_cached") and hasattr(function, "donate_first")


def _compiled_already(function: Any) -> Callable[..., tuple[Any, list[tuple[str, Any]]]] | None:
    """Return how a function that brings its own jit is traced, None for a plain one."""
    if _is_filter_jit(function):
        return functools.partial(private.trace_filter_jit, function)
    if callable(getattr(function, "trace", None)) and callable(getattr(function, "lower", None)):
        return lambda *args, **keywords: (private.plain_stage(function.trace(*args, **keywords)), [])
    return None


def _opened(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Make a callable that holds arrays its own first argument."""
    if _is_method(function) and _holds_arrays(function.__self__):
        holder, call = function.__self__, function.__func__
    elif _holds_arrays(function):
        holder = function

        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            return self(*args, **keywords)

        call.__name__ = type(function).__name__
    else:
        return function, args, keywords, options
    for name in ("donate_argnums", "static_argnums"):
        if name in options:
            numbers = options[name] if isinstance(options[name], Sequence) else (options[name],)
            options[name] = tuple(number + 1 if number >= 0 else number for number in numbers)
    if isinstance(options.get("in_shardings"), tuple):
        options["in_shardings"] = (None, *options["in_shardings"])
    return call, (holder, *args), keywords, options


def _holds_arrays(value: Any) -> bool:
    leaves, tree = jax.tree_util.tree_flatten(value)
    return not jax.tree_util.treedef_is_leaf(tree) and any(is_array(leaf) for leaf in leaves)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, real or abstract."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )


def _is_traced(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, bool | int | float | complex)


@dataclass(frozen=True)
class _Fixed:
    """The leaves of one argument that are no arrays, by position; the others are None."""

    leaves: tuple[Any, ...]
    tree: Any

    def whole(self, dynamic: Any) -> Any:
        arrays = self.tree.flatten_up_to(dynamic)
        return self.tree.unflatten(
            [fixed[0] if fixed else array for fixed, array in zip(self.leaves, arrays, strict=True)]
        )


def _split(value: Any) -> tuple[Any, _Fixed]:
    leaves: list[Any]
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten(value)
    fixed = tuple(() if _is_traced(leaf) else (leaf,) for leaf in leaves)
    return tree.unflatten([None if at else leaf for at, leaf in zip(fixed, leaves, strict=True)]), _Fixed(fixed, tree)


def _jitted(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], options: Mapping[str, Any]
) -> tuple[Any, list[tuple[str, Any]]]:
    static_numbers, static_names = _static(function, options, len(args))
    split = [(arg, None) if number in static_numbers else _split(arg) for number, arg in enumerate(args)]
    named = {name: (arg, None) if name in static_names else _split(arg) for name, arg in keywords.items()}

    def call(*given: Any, **more: Any) -> Any:
        result = function(
            *(arg if fixed is None else fixed.whole(arg) for arg, (_, fixed) in zip(given, split, strict=True)),
            **{name: arg if (f := named[name][1]) is None else f.whole(arg) for name, arg in more.items()},
        )
        return jax.tree_util.tree_map(lambda leaf: leaf if _is_traced(leaf) else None, result)

    # The name and the signature of the function are those of the module and of its arguments.
    functools.update_wrapper(call, function)
    if not hasattr(function, "__name__"):
        inner = getattr(function, "func", None)
        call.__name__ = call.__qualname__ = getattr(inner, "__name__", type(function).__name__)
    jitted = jax.jit(call, **options)
    traced = jitted.trace(*(arg for arg, _ in split), **{name: arg for name, (arg, _) in named.items()})
    names = private.argument_names(inspect.signature(function), len(args)) if _has_signature(function) else []
    names += [f"args[{number}]" for number in range(len(names), len(args))]
    every = [*zip(names, args, split, strict=True), *((name, keywords[name], named[name]) for name in keywords)]
    return traced, [
        (name + jax.tree_util.keystr(path), leaf)
        for name, value, (_, fixed) in every
        if fixed is not None
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
        if not _is_traced(leaf)
    ]


def _has_signature(function: Any) -> bool:
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return False
    return True


def _static(function: Any, options: Mapping[str, Any], count: int) -> tuple[set[int], set[str]]:
    """Return the positions and names that `jax.jit` holds static, each from the other by the signature."""
    numbers, names = options.get("static_argnums", ()), options.get("static_argnames", ())
    numbers = {numbers} if isinstance(numbers, int) else set(numbers)
    names = {names} if isinstance(names, str) else set(names)
    try:
        order = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
    except (TypeError, ValueError):
        order = []
    numbers = {number if number >= 0 else number + count for number in numbers}
    numbers |= {order.index(name) for name in names if name in order}
    names |= {order[number] for number in numbers if number < len(order)}
    return numbers, names


@contextmanager
def _axes(mesh: Mapping[str, int] | None) -> Iterator[Any]:
    if not mesh:
        yield None
        return
    made = jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh))
    with jax.sharding.use_abstract_mesh(made):
        yield made


def _placed(specs: Any, mesh: Any) -> Any:
    """Turn each bare PartitionSpec into a sharding over the mesh."""
    spec = jax.sharding.PartitionSpec
    return jax.tree_util.tree_map(
        lambda leaf: jax.sharding.NamedSharding(mesh, leaf) if isinstance(leaf, spec) else leaf,
        specs,
        is_leaf=lambda leaf: isinstance(leaf, spec),
    )


def _refusing(doing: str, function: Any, run: Callable[[], Any]) -> Any:
    """Run code of the user and JAX; what it raises becomes one problem with its first useful line.

    Raises:
        RejectedError: it raised, or would have ended the program. An interrupt may be the user's, and passes.
    """
    try:
        return run()
    except RejectedError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # the function is the user's: it may raise anything
        name = function if isinstance(function, str) else _name(function)
        rule = f"JAX cannot {doing} it: {type(error).__name__}: {first_line(error)}{line_of(error)}"
        remedy = "call jax.jit(function).lower(*args) to see where" if doing == "lower" else "correct the call"
        raise reject("function", name, rule, remedy) from error


def line_of(error: BaseException) -> str:
    """Return ` (file.py, line 12)`, the innermost line of a traceback that is of the program's own code; '' without."""
    calls = traceback.walk_tb(error.__traceback__)
    stack = [Frame(at.f_code.co_filename, at.f_code.co_name, line) for at, line in calls]
    own = [frame for frame in stack if not frame.library and not frame.driver]
    return f" ({own[-1].file.rpartition('/')[2]}, line {own[-1].line})" if own else ""


def _name(function: Any) -> str:
    try:
        return str(function.__name__)
    except Exception:  # noqa: BLE001  an object of the user's, whose attributes may raise anything
        return type(function).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something, shortened."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  the text is made by code of the user's too
        return "and its message cannot be made"
    lines = (line.strip() for line in said.splitlines())
    return next((line for line in lines if line), "no message")[:400].rstrip(".")


def array_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Return the bytes of an array as the caller holds it; types below a byte are packed, keys are their words."""
    bits = _NARROW.get(str(dtype), 8 * int(dtype.itemsize))
    return -(-prod(shape) * bits // 8)


def _sharding_text(sharding: Any) -> str:
    spec = getattr(sharding, "spec", None)
    kind = getattr(sharding, "memory_kind", None)
    text = str(spec) if spec is not None else type(sharding).__name__
    return f"{text} on {kind}" if kind not in (None, "device") else text


def _one_mesh(meshes: Sequence[Any], devices: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the axes of the mesh that spans the program, and a warning where there are several orders of them."""
    found = {tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)): None for mesh in meshes}
    whole = [axes for axes in found if prod(size for _, size in axes) == devices]
    if len(whole) > 1:
        shown = "; ".join(",".join(f"{name}={size}" for name, size in axes) for axes in whole)
        return {}, (f"several meshes span the program ({shown}): which of them names the axes is to be said (mesh)",)
    return dict(whole[0]) if whole else {}, ()


def _inner_mesh(jaxpr: Any) -> Any:
    """The abstract form of the first mesh that an equation names (a shard_map, a constraint), None where none does."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                mesh = item.mesh if isinstance(item, jax.sharding.NamedSharding) else item
                if isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh) and not mesh.empty:
                    return getattr(mesh, "abstract_mesh", mesh)
        for _, inner in inside(eqn):
            found = _inner_mesh(inner)
            if found is not None:
                return found
    return None


def constants(jaxpr: Any) -> Iterator[Constant]:
    """The arrays that a function captured, each once, largest first."""
    found: dict[int, Any] = {}
    _captured(jaxpr, found)
    arrays = sorted(found.values(), key=lambda value: -array_bytes(value.shape, value.dtype))
    return (Constant(tuple(v.shape), str(v.dtype), array_bytes(v.shape, v.dtype)) for v in arrays)


def _captured(jaxpr: Any, found: dict[int, Any]) -> None:
    held: list[Any] = list(getattr(jaxpr, "consts", ()))
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        held += [atom.val for atom in eqn.invars if hasattr(atom, "val") and prod(getattr(atom.val, "shape", ())) > 1]
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(item, "jaxpr", item), "eqns"):
                    _captured(item, found)
    found |= {id(value): value for value in held if is_array(value)}
