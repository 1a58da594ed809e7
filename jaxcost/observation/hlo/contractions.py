"""Every contraction of a compiled module, with its FLOPs, its trips, and where in the program it came from.

A dot costs `2 * prod(result) * prod(contracted)` FLOPs (one FMA = two; a complex one is four real multiplications and
four additions, so eight). The compiler does not keep dots as they were written, so each record also says what was done
to it: several products merged into one (`shares`), K padded or split (`logical_flops`, `split_k`). Products that became
multiply + reduce are listed apart and never added in; library calls whose cost no shape tells are listed as opaque,
never as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from jaxcost.observation.hlo.convolution import (
    ConvolutionCount,
    count_convolution,
    count_unpadded,
    cut_of,
    padding_behind,
)
from jaxcost.observation.hlo.dots import GEMM, Dims, Numbers, dot_dims, numbers_of, numbers_of_gemm
from jaxcost.observation.hlo.kernels import declared_by
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import HARMLESS_TARGETS
from jaxcost.observation.hlo.origins import Places, argument_of, behind, source_of
from jaxcost.observation.hlo.products import (
    Contraction,
    Contractions,
    Opaque,
    Share,
    StrengthReduced,
    placed,
    real_operations,
)
from jaxcost.observation.hlo.scope import BACKWARD, REPLAY, Place, common_scope, primitive_of
from jaxcost.observation.hlo.trips import ZERO, Executions, Total, exact

_CUDNN_CONV = {
    "__cudnn$convForward": "forward", "__cudnn$convForwardGraph": "forward",
    "__cudnn$convBiasActivationForward": "forward", "__cudnn$convBackwardInput": "input",
    "__cudnn$convBackwardFilter": "filter",
}  # fmt: skip
_OPAQUE_OPCODES = frozenset(["ragged-dot", "cholesky", "triangular-solve", "fft"])
_COUNTED = _OPAQUE_OPCODES | {"dot", "scaled-dot", "convolution", "custom-call"}
_LOOK_THROUGH = frozenset("bitcast copy convert reshape transpose".split())
_CONCATENATE = frozenset(["concatenate"])
_SLICE = frozenset(["slice"])
_PRODUCTS = frozenset(["dot_general", "ragged_dot_general", "transpose"])  # a weight gradient's dot ends in /transpose


class _Reader:
    def __init__(self, module: Module, executions: Executions, places: Places, platform: str) -> None:
        self.module, self.places, self.platform = module, places, platform
        self.executions = executions
        self.counts = executions.counts()
        self.notes: list[str] = []

    # One record -----------------------------------------------------------------------------------------------

    def row(
        self,
        at: Instruction,
        flops: int | None,
        sizes: Dims | ConvolutionCount | None,
        numbers: Numbers | None = None,
    ) -> Contraction:
        """The record of `at`; `numbers` when it is a product of two matrices, whose padding can then be found."""
        where, op_name = self.places.named(at)
        if not op_name:
            where = self._by_feeders(at, self._by_weight(at, where))
        real = real_operations(*(operand.shape.dtype for operand in at.operands[:2]))
        flops = None if flops is None else flops * real
        times = self.counts[at.computation.id]
        total = (
            Total(None, None, f"the FLOPs of {at.name} are not known") if flops is None else times.times(exact(flops))
        )
        split, logical = 1, flops
        if self.platform == "cuda" and numbers is not None and isinstance(sizes, Dims):
            split, logical = self._unpadded(at, sizes, numbers)
            logical = None if logical is None else logical * real
        if op_name and primitive_of(op_name) == "ragged_dot_general":
            logical = None  # the groups were multiplied densely, under a mask
        shares, scope, told = self._shares(at, flops, where.scope)
        lhs, rhs = at.operands[0].shape, at.operands[1].shape
        return Contraction(
            id=at.id, name=at.name, computation=at.computation.name, opcode=at.opcode,
            target=at.proto.custom_call_target, op_name=op_name, scope=scope, phase=where.phase,
            scope_exact=where.exact and told,
            batch=sizes.batch if sizes else None, m=sizes.m if sizes else None,
            k=sizes.k if sizes else None, n=sizes.n if sizes else None,
            lhs=str(lhs), rhs=str(rhs), out=str(next(at.shape.leaves(), at.shape)),
            flops=flops, logical_flops=logical, split_k=split, executions=times, total=total, shares=shares,
            remat=".remat" in at.name or self._inside_remat(at), source=self.module.source(at),
            addend=at.operands[2].name if at.opcode == "custom-call" and len(at.operands) > 2 else "",
        )  # fmt: skip

    @staticmethod
    def _inside_remat(at: Instruction) -> bool:
        callers = at.computation.callers
        return len(callers) == 1 and callers[0].opcode == "fusion" and ".remat" in callers[0].name

    def dot(self, at: Instruction) -> Contraction:
        lhs, rhs = at.operands[0].shape, at.operands[1].shape
        if at.proto.sparsity_config.ByteSize():
            self.notes.append(f"{at.name}: a structured-sparse dot is not counted")
            return self.row(at, None, None)
        numbers = numbers_of(at.proto.dot_dimension_numbers)
        dims = dot_dims(lhs.dims, rhs.dims, numbers, at.name, at.shape.size)
        return self.row(at, dims.flops, dims, numbers)

    def convolution(self, at: Instruction) -> Contraction:
        if at.proto.sparsity_config.ByteSize():
            self.notes.append(f"{at.name}: a structured-sparse convolution is not counted")
            return self.row(at, None, None)
        count = count_convolution(at.operands[0].shape.dims, at.operands[1].shape.dims, at.shape.dims, at.proto)
        return self.row(at, count.flops, count)

    def gemm(self, at: Instruction) -> Contraction | None:
        """A cuBLAS call; None when its configuration does not say what it multiplies."""
        numbers, result = numbers_of_gemm(at), next(at.shape.leaves(), None)
        if numbers is None or result is None or len(at.operands) < 2:
            return None
        dims = dot_dims(at.operands[0].shape.dims, at.operands[1].shape.dims, numbers, at.name, result.size)
        return self.row(at, dims.flops, dims, numbers)

    def cudnn(self, at: Instruction) -> Contraction | None:
        """A cuDNN convolution: the fields of the forward convolution, with the roles of the three arrays permuted."""
        made = next(at.shape.leaves(), None)
        if made is None or len(at.operands) < 2:
            return None
        first, second, result = at.operands[0].shape.dims, at.operands[1].shape.dims, made.dims
        lhs, rhs, out = {
            "forward": (first, second, result), "input": (result, second, first), "filter": (first, result, second),
        }[_CUDNN_CONV[at.proto.custom_call_target]]  # fmt: skip
        if len({len(lhs), len(rhs), len(out), len(at.proto.window.dimensions) + 2}) > 1:
            return None  # a layout that cuts features in blocks (NCHW_VECT_C)
        count = count_convolution(lhs, rhs, out, at.proto)
        inputs = padding_behind(at.operands[0]) if lhs is first else None
        kernels = padding_behind(at.operands[1]) if rhs is second else None
        logical = count.flops
        if inputs or kernels:
            (bare, borders), (taps, gaps) = inputs or (lhs, None), kernels or (rhs, None)
            logical = count_unpadded(bare, taps, out, at.proto, borders, gaps) if bare and taps else None
        cut = cut_of(at) if lhs is result else None
        if cut is not None and kernels is None and len(cut[0]) == len(lhs):
            logical = count_unpadded(cut[0], rhs, out, at.proto, cut[1])
        return replace(self.row(at, count.flops, count), logical_flops=logical)

    # What the compiler did to it ----------------------------------------------------------------------------------

    def _pad_of(self, operand: Instruction) -> Instruction | None:
        """The compiler's own pad behind an operand (a program's own ends its name in `/pad`)."""
        at: Instruction | None = operand
        for _ in range(16):
            if at is None or at.opcode == "pad":
                break
            at = behind(at) if at.opcode in _LOOK_THROUGH or at.opcode in ("fusion", "parameter") else None
        if at is None or (at.op_name and primitive_of(at.op_name) == "pad"):
            return None
        return at

    def _unpadded(self, at: Instruction, dims: Dims, numbers: Numbers) -> tuple[int, int | None]:
        """(parts K was cut into, FLOPs without the compiler's padding or None)."""
        split = self._split(at, dims)
        pads = [self._pad_of(o) for o in at.operands[:2]]
        if pads == [None, None]:
            return split, dims.flops
        before = [p.operands[0].shape if p else o.shape for p, o in zip(pads, at.operands, strict=False)]
        after = [p.shape if p else o.shape for p, o in zip(pads, at.operands, strict=False)]
        if split > 1:  # K alone is padded, alike in both operands, before it is cut
            (a, b), (c, d) = ((x.size, y.size) for x, y in zip(before, after, strict=True))
            amount, rest = divmod(dims.flops * a, b) if b else (0, 1)
            return split, amount if a * d == b * c and rest == 0 else None
        lhs, rhs = before[0].dims, before[1].dims
        if [len(lhs), len(rhs)] != [len(o.shape.dims) for o in at.operands[:2]]:
            return split, None
        shared = zip(numbers.lhs_k + numbers.lhs_b, numbers.rhs_k + numbers.rhs_b, strict=True)
        if any(lhs[i] != rhs[j] for i, j in shared):
            return split, None
        return split, dot_dims(lhs, rhs, numbers, at.name, None).flops

    def _split(self, at: Instruction, dims: Dims) -> int:
        """How many parts K was cut into: the leading batch dimension that a reduce of the same name sums away."""
        if at.opcode != "dot" or dims.batch == 1 or not at.op_name:
            return 1
        users = list(at.users)
        if at is at.computation.root:
            users = [u for caller in at.computation.callers for u in caller.users]
        for user in users:
            inner = user.called[0].instructions if user.opcode == "fusion" else [user]
            for other in inner:
                if other.opcode == "reduce" and other.op_name == at.op_name and len(other.called) == 1:
                    ratio, rest = divmod(at.shape.size, max(1, other.shape.size))
                    if rest == 0 and ratio > 1 and dims.batch % ratio == 0:
                        return ratio
        return 1

    def _shares(self, at: Instruction, flops: int | None, scope: str) -> tuple[tuple[Share, ...], str, bool]:
        """The products merged into a dot, the scope that encloses them, and whether all of them are placed."""
        if flops is None:
            return (), scope, True
        for operand in at.operands[:2]:
            joint = source_of(operand, _CONCATENATE)
            if joint.opcode != "concatenate" or joint.shape.size != operand.shape.size or len(joint.operands) < 2:
                continue
            if joint.op_name and primitive_of(joint.op_name) == "concatenate":
                continue  # the program's own (rotary halves, a cache): one product
            pieces = []
            for piece in joint.operands:
                argument = argument_of(self.module, piece)
                path = argument.op_name if argument else ""
                amount, rest = divmod(flops * piece.shape.size, joint.shape.size)
                if rest:
                    return (), scope, False
                own = self._scope_of_piece(piece, self._scope_of_argument(path, scope))
                size = (piece.shape.size, joint.shape.size)
                pieces.append(Share(source_of(piece).op_name, path, own, size, amount))
            if all(p.scope for p in pieces):
                return tuple(pieces), common_scope(p.scope for p in pieces), True
            near = {self.places.of(source_of(p)).scope for p in joint.operands}
            top = scope.split("/")[0]
            shared = common_scope(s for s in (*near, scope) if s.split("/")[0] == top)
            return tuple(pieces), shared.rpartition("/")[0] if shared == scope else shared, False
        for operand in at.operands[:2]:
            above = self._fused(operand, scope)
            if above:
                return (), above, True
        return (), scope, True

    def _scope_of_piece(self, piece: Instruction, above: str) -> str:
        """The scope of a slice of a fused weight: the product that cut it, where that lies in the weight's scope."""
        cut = source_of(piece, _SLICE)
        own = self.places.of(cut).scope if cut.opcode == "slice" and cut.op_name else ""
        return own if above and own.startswith(above + "/") else above

    def _fused(self, operand: Instruction, scope: str) -> str:
        """The scope above several products, where the operand is the whole of a weight named after none of them.

        `attn.qkv.weight` in one piece means that the products of q, k and v became one.
        """
        argument = argument_of(self.module, operand)
        words = _words(argument.op_name) if argument is not None else []
        if len(words) < 2 or not self.places.scopes or not words[-2].isidentifier() or words[-2] in self.places.scopes:
            return ""
        if source_of(operand, _SLICE).opcode == "slice":
            return ""
        above = self._scope_of_argument(" ".join(words), scope)
        return above if scope.startswith(above + "/") else ""

    def _by_weight(self, at: Instruction, where: Place) -> Place:
        """The place of a dot whose name the compiler dropped: the weight it multiplies, if it multiplies one, tells."""
        arguments = [argument_of(self.module, operand) for operand in at.operands[:2]]
        paths = {argument.op_name for argument in arguments if argument is not None}
        if len(paths) != 1:
            return where
        scope = self._scope_of_argument(paths.pop(), where.scope)
        inside = "/" in scope and scope.split("/")[0] == where.scope.split("/")[0]
        alone = not where.scope and scope and "/" not in scope  # a tied table names the lookup, not the product
        return Place(scope, where.phase) if inside or alone else where

    def _by_feeders(self, at: Instruction, where: Place) -> Place:
        """The phase of a product whose name the compiler dropped, in a program without scopes: a gradient feeds it, or
        none does.
        """
        if where.scope:
            return where
        feeding = [source_of(operand) for operand in at.operands[:2]]
        phases = {self.places.of(feeder).phase for feeder in feeding if feeder.op_name and feeder.opcode != "parameter"}
        later = next((phase for phase in (BACKWARD, REPLAY) if phase in phases), where.phase)
        return Place(where.scope, later, exact=where.exact)

    def _scope_of_argument(self, path: str, scope: str) -> str:
        """The scope of a weight by its path, when the path names a known component (`params.attn.q_proj.weight`)."""
        if not path or not self.places.scopes:
            return ""
        words = _words(path)
        named = [w for w in words if w in self.places.scopes]
        if not named:
            return ""
        above = scope.split("/") if scope else []
        if len(named) == 1:
            if named[0] in above:
                return "/".join(above[: above.index(named[0]) + 1])
            if words[-2:-1] != named and len(above) > 1:  # `mlp.gate_up.weight` beside a product of `attn`
                return "/".join([above[0], *named])
            return "/".join([*above[:-1], *named])
        # `groups[0].mlp.up` under the scope `group0/attn/q_proj` of the dot it was merged into is `group0/mlp/up`.
        depth = above.index(named[0]) if named[0] in above else 1
        return "/".join([*above[:depth], *named])

    # The lists ----------------------------------------------------------------------------------------------------

    def running(self) -> Iterator[Instruction]:
        """The instructions that may run."""
        reached = self.executions.reached
        return chain.from_iterable(c.instructions for c in self.module.computations if c.id in reached)

    def strength_reduced(self) -> Iterable[StrengthReduced]:
        """Multiply (+ reduce) that a dot_general became: a reduce over a product costs 2 per input, an outer product 2
        per output. A reduce over the parts of a split dot is no product and is left out.
        """
        consumed: set[int] = set()
        waiting: list[Instruction] = []
        for at in self.running():
            if at.opcode not in ("reduce", "multiply") or not at.op_name:
                continue
            primitive = primitive_of(at.op_name)
            if at.opcode == "multiply" and primitive == "dot_general":
                if at.shape.dtype[0] in "sup":
                    continue  # the index arithmetic of a windowed or sharded product carries its name
                waiting.append(at)
            elif at.opcode == "reduce" and primitive in _PRODUCTS:
                made = self._multiply_behind(at.operands[0])
                if made is not None:
                    consumed.add(made.id)
                    summed = at.operands[0].shape
                    yield self._reduced(at, made, 2 * summed.size * real_operations(summed.dtype, summed.dtype))
        for at in waiting:
            from_dot = any(source_of(o).opcode in ("dot", "convolution", "custom-call") for o in at.operands)
            if at.id not in consumed and not from_dot:
                yield self._reduced(at, at, 2 * at.shape.size * real_operations(at.shape.dtype, at.shape.dtype))

    @staticmethod
    def _multiply_behind(at: Instruction) -> Instruction | None:
        current: Instruction | None = at
        for _ in range(16):
            if current is None or current.opcode == "multiply":
                return current
            frame = current.opcode in _LOOK_THROUGH or current.opcode in ("fusion", "parameter")
            current = behind(current) if frame else None
        return None

    def _reduced(self, at: Instruction, multiply: Instruction, flops: int) -> StrengthReduced:
        where, op_name = self.places.named(at)
        times = self.counts[at.computation.id]
        return StrengthReduced(
            at.id, at.name, at.computation.name, at.opcode, op_name, where.scope, where.phase, flops, times,
            times.times(exact(flops)), multiply.id,
        )  # fmt: skip

    def opaque(self, at: Instruction) -> Opaque:
        where, op_name = self.places.named(at)
        target = at.proto.custom_call_target if at.opcode == "custom-call" else at.opcode
        return Opaque(
            at.id, at.name, at.computation.name, target, op_name, where.scope, where.phase,
            tuple(str(o.shape) for o in at.operands), str(at.shape), self.counts[at.computation.id], declared_by(at),
        )  # fmt: skip


def _words(path: str) -> list[str]:
    """The names in the path of an argument: `parameters.groups[0].attn.qkv.weight` has six."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in path).split()


def read_contractions(
    module: Module, executions: Executions, places: Places, platform: str
) -> tuple[Contractions, list[str]]:
    """All contractions of the module, and notes on what could not be counted."""
    reader = _Reader(module, executions, places, platform)
    rows: list[Contraction] = []
    opaque: list[Opaque] = []
    for at in reader.running():
        if at.opcode not in _COUNTED:
            continue
        row: Contraction | None = None
        if at.opcode in ("dot", "scaled-dot"):
            row = reader.dot(at)
        elif at.opcode == "convolution":
            row = reader.convolution(at)
        elif at.opcode == "custom-call":
            target = at.proto.custom_call_target
            if target.startswith(GEMM):
                row = reader.gemm(at)
            elif target in _CUDNN_CONV:
                row = reader.cudnn(at)
            if row is None and target not in HARMLESS_TARGETS:
                opaque.append(reader.opaque(at))
        else:
            opaque.append(reader.opaque(at))
        if row is not None:
            rows.append(row)
    own: dict[int, dict[tuple[str, str], int]] = {}
    uncounted = [r for r in rows if r.flops is None]
    for r in rows:
        amounts = own.setdefault(r.id, {})
        for scope, flops in placed(r) or [(r.scope, 0)]:
            key = (scope, r.phase)
            amounts[key] = amounts.get(key, 0) + flops
    by_place = executions.totals(own)
    by_phase = executions.totals({i: _by_phase(a) for i, a in own.items()})
    whole = executions.totals({i: {"": sum(a.values())} for i, a in own.items()}).get("", ZERO)
    for r in uncounted:
        by_place[(r.scope, r.phase)] = by_phase[r.phase] = whole = r.total
    reduced = tuple(reader.strength_reduced())
    reduced_total = executions.totals({r.id: {"": r.flops} for r in reduced}).get("", ZERO)
    return Contractions(tuple(rows), reduced, tuple(opaque), by_place, by_phase, whole, reduced_total), reader.notes


def _by_phase(amounts: dict[tuple[str, str], int]) -> dict[str, int]:
    phases: dict[str, int] = {}
    for (_, phase), flops in amounts.items():
        phases[phase] = phases.get(phase, 0) + flops
    return phases
