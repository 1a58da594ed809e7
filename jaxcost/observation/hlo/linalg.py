"""FLOPs of library linear algebra and Fourier transforms, each by a stated convention.

A factorisation is one instruction: nothing in the module says what it costs, so the count is a convention, named with
its source in every row. The direct methods have exact operation counts as polynomials of the sizes (LAPACK Working Note
41, Blackford and Dongarra, "Installation Guide for LAPACK", appendix C: multiplications and additions of the unblocked
algorithm, a division or square root as a multiplication). Real arithmetic costs one FLOP each; complex arithmetic six
for a multiplication and two for an addition. A Fourier transform of N points counts 5 N log2 N real FLOPs, the
convention of FFTW's benchmarks, half of that between real and complex data.

Eigenvalue and singular value methods iterate until they converge: their cost depends on the data and is unknown. The
estimates of Golub and Van Loan (Matrix Computations, 4th edition) are given beside them and are part of no total.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from math import prod

from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.shapes import Shape

LAWN41 = "LAPACK Working Note 41, appendix C"
GOLUB = "Golub and Van Loan, Matrix Computations, 4th edition"


@dataclass(frozen=True, slots=True)
class Sizes:
    """One matrix is m x n; `k` is the number of reflectors or of right-hand sides; `vectors` whether they are made."""

    m: int
    n: int
    k: int
    batch: int
    is_complex: bool
    vectors: bool = False


Operations = tuple[Fraction, Fraction]  # (multiplications, additions)


@dataclass(frozen=True, slots=True)
class Routine:
    """One declaration: what a routine computes, what it counts, by which source.

    `operations` gives the multiplications and additions of one matrix; `iterative` says that they are an estimate.
    """

    name: str
    what: str
    formula: str
    source: str
    operations: Callable[[Sizes], Operations] | None
    iterative: bool = False

    @property
    def convention(self) -> str:
        """What is counted and who says so, in one line."""
        return f"{self.what}: {self.formula} ({self.source})"


@dataclass(frozen=True, slots=True)
class LibraryCount:
    """FLOPs of one execution of a library routine.

    `flops` is None, with a reason, where the method iterates or the sizes cannot be read; `estimate` is never part of a
    total.
    """

    routine: str
    convention: str
    flops: int | None
    estimate: int | None = None
    reason: str = ""


def _half(value: int) -> Fraction:
    return Fraction(value, 2)


def _getrf(s: Sizes) -> Operations:
    small, large = min(s.m, s.n), max(s.m, s.n)
    third = Fraction(small, 3)
    return (
        _half(small) * (small * (large - third - 1) + large) + 2 * third,
        _half(small) * (small * (large - third) - large) + third / 2,
    )


def _potrf(s: Sizes) -> Operations:
    n = Fraction(s.n)
    return n**3 / 6 + n**2 / 2 + n / 3, n**3 / 6 - n / 6


def _trsm(s: Sizes) -> Operations:
    return _half(s.k * s.n * (s.n + 1)), _half(s.k * s.n * (s.n - 1))


def _trtri(s: Sizes) -> Operations:
    n = Fraction(s.n)
    return n**3 / 6 + n**2 / 2 + n / 3, n**3 / 6 - n**2 / 2 + n / 3


def _geqrf(s: Sizes) -> Operations:
    m, n = Fraction(s.m), Fraction(s.n)
    if m > n:
        return (
            n * (n * (Fraction(1, 2) - n / 3 + m) + m + Fraction(23, 6)),
            n * (n * (Fraction(1, 2) - n / 3 + m) + Fraction(5, 6)),
        )
    return (
        m * (m * (Fraction(-1, 2) - m / 3 + n) + 2 * n + Fraction(23, 6)),
        m * (m * (Fraction(-1, 2) - m / 3 + n) + n + Fraction(5, 6)),
    )


def _orgqr(s: Sizes) -> Operations:
    m, n, k = Fraction(s.m), Fraction(s.n), Fraction(s.k)
    return (
        k * (2 * m * n + 2 * n - Fraction(5, 3) + k * (2 * k / 3 - (m + n) - 1)),
        k * (2 * m * n + n - m + Fraction(1, 3) + k * (2 * k / 3 - (m + n))),
    )


def _larft(s: Sizes) -> Operations:
    # Column i of the factor is a triangular matrix of order i times a vector, for i = 0 ... n - 1.
    n = s.n
    return Fraction((n - 1) * n * (n + 1), 6), Fraction((n - 2) * (n - 1) * n, 6)


def _gehrd(s: Sizes) -> Operations:
    n = Fraction(s.n)
    return (
        n * (n * (5 * n / 3 + Fraction(1, 2)) - Fraction(7, 6)) - 13,
        n * (n * (5 * n / 3 - 1) - Fraction(2, 3)) - 8,
    )


def _sytrd(s: Sizes) -> Operations:
    n = Fraction(s.n)
    return (
        n * (n * (2 * n / 3 + Fraction(5, 2)) - Fraction(1, 6)) - 15,
        n * (n * (2 * n / 3 + 1) - Fraction(8, 3)) - 4,
    )


def _gebrd(s: Sizes) -> Operations:
    m, n = Fraction(max(s.m, s.n)), Fraction(min(s.m, s.n))
    return (
        n * (n * (2 * m - 2 * n / 3 + 2) + Fraction(20, 3)),
        n * (n * (2 * m - 2 * n / 3 + 1) - m + Fraction(5, 3)),
    )


def _gtsv(s: Sizes) -> Operations:
    # Per row after the first: one division for the multiplier, one fused update of the diagonal and of each right-hand
    # side; then one division per row and right-hand side, and one update for each but the last.
    rows = max(s.n - 1, 0)
    return Fraction(2 * rows + s.k * (2 * rows + s.n)), Fraction(rows + 2 * s.k * rows)


def _syrk(s: Sizes) -> Operations:
    # The result is n x n and symmetric: n (n + 1) / 2 entries, each a sum of k products added to what was there.
    return _half(s.k * s.n * (s.n + 1)), _half(s.k * s.n * (s.n + 1))


def _update(s: Sizes) -> Operations:
    # n plane rotations, the i-th applied to n - 1 - i pairs: four multiplications and two additions each.
    pairs = _half(s.n * (s.n - 1))
    return 4 * pairs, 2 * pairs


def _total(flops: int) -> Operations:
    """An estimate that does not tell multiplications from additions: half of each."""
    return _half(flops), _half(flops)


def _gesvd(s: Sizes) -> Operations:
    m, n = max(s.m, s.n), min(s.m, s.n)
    return _total(14 * m * n * n + 8 * n**3) if s.vectors else _total(4 * m * n * n - 4 * n**3 // 3)


def _syevd(s: Sizes) -> Operations:
    return _total(9 * s.n**3 if s.vectors else 4 * s.n**3 // 3)


def _schur(s: Sizes) -> Operations:
    return _total((25 if s.vectors else 10) * s.n**3)


_ITERATES = "it iterates until it converges: the count depends on the data"

ROUTINES: dict[str, Routine] = {
    routine.name: routine
    for routine in (
        Routine("getrf", "LU factorisation with row interchanges", "about m n^2 - n^3/3", LAWN41, _getrf),
        Routine("potrf", "Cholesky factorisation", "n^3/3 + n^2/2 + n/6", LAWN41, _potrf),
        Routine("trsm", "triangular solve", "k n^2 for k right-hand sides", LAWN41, _trsm),
        Routine("trtri", "inverse of a triangular matrix", "n^3/3 + 2n/3", LAWN41, _trtri),
        Routine("geqrf", "QR factorisation by reflectors", "about 2 m n^2 - 2 n^3/3", LAWN41, _geqrf),
        Routine("orgqr", "Q from k reflectors", "about 4 m n k - 2 (m + n) k^2 + 4 k^3/3", LAWN41, _orgqr),
        Routine(
            "larft", "triangular factor of a block of n reflectors", "sum of i^2 for i < n",
            "a triangular matrix-vector product per column, as in LAPACK's xLARFT", _larft,
        ),
        Routine("gehrd", "reduction to Hessenberg form", "about 10 n^3/3", LAWN41, _gehrd),
        Routine("sytrd", "reduction to tridiagonal form", "about 4 n^3/3", LAWN41, _sytrd),
        Routine("gebrd", "reduction to bidiagonal form", "about 4 m n^2 - 4 n^3/3", LAWN41, _gebrd),
        Routine(
            "gtsv", "tridiagonal solve", "3 (n - 1) + k (5 n - 4), no interchanges",
            f"elimination in order; {GOLUB}, section 4.3", _gtsv,
        ),
        Routine("syrk", "symmetric product of rank k", "k n (n + 1)", LAWN41, _syrk),
        Routine(
            "cholesky_update", "update of rank 1 of a Cholesky factor", "3 n (n - 1)",
            f"plane rotations at six FLOPs a pair, their making not counted; {GOLUB}, section 6.5", _update,
        ),
        Routine("gesvd", "singular values", "14 m n^2 + 8 n^3, without vectors 4 m n^2 - 4 n^3/3", GOLUB, _gesvd, True),
        Routine("syevd", "symmetric eigenvalues", "9 n^3, without vectors 4 n^3/3", GOLUB, _syevd, True),
        Routine("geev", "eigenvalues", "25 n^3, without vectors 10 n^3", GOLUB, _schur, True),
        Routine("gees", "Schur form", "25 n^3, without vectors 10 n^3", GOLUB, _schur, True),
        Routine("eigh_jacobi", "symmetric eigenvalues by Jacobi rotations", "no estimate", "none", None, True),
    )
}  # fmt: skip

FFT_CONVENTION = "Fourier transform of N points: 5 N log2 N, real data half of that (FFTW's benchmark convention)"

# Spellings of one routine: real and Hermitian, divide and conquer, Jacobi, batched.
_SAME = {
    "ungqr": "orgqr", "heevd": "syevd", "syevj": "syevd", "heevj": "syevd", "syev": "syevd", "heev": "syevd",
    "hetrd": "sytrd", "gesdd": "gesvd", "gesvdj": "gesvd", "gesvdp": "gesvd", "gtsv2": "gtsv", "herk": "syrk",
}  # fmt: skip
_NAMED = {
    "__cusolver$cholesky": "potrf", "__cublas$triangularSolve": "trsm", "cu_cholesky_update_ffi": "cholesky_update",
    "Cholesky": "potrf", "LuDecompositionBlock": "getrf", "QrDecompositionBlock": "geqrf", "CompactWyHelper": "larft",
    "InvertDiagBlocksLowerTriangular": "trtri", "InvertDiagBlocksUpperTriangular": "trtri", "EighTpu": "eigh_jacobi",
    "Eigh": "eigh_jacobi", "Qr": "geqrf", "LuDecomposition": "getrf",
}  # fmt: skip
_OPCODES = {"cholesky": "potrf", "triangular-solve": "trsm"}
_LIBRARY = re.compile(
    r"(?:(?:lapack|blas)_[sdcz](?P<cpu>[a-z0-9]+?)"
    r"|(?:cusolver|cublas|cusparse|hipsolver|hipblas|hipsparse|rocsolver|rocblas)_(?P<gpu>[a-z0-9]+?)(?:_batched)?)"
    r"(?:_ffi)?\Z"
)


def routine_of(at: Instruction) -> Routine | None:
    """The routine an instruction runs, None when it is none of the table's."""
    if at.opcode != "custom-call":
        return ROUTINES.get(_OPCODES.get(at.opcode, ""))
    target: str = at.proto.custom_call_target
    if target in _NAMED:
        return ROUTINES[_NAMED[target]]
    match = _LIBRARY.match(target)
    if match is None:
        return None
    name = match["cpu"] or match["gpu"]
    return ROUTINES.get(_SAME.get(name, name))


