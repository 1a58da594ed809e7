"""Weights on one device of each pipeline rank: the ledger's shards, in the type they are stored in, scales beside them.

Matrices of the layers may be quantised; embedding, head and vectors stay in the compute type. Scales are objects of
their own: one a matrix, one an output channel, or one for each group along the input axis. Zero points are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.planning.serve.inputs import WEIGHT_TYPES, Engine, parse_scales
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program, program
from jaxcost.prediction.sharding import degrees, on_rank
from jaxcost.prediction.stages import Rank, ranks
from jaxcost.prediction.state import population

COMPUTE = "bf16"


@dataclass(frozen=True)
class RankWeights:
    """Bytes of one device of a rank: stored codes, scales, padding of the vocabulary, and the rotary table.

    `streamed` is what one step reads at the least of the layers and the head: the embedding is looked up, not read.
    `layers` are the codes and scales of the layers alone.
    """

    codes: int
    scales: int
    padding: int
    rotary: int
    streamed: int
    layers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.codes + self.scales + self.rotary


def stored_program(architecture: Architecture, engine: Engine) -> Program:
    """Return a program whose parameters lie on the mesh as the engine's do.

    Stages are declared in training alone; where parameters lie does not depend on the phase, so a training step of one
    token stands in for it.

    Raises:
        RejectedError: a degree does not divide what it splits.
    """
    mesh = [{"name": "pipeline", "size": engine.pipeline}] if engine.pipeline > 1 else []
    if engine.tensor > 1:
        mesh.append({"name": "tensor", "size": engine.tensor})
    options = {
        "phase": "training", "seq": 1, "precision": "bf16", "optimizer": "sgd", "mesh": mesh,
        "vocabulary_multiple": engine.vocabulary_multiple,
    }  # fmt: skip
    if engine.pipeline > 1 and engine.pipeline_layers:
        options["pipeline_layers"] = list(engine.pipeline_layers)
    return program(build_case(architecture, options))


def stage_of_layers(stored: Program) -> list[int]:
    """Return the pipeline rank of each layer, in order."""
    found = []
    for rank in ranks(stored):
        held = sum(rank.layers(group) for group in range(len(stored.sizes.repeats)))
        found += [rank.number] * held
    return found


def rank_weights(stored: Program, engine: Engine) -> tuple[RankWeights, ...]:
    """Return the weights of one device of each pipeline rank."""
    return tuple(_rank(stored, engine, rank) for rank in ranks(stored))


def _rank(stored: Program, engine: Engine, rank: Rank) -> RankWeights:
    case = stored.case
    codes = scales = padding = streamed = layers = 0
    for entry in population(stored, "loaded"):
        here = on_rank(stored, entry, rank)
        if here is None:
            continue
        shape = local_shape(here, case)
        scalars = prod(shape) * here.copies
        dtype = WEIGHT_TYPES[engine.weight_dtype] if is_quantised(here) else COMPUTE
        own = payload_bytes(scalars, dtype)
        scale = scale_bytes(here, shape, engine) if is_quantised(here) else 0
        codes, scales = codes + own, scales + scale
        padding += payload_bytes(here.padding, dtype) // engine.tensor
        lookup = here.scope == "embed" or here.scope.startswith("embed/")
        if not lookup or case.architecture.tied:
            streamed += own + scale
        layers += own + scale if here.scope.startswith("group") else 0
    return RankWeights(codes, scales, padding, rotary_bytes(case.architecture, engine), streamed, layers)


def is_quantised(entry: Entry) -> bool:
    """Return whether an array is a matrix inside a layer."""
    return entry.scope.startswith("group") and entry.name.rsplit("/", 1)[1] == "weight" and "norm" not in entry.scope


def local_shape(entry: Entry, case: Case) -> tuple[int, ...]:
    """Return the extents of an array's largest shard."""
    pairs = zip(entry.shape, degrees(entry, case.execution), strict=True)
    return tuple(int(ceil_div(extent, degree)) for extent, degree in pairs)


def scale_bytes(entry: Entry, shape: Sequence[int], engine: Engine) -> int:
    """Return the bytes of the scales beside a quantised matrix's shard; none where weights are not quantised."""
    parsed = parse_scales(engine.weight_scales) if engine.weight_scales else None
    if parsed is None or engine.weight_dtype == "bf16":
        return 0
    length, dtype = parsed
    stacked = entry.axes[0] == "layer"
    matrices = entry.copies * (shape[0] if stacked else 1)
    axes, extents = (entry.axes[1:], shape[1:]) if stacked else (entry.axes, tuple(shape))
    first = axes[0] == "d"  # in to out; else out of heads or of the MLP, back to d
    inner, outer = (extents[0], prod(extents[1:])) if first else (prod(extents[:-1]), extents[-1])
    each = 1 if length is None else outer if length == 0 else outer * -(-inner // length)
    return int(matrices * each * BITS[dtype] // 8)


def rotary_bytes(architecture: Architecture, engine: Engine) -> int:
    """Return the bytes of the table of sines and cosines; 0 where its rows are not given (it is then left out)."""
    if engine.rotary_rows is None:
        return 0
    tables = {group.layer.attention.rotary for group in architecture.groups} - {None}
    return sum(payload_bytes(engine.rotary_rows * table.dimensions, COMPUTE) for table in tables if table is not None)
