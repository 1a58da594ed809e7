"""A function named on the command line, `module:name`: the one spelling that imports code of the user.

The named object is a callable. One that can be called without arguments returns `(function, args)` or
`(function, args, keywords)`, with abstract arguments as far as it likes:

    def train_step_8b():
        state = jax.eval_shape(init, key)
        return jax.jit(step, donate_argnums=0), (state, jax.ShapeDtypeStruct((16, 4096), jnp.int32))
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.errors import RejectedError, reject
from jaxcost.observation.private import Portable
from jaxcost.observation.sources.functions import first_line, line_of, lower_function
from jaxcost.observation.sources.names import OPTION as _OPTION
from jaxcost.observation.sources.names import check_name
from jaxcost.observation.sources.program import Lowered
from jaxcost.observation.sources.stages import lowered_stage, stage_of
from jaxcost.observation.targets import Target

_FORM = "return (function, args) or (function, args, keywords), where args is a tuple of (abstract) arguments"


def lower_named(
    name: str, target: Target, *, folder: str, mesh: Mapping[str, int] | None = None
) -> tuple[Lowered, Portable]:
    """Import a function by name, from `folder` or the Python path, call it for its arguments, and lower it.

    Raises:
        RejectedError: the module or the name is not there, its code raises, or it gives no function and arguments.
    """
    value = _running(name, "import", lambda: _found(name, folder))
    function, args, keywords = _running(name, "call", lambda: arguments_of(value, name))
    stage = stage_of(function)
    if stage is not None:
        if stage[0] == "compiled":
            raise reject(_OPTION, name, "gives a compiled stage", "give the function and its arguments")
        return lowered_stage(*stage, target)
    try:
        return lower_function(function, args, keywords, platform=target.family, mesh=mesh)
    except Exception:  # refused by what lowers it, or a fault of jaxcost's own: either is what it is
        raise
    except BaseException as error:  # in a worker no interrupt is the user's: the function raised it
        raise _raised(name, "tracing", error) from error


def arguments_of(value: Any, name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return function, arguments and keywords of a named object; see the module's words.

    Raises:
        RejectedError: it is no such object, or its code raises.
    """
    if stage_of(value) is not None:
        return value, (), {}
    if callable(value):
        needed = _needed(value)
        if needed:
            rule = f"needs arguments ({', '.join(needed)}), and none can be given on a command line"
            raise reject(_OPTION, name, rule, f"name a function without arguments, and let it {_FORM}")
        value = _running(name, "call", value)
        if stage_of(value) is not None:
            return value, (), {}
    parts = value if isinstance(value, tuple | list) else ()
    function, args, keywords = (*parts, (), {})[:3] if len(parts) == 1 else (*parts, {})[:3] if parts else (None,) * 3
    whole = 1 < len(parts) <= 3 and callable(function) and isinstance(args, tuple | list)
    if not whole or not isinstance(keywords, Mapping) or not all(isinstance(key, str) for key in keywords):
        raise reject(_OPTION, name, f"gives {type(value).__name__}", f"let it {_FORM}")
    return function, tuple(args), dict(keywords)


def _found(name: str, folder: str) -> Any:
    module_name, names = check_name(name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            rule = f"no module {error.name} in {folder} or on the Python path"
            raise reject(_OPTION, name, rule, "run in its folder, or set PYTHONPATH") from None
        raise _raised(name, "import", error) from error
    except BaseException as error:  # the module is the user's: it may raise anything, or end the process
        raise _raised(name, "import", error) from error
    for index, part in enumerate(names):
        if not hasattr(value, part):
            here = ".".join((module_name, *names[:index]))
            raise reject(_OPTION, name, f"{here} has no {part}", "check the name")
        value = getattr(value, part)
    return value


def _needed(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _running(name: str, doing: str, function: Any) -> Any:
    try:
        return function()
    except RejectedError:
        raise
    except BaseException as error:  # in a worker no interrupt is the user's: the function raised it
        raise _raised(name, doing, error) from error


def _raised(name: str, doing: str, error: BaseException) -> RejectedError:
    where = line_of(error)
    said = f"{type(error).__name__}: {first_line(error)}"
    remedy = "make it run in Python first"
    if "device" in said and "jax" in sys.modules and sys.modules["jax"].device_count() == 1:
        remedy += "; a mesh of devices needs a target that has them, --target cpu:8"
    return reject(_OPTION, name, f"it raises at its {doing}: {said}{where}", remedy)
