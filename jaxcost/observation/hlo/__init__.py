"""Reading compiled programs: one HLO module in, everything jaxcost observes about it out.

`read_hlo` takes the bytes of an HloProto (a compile-time dump, with its buffer assignment) or of a bare HloModuleProto,
gzipped or not, and gives an `HloReading`: contractions with trips, scopes and phases; memory; traffic; collectives; and
what could not be understood. Protobuf and integers only: nothing here imports jax or runs a compiler.
"""

from __future__ import annotations

from jaxcost.observation.hlo.collectives import Collective, Collectives
from jaxcost.observation.hlo.memory import LiveBuffer, Memory, Moment
from jaxcost.observation.hlo.products import Contraction, Contractions, Opaque, Share, StrengthReduced
from jaxcost.observation.hlo.reading import Argument, Graph, HloReading, read_graph, read_hlo
from jaxcost.observation.hlo.timeline import Timeline
from jaxcost.observation.hlo.traffic import Move, Traffic
from jaxcost.observation.hlo.trips import Loop, Total

__all__ = [
    "Argument", "Collective", "Collectives", "Contraction", "Contractions", "Graph", "HloReading", "LiveBuffer", "Loop",
    "Memory", "Moment", "Move", "Opaque", "Share", "StrengthReduced", "Timeline", "Total", "Traffic",
    "read_graph", "read_hlo",
]  # fmt: skip