def _floating(shape: Shape) -> bool:
    return shape.dtype[0] in "fbc"  # f32, bf16, c64; never s32, u8, pred


def _sizes(at: Instruction, routine: Routine) -> Sizes | None:
    """The sizes of one matrix; None where the shapes do not look as the routine's do."""
    inputs = [leaf for operand in at.operands for leaf in operand.shape.leaves() if _floating(leaf)]
    made = [leaf for leaf in at.shape.leaves() if _floating(leaf)]
    matrices = [leaf for leaf in inputs if len(leaf.dims) >= 2]
    if routine.name == "gtsv":
        # Three diagonals and the right-hand sides, which may be one vector.
        if not made or not inputs or not inputs[0].dims:
            return None
        n = inputs[0].dims[-1]
        batch = prod(inputs[0].dims[:-1])
        right = next((leaf for leaf in reversed(made) if n and leaf.size % (batch * n) == 0), None) if batch else None
        if right is None:
            return None if n and batch else Sizes(n, n, 0, batch, False)
        return Sizes(n, n, right.size // (batch * n), batch, right.dtype[0] == "c")
    if not matrices or not made:
        return None
    first, result = matrices[0], made[0]
    *outer, m, n = first.dims
    is_complex = first.dtype[0] == "c"
    if routine.name == "trsm":
        # The triangular matrix is square and meets a side of the result; on a square result both sides cost the same.
        if len(result.dims) < 2 or m != n or n not in result.dims[-2:]:
            return None
        rows, columns = result.dims[-2:]
        return Sizes(n, n, columns if rows == n else rows, prod(result.dims[:-2]), is_complex)
    if routine.name == "orgqr":
        scales = [leaf for leaf in inputs if leaf is not first and len(leaf.dims) == len(first.dims) - 1]
        if len(scales) != 1 or len(result.dims) < 2:
            return None
        return Sizes(result.dims[-2], result.dims[-1], scales[0].dims[-1], prod(outer), is_complex)
    if routine.name == "syrk":
        side = result.dims[-1]
        return Sizes(side, side, first.size // (prod(outer) * side) if side else 0, prod(outer), is_complex)
    if routine.name in ("potrf", "trtri", "larft", "gehrd", "sytrd", "syevd", "geev", "gees", "cholesky_update"):
        if m != n:
            return None
        m = n
    vectors = sum(len(leaf.dims) >= 2 for leaf in made) > (0 if routine.name == "geev" else 1)
    if routine.name == "syevd":
        vectors = "mode = 78" not in at.proto.backend_config.decode("ascii", "replace")  # 'N': values alone
    return Sizes(m, n, 0, prod(outer), is_complex, vectors)


def count_routine(at: Instruction) -> LibraryCount | None:
    """FLOPs of one execution of a factorisation, solve, reduction or Fourier transform; None for anything else."""
    if at.opcode == "fft":
        return _fft(at)
    routine = routine_of(at)
    if routine is None:
        return None
    sizes = _sizes(at, routine)
    if sizes is None and not routine.iterative:
        return LibraryCount(routine.name, routine.convention, None, None, "its shapes are not those of the routine")
    if sizes is None:
        return LibraryCount(routine.name, routine.convention, None, None, _ITERATES)
    return count_sizes(routine, sizes)


def count_sizes(routine: Routine, sizes: Sizes) -> LibraryCount:
    """FLOPs of one execution of a routine whose sizes are known."""
    amount = None
    if routine.operations is not None:
        multiplications, additions = (max(part, Fraction(0)) for part in routine.operations(sizes))
        whole = 6 * multiplications + 2 * additions if sizes.is_complex else multiplications + additions
        amount = int(whole) * sizes.batch
    if routine.iterative:
        return LibraryCount(routine.name, routine.convention, None, amount, _ITERATES)
    return LibraryCount(routine.name, routine.convention, amount)


def _fft(at: Instruction) -> LibraryCount:
    lengths = [int(length) for length in at.proto.fft_length]
    points = prod(lengths)
    real = at.proto.fft_type in (2, 3)  # RFFT and IRFFT
    whole = at.operands[0].shape if at.proto.fft_type != 3 and at.operands else at.shape  # the side of `lengths` points
    if not lengths or min(lengths) < 0 or list(whole.dims[len(whole.dims) - len(lengths) :]) != lengths:
        return LibraryCount("fft", FFT_CONVENTION, None, None, "its lengths are not those of its shapes")
    transforms = prod(whole.dims[: len(whole.dims) - len(lengths)])
    return LibraryCount("fft", FFT_CONVENTION, transforms * fft_flops(points, real=real))


def fft_flops(points: int, *, real: bool = False) -> int:
    """5 N log2 N, rounded to a whole number where N is no power of two; half of it for real data."""
    if points < 2:
        return 0
    exponent = points.bit_length() - 1
    if points == 1 << exponent:
        amount = Fraction(5 * points * exponent)
    else:
        with localcontext() as context:
            context.prec = 60
            amount = Fraction(5 * points * (Decimal(points).ln() / Decimal(2).ln()))
    return round(amount / 2 if real else amount)
