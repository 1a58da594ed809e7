"""What an audit can open: a Python function, a jax stage, an HLO module as text or proto, a dump directory.

Each becomes a `Program`: the bytes of one compiled module and everything known about where they came from. Nothing is
read from the module here.
"""

from __future__ import annotations

from jaxcost.observation.sources.program import Argument, Constant, Lowered, Program

__all__ = ["Argument", "Constant", "Lowered", "Program"]
