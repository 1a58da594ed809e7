"""Exact cost ledgers of transformer models, checked row by row against the program XLA compiles.

    import jaxcost

    arch = jaxcost.load("llama-3.1-8b")                 # a name, a path, or jaxcost.from_huggingface(config)
    case = jaxcost.training(arch, batch=16, seq=4096, mesh={"fsdp": 8}, remat="block")
    prediction = jaxcost.predict(case)                  # arithmetic: exact integers, no jax
    seen = jaxcost.observe(case, target="h100:8")       # XLA's compiled program
    report = jaxcost.reconcile(prediction, seen)        # report.status, report.rows, report.findings

    audit = jaxcost.audit(step, *abstract_arguments, target="tpu-v5e:2x4")      # any JAX function of yours

Names load when they are first used, so that `import jaxcost` is free and an estimate never imports jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module it comes from, and its name there
_PUBLIC = {
    "load": ("jaxcost.catalog", "load_architecture"),
    "from_huggingface": ("jaxcost.catalog", "from_huggingface"),
    "training": ("jaxcost.contracts.case", "training"),
    "prefill": ("jaxcost.contracts.case", "prefill"),
    "decode": ("jaxcost.contracts.case", "decode"),
    "predict": ("jaxcost.prediction.ledgers", "predict"),
    "vary": ("jaxcost.planning.sensitivity.run", "vary"),
    "observe": ("jaxcost.observation.observe", "observe"),
    "audit": ("jaxcost.audits.audit", "audit"),
    "reconcile": ("jaxcost.reconciliation.report", "reconcile"),
    "Architecture": ("jaxcost.contracts.architecture", "Architecture"),
    "Case": ("jaxcost.contracts.case", "Case"),
    "JaxcostError": ("jaxcost.contracts.errors", "JaxcostError"),
    "RejectedError": ("jaxcost.contracts.errors", "RejectedError"),
    "UnavailableError": ("jaxcost.contracts.errors", "UnavailableError"),
}
__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from jaxcost.audits.audit import audit as audit
    from jaxcost.catalog import from_huggingface as from_huggingface
    from jaxcost.catalog import load_architecture
    from jaxcost.contracts.architecture import Architecture as Architecture
    from jaxcost.contracts.case import Case as Case
    from jaxcost.contracts.case import decode as decode
    from jaxcost.contracts.case import prefill as prefill
    from jaxcost.contracts.case import training as training
    from jaxcost.contracts.errors import JaxcostError as JaxcostError
    from jaxcost.contracts.errors import RejectedError as RejectedError
    from jaxcost.contracts.errors import UnavailableError as UnavailableError
    from jaxcost.observation.observe import observe as observe
    from jaxcost.planning.sensitivity.run import vary as vary
    from jaxcost.prediction.ledgers import predict as predict
    from jaxcost.reconciliation.report import reconcile as reconcile

    load = load_architecture


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jaxcost' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
