"""The spelling of a named function, `module:name`; checked before a worker starts, so no jax is imported."""

from __future__ import annotations

from jaxcost.contracts.errors import reject

OPTION = "--function"


def check_name(name: str) -> tuple[str, list[str]]:
    """Return the module and the path of names of `module:name`.

    Raises:
        RejectedError: it is not of that form.
    """
    module, _, path = name.partition(":")
    names = path.split(".")
    if not all(part.isidentifier() for part in (*module.split("."), *names)):
        raise reject(OPTION, name, "not of the form module:name", "write for example --function train:step")
    return module, names
