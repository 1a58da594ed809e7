"""Conventions of linear algebra: the polynomials against counted loops, the calls of each library by their shapes."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.flops import count_flops
from jaxcost.observation.hlo.linalg import LAWN41, ROUTINES, Sizes, count_sizes, fft_flops, routine_of
from jaxcost.observation.hlo.reading import read_graph
from tests.observation.hlo.building import Program
from tests.observation.hlo.counting import CPU, H100, V5E

# The methods, written out: each returns (multiplications with divisions and roots, additions)


def lu(m, n):
    multiplications = additions = 0
    for k in range(min(m, n)):
        multiplications += m - k if m >= n else n - k  # the reciprocal of the pivot, and its column (or row) by it
        multiplications += (m - k - 1) * (n - k - 1)
        additions += (m - k - 1) * (n - k - 1)
    return multiplications, additions


def cholesky(n):
    multiplications = additions = 0
    for j in range(n):
        multiplications += (n - j) * (j + 1)  # an entry: j products, then a root or a division
        additions += (n - j) * j
    return multiplications, additions


def triangular_solve(n, k):
    return k * sum(i + 1 for i in range(n)), k * sum(range(n))


def triangular_inverse(n):
    multiplications = additions = 0
    for j in range(n):
        for i in range(j, n):  # entry (i, j): i - j products with what is above it, one division
            multiplications += i - j + 1
            additions += max(0, i - j - 1)
    return multiplications, additions


def thomas(n, k):
    operations = 0
    for _ in range(n - 1):
        operations += 1 + 2 + 2 * k  # the multiplier; the diagonal; each right-hand side
    return operations + k * (1 + 3 * (n - 1)) if n else 0


def reflector_factor(n):
    multiplications = additions = 0
    for i in range(n):
        multiplications += i * (i + 1) // 2
        additions += i * (i - 1) // 2
    return multiplications, additions


def flops(name, m, n=0, k=0, **more):
    return count_sizes(ROUTINES[name], Sizes(m, n or m, k, more.pop("batch", 1), more.pop("complex", False))).flops


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 33])
def test_the_polynomials_are_the_loops(n):
    assert flops("potrf", n) == sum(cholesky(n))
    assert flops("trsm", n, k=5) == sum(triangular_solve(n, 5)) == 5 * n * n
    assert flops("trtri", n) == sum(triangular_inverse(n))
    assert flops("larft", n) == sum(reflector_factor(n)) == sum(i * i for i in range(n))
    assert flops("gtsv", n, k=2) == thomas(n, 2)
    for other in (1, 2, 5, 16, 40):
        assert flops("getrf", n, other) == sum(lu(n, other))
    assert flops("potrf", n, complex=True) == 6 * cholesky(n)[0] + 2 * cholesky(n)[1]
    assert flops("getrf", n, 4, batch=3, complex=True) == 3 * (6 * lu(n, 4)[0] + 2 * lu(n, 4)[1])


@pytest.mark.parametrize(
    ("name", "leading"),
    [
        ("geqrf", lambda m, n: 2 * m * n**2 - 2 * n**3 / 3), ("gehrd", lambda m, n: 10 * n**3 / 3),
        ("sytrd", lambda m, n: 4 * n**3 / 3), ("gebrd", lambda m, n: 4 * m * n**2 - 4 * n**3 / 3),
        ("getrf", lambda m, n: m * n**2 - n**3 / 3), ("potrf", lambda m, n: n**3 / 3),
    ],
)  # fmt: skip
def test_the_leading_terms_are_the_textbooks(name, leading):
    for n in (1000, 10_000):
        m = 3 * n if name in ("geqrf", "gebrd", "getrf") else n
        assert abs(flops(name, m, n) / leading(m, n) - 1) < 20 / n


def test_q_of_all_reflectors_is_two_thirds_of_four_cubes():
    n = 10_000
    assert abs(flops("orgqr", n, n, n) / (4 * n**3 / 3) - 1) < 20 / n
    assert flops("orgqr", 24, 16, 0) == 0


def test_every_direct_method_gives_whole_numbers_never_below_zero():
    for name, routine in ROUTINES.items():
        for n in range(12):
            for k in (0, 1, 3):
                found = count_sizes(routine, Sizes(n + 2, n, min(k, n), 1, False))
                assert (found.flops is None) == routine.iterative, name
                assert (found.estimate if routine.iterative else found.flops) in (None, 0) or found.flops != 0
                assert (found.flops or 0) >= 0 and (found.estimate or 0) >= 0


def test_a_transform_counts_five_n_log_n():
    assert fft_flops(1) == fft_flops(0) == 0
    assert [fft_flops(2**e) for e in (1, 6, 20)] == [5 * 2**e * e for e in (1, 6, 20)]
    assert fft_flops(64, real=True) == fft_flops(64) // 2
    assert fft_flops(12) == 215  # 5 x 12 x 3.58496
    assert fft_flops(8) < fft_flops(12) < fft_flops(16)


# Compiled ---------------------------------------------------------------------------------------------------------

SOLVE = sum(lu(16, 16)) + 2 * sum(triangular_solve(16, 5))


@pytest.mark.parametrize("target", [CPU, H100])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cholesky", 3 * sum(cholesky(16))), ("cholesky 512", sum(cholesky(512))),
        ("triangular", 3 * sum(triangular_solve(16, 5))), ("triangular right", sum(triangular_solve(16, 5))),
        ("lu", 3 * sum(lu(24, 16))), ("lu wide", sum(lu(16, 24))),
        ("lu complex", 6 * lu(16, 16)[0] + 2 * lu(16, 16)[1]), ("solve", SOLVE), ("tridiagonal solve", thomas(16, 2)),
        ("qr", 3 * (flops("geqrf", 24, 16) + flops("orgqr", 24, 16, 16))), ("hessenberg", flops("gehrd", 16)),
        ("tridiagonal", flops("sytrd", 16)), ("fft", 4 * 5 * 64 * 6), ("fft 12", 215),
        ("rfft2", 4 * 5 * 512 * 9 // 2), ("irfft", 4 * 5 * 64 * 6 // 2),
    ],
)  # fmt: skip
def test_direct_methods_count_by_their_convention(programs, name, expected, target):
    found = programs.flops(name, target)
    assert found.total == found.by_class["linear_algebra"].value == expected
    assert found.unknowns == () and {row.basis for row in found.rows} == {"convention"}
    assert all("(" in row.convention for row in found.rows)


@pytest.mark.tpu
@pytest.mark.parametrize("name", ["cholesky", "cholesky 512", "triangular", "lu", "solve", "qr"])
def test_a_tpu_writes_large_ones_as_products_of_blocks(programs, name):
    found = programs.flops(name, "tpu-v5e:1x1")
    assert found.total == found.by_class["linear_algebra"].value + found.by_class["contraction"].value > 0
    blocks = {row.target for row in found.rows if row.kind == "linear_algebra"}
    assert blocks <= {"Cholesky", "InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular",
                      "LuDecompositionBlock", "QrDecompositionBlock", "CompactWyHelper"}  # fmt: skip
    if name == "cholesky 512":  # four blocks of 128 on the diagonal, three of them inverted
        block = sum(cholesky(128))
        assert found.by_class["linear_algebra"].value == 4 * block + 3 * sum(triangular_inverse(128))


@pytest.mark.parametrize("target", [CPU, H100, V5E])
@pytest.mark.parametrize(
    ("name", "estimate"),
    [
        ("svd", 14 * 24 * 16**2 + 8 * 16**3), ("eigh", 9 * 16**3), ("eigvalsh", 9 * 16**3),
        ("eig", 25 * 16**3), ("schur", 25 * 16**3),
    ],
)  # fmt: skip
def test_what_iterates_is_unknown_and_estimated_apart(programs, name, estimate, target):
    found = programs.flops(name, target)
    assert found.total is None and found.maximum is None
    iterating = [u for u in found.unknowns if u.kind == "linear_algebra"]
    assert iterating and all("iterates" in u.reason and u.voids for u in iterating)
    if target == CPU:
        assert found.minimum == 0 and [u.estimate for u in iterating] == [estimate]


@pytest.mark.parametrize(("mode", "estimate"), [(86, 9 * 16**3), (78, 4 * 16**3 // 3)])
def test_values_without_vectors_are_cheaper(mode, estimate):
    square = ("f32", 16, 16)
    config = f"{{mode = {mode} : ui8, uplo = 76 : ui8}}".encode()
    found = call("lapack_ssyevd_ffi", [square], [square, ("f32", 16), ("s32",)], backend_config=config)
    assert (found.total, [u.estimate for u in found.unknowns]) == (None, [estimate])


def test_the_total_of_an_iteration_would_not_be_its_estimate(programs):
    found = programs.flops("eigh")
    assert found.unknowns[0].estimate not in (found.minimum, found.total)


# Spellings --------------------------------------------------------------------------------------------------------


def call(target, operands, results, **more):
    program = Program()
    program.computation("entry")
    given = [program.add("parameter", shape, parameter_number=i) for i, shape in enumerate(operands)]
    if target in ("cholesky", "triangular-solve", "fft"):
        program.add(target, results[0], given, **more)
    else:
        program.add("custom-call", list(results), given, custom_call_target=target, **more)
    return count_flops(*read_graph(program.bytes(), platform="cuda"))


A, B = ("f32", 3, 16, 16), ("f32", 3, 16, 5)


@pytest.mark.parametrize(
    ("target", "operands", "results", "expected"),
    [
        ("__cusolver$cholesky", [A], [A, ("s8", 64), ("s32", 3)], 3 * sum(cholesky(16))),
        ("cusolver_potrf_ffi", [A], [A, ("s32", 3)], 3 * sum(cholesky(16))),
        ("hipsolver_potrf", [A], [A, ("s32", 3)], 3 * sum(cholesky(16))),
        ("lapack_dpotrf", [("s32",), ("s32",), ("f64", 16, 16)], [("f64", 16, 16), ("s32",)], sum(cholesky(16))),
        ("cublas_getrf_batched", [A], [A, ("s32", 3, 16), ("s32", 3)], 3 * sum(lu(16, 16))),
        ("blas_strsm", [("s32",), ("f32",), ("f32", 16, 16), ("f32", 16, 5)], [("f32", 16, 5)], 5 * 16 * 16),
        ("__cublas$triangularSolve", [A, B], [B, ("s8", 48)], 3 * 5 * 16 * 16),
        ("cholesky", [A], [A], 3 * sum(cholesky(16))), ("triangular-solve", [A, B], [B], 3 * 5 * 16 * 16),
        ("cusolver_syrk_ffi", [("f32", 24, 16), ("f32", 24, 24)], [("f32", 24, 24)], 16 * 24 * 25),
        ("cu_cholesky_update_ffi", [("f32", 16, 16), ("f32", 16)], [("f32", 16, 16), ("f32", 16)], 3 * 16 * 15),
        ("lapack_cungqr_ffi", [("c64", 24, 16), ("c64", 16)], [("c64", 24, 16)], None),
    ],
)  # fmt: skip
def test_one_routine_has_many_names(target, operands, results, expected):
    found = call(target, operands, results)
    if expected is None:
        expected = flops("orgqr", 24, 16, 16, complex=True)
    assert found.total == found.by_class["linear_algebra"].value == expected


@pytest.mark.parametrize(
    ("target", "operands"),
    [
        ("cusolver_potrf_ffi", [("f32", 16, 5)]), ("lapack_spotrf_ffi", [("s32", 16, 16)]),
        ("lapack_strsm_ffi", [("f32", 16, 16), ("f32", 16, 16)]), ("lapack_sorgqr_ffi", [("f32", 16, 5)]),
        ("lapack_sgtsv_ffi", [("f32",)]), ("CompactWyHelper", []),
    ],
)  # fmt: skip
def test_shapes_that_are_not_the_routines_are_unknown(target, operands):
    found = call(target, operands, [("f32", 7)])
    assert found.total is None and [u.target for u in found.unknowns] == [target]


def test_a_transform_whose_lengths_are_not_its_shapes_is_unknown():
    good = call("fft", [("c64", 4, 64)], [("c64", 4, 64)], fft_length=[64])
    assert good.total == 4 * 5 * 64 * 6
    assert call("fft", [("c64", 4, 64)], [("c64", 4, 64)], fft_length=[32]).total is None
    assert call("fft", [("c64", 4, 64)], [("c64", 4, 64)]).total is None


def test_a_name_that_only_looks_like_a_routine_is_none():
    program = Program()
    program.computation("entry")
    for target in ("lapack_sunknown_ffi", "my_cusolver_potrf", "cusolver_potrf_ffi_2", "lapack_xgetrf_ffi", ""):
        program.add("custom-call", ("f32", 2), [], custom_call_target=target)
    graph = read_graph(program.bytes(), platform="cuda")[1]
    assert [routine_of(at) for at in graph.module.entry.instructions] == [None] * 5


def test_every_declaration_names_its_source():
    for name, routine in ROUTINES.items():
        assert routine.name == name and routine.what and routine.formula and routine.source
        assert routine.iterative or routine.operations is not None
    assert sum(routine.source == LAWN41 for routine in ROUTINES.values()) >= 8
