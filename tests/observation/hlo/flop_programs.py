"""Small programs whose FLOPs are counted, and the worker's task that compiles them for a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.observation.worker import task

TASK = f"{__name__}:compile_programs"

# name -> (input, kernel, options of conv_general_dilated over NHWC, HWIO)
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 9, 11, 8), (3, 3, 8, 16), {}),
    "valid": ((2, 9, 11, 8), (3, 3, 8, 16), {"padding": "VALID"}),
    "strided": ((2, 9, 11, 8), (3, 3, 8, 16), {"window_strides": (2, 2)}),
    "dilated": ((2, 9, 11, 8), (3, 3, 8, 16), {"rhs_dilation": (2, 2)}),
    "grouped": ((2, 9, 11, 8), (3, 3, 2, 16), {"feature_group_count": 4}),
    "depthwise": ((2, 9, 11, 8), (3, 3, 1, 8), {"feature_group_count": 8}),
    "multiplied": ((2, 9, 11, 8), (3, 3, 1, 16), {"feature_group_count": 8}),
    "transposed": ((2, 5, 6, 8), (3, 3, 8, 16), {"lhs_dilation": (2, 2), "padding": [(1, 2), (1, 2)]}),
    "one-sided": ((2, 9, 11, 8), (3, 3, 8, 16), {"padding": [(3, 0), (0, 3)]}),
    "cropped": ((2, 9, 11, 8), (3, 3, 8, 16), {"padding": [(-1, 0), (0, -2)]}),
    "patches": ((2, 16, 16, 3), (4, 4, 3, 32), {"window_strides": (4, 4), "padding": "VALID"}),
    "batch groups": ((4, 9, 11, 8), (3, 3, 8, 16), {"batch_group_count": 2}),
}


def convolution(name: str) -> Callable[..., Any]:
    """The convolution of that name, of (input, kernel)."""
    import jax

    given = {"window_strides": (1, 1), "padding": "SAME", **CONVOLUTIONS[name][2]}
    return lambda x, w: jax.lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **given)


def _programs() -> dict[str, tuple[Any, ...]]:
    """name -> (function, *shapes); a shape is ("f32", ...) or of another dtype."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    def square_loss(fn: Callable[..., Any], *which: int) -> Callable[..., Any]:
        return jax.grad(lambda *given: jnp.sum(jnp.square(jnp.abs(fn(*given)))), which)

    def fori(x: Any, w: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda _, a: jnp.tanh(a @ w), x) @ w

    def counted(x: Any, w: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda _, a: a + 1.0, x) @ w

    def host(x: Any, w: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: np.asarray(a), shape, x) @ w

    def svd(a: Any) -> Any:
        return jnp.linalg.svd(a, full_matrices=False)

    def reductions(x: Any) -> Any:
        return x.sum(0), x.max()

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    def scanned(x: Any, ws: Any) -> Any:
        return lax.scan(lambda c, w: (jnp.exp(c * w), None), x, ws)[0]

    def branches(x: Any, w: Any, v: Any, which: Any) -> Any:
        return lax.cond(which, lambda: jnp.exp(x @ w), lambda: jnp.tanh(jnp.tanh((x @ v) @ w)))

    def pallas(cost: bool) -> Callable[..., Any]:
        from jax.experimental import pallas as pl

        def kernel(x: Any, w: Any, o: Any) -> None:
            o[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32)

        estimate = pl.CostEstimate(flops=2 * 512**3, transcendentals=0, bytes_accessed=3 * 4 * 512**2)
        rows, whole = pl.BlockSpec((128, 512), lambda i: (i, 0)), pl.BlockSpec((512, 512), lambda i: (0, 0))
        return lambda x, w: pl.pallas_call(
            kernel, grid=(4,), in_specs=[rows, whole], out_specs=rows,
            out_shape=jax.ShapeDtypeStruct((512, 512), jnp.float32), name="tiled",
            **({"cost_estimate": estimate} if cost else {}),
        )(x, w)  # fmt: skip

    def triton(x: Any, w: Any) -> Any:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton as plt

        def kernel(x: Any, w: Any, o: Any) -> None:
            o[...] = plt.dot(x[...], w[...])

        rows, whole = pl.BlockSpec((16, 64), lambda i: (i, 0)), pl.BlockSpec((64, 64), lambda i: (0, 0))
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[rows, whole], out_specs=rows, name="tiled",
            out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32), compiler_params=plt.CompilerParams(),
        )(x, w)  # fmt: skip

    def dense(n: int) -> tuple[Any, ...]:
        return lambda x, k, b: x @ k + b, ("f32", n, 73), ("f32", 73, 256), ("f32", 256)

    def into(dtype: Any, **more: Any) -> Callable[..., Any]:
        return lambda a, b: lax.dot(a, b, preferred_element_type=dtype, **more)

    ragged = lax.ragged_dot
    experts = (("f32", 64, 128), ("f32", 8, 128, 256), ("s32", 8))
    return {
        "dense 1": dense(1), "dense 2": dense(2), "dense 9": dense(9),
        "small": (jnp.matmul, ("f32", 2, 10), ("f32", 10, 7)),
        "large": (jnp.matmul, ("bf16", 2048, 2048), ("bf16", 2048, 2048)),
        "cube": (jnp.matmul, ("f32", 512, 512), ("f32", 512, 512)),
        "batched": (lambda a, b: jnp.einsum("bik,bkj->bij", a, b), ("f32", 8, 64, 32), ("f32", 8, 32, 48)),
        "empty": (jnp.matmul, ("f32", 32, 0), ("f32", 0, 16)),
        "outer": (lambda a, b: jnp.einsum("i,j->ij", a, b), ("f32", 64), ("f32", 128)),
        "complex": (jnp.matmul, ("c64", 32, 64), ("c64", 64, 48)),
        "complex vector": (lambda a, b: a @ b, ("c64", 64, 48), ("c64", 48)),
        "int8": (into(jnp.int32), ("s8", 32, 64), ("s8", 64, 48)),
        "fp8": (into(jnp.float32), ("f8e4m3fn", 64, 128), ("f8e4m3fn", 128, 64)),
        "int4": (lambda a, b: into(jnp.float32)(a, b.astype(jnp.bfloat16)), ("bf16", 64, 128), ("s4", 128, 64)),
        "fp4": (lambda a, b: into(jnp.float32)(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)),
                ("f4e2m1fn", 64, 128), ("f4e2m1fn", 128, 64)),
        "highest": (into(jnp.float32, precision="highest"), ("f32", 64, 128), ("f32", 128, 64)),
        "x3": (lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32_X3),
               ("f32", 64, 128), ("f32", 128, 64)),
        "scaled": (jax.nn.scaled_matmul, ("f8e4m3fn", 1, 64, 128), ("f8e4m3fn", 1, 64, 128), ("f8e8m0fnu", 1, 64, 4),
                   ("f8e8m0fnu", 1, 64, 4)),
        "ragged": (ragged, *experts),
        "ragged grad": (square_loss(ragged, 0, 1), *experts),
        "banded": (lambda p, v, lo, hi: jnp.where(
            (lo[:, None] <= jnp.arange(64)) & (jnp.arange(64) < hi[:, None]), p, 0.0) @ v,
            ("f32", 64, 64), ("f32", 64, 32), ("s32", 64), ("s32", 64)),
        "fori": (fori, ("f32", 8, 64), ("f32", 64, 64), ("s32",)),
        "counted": (counted, ("f32", 8, 64), ("f32", 64, 64), ("s32",)),
        "branches": (branches, ("f32", 8, 64), ("f32", 64, 64), ("f32", 64, 64), ("pred",)),
        "host": (host, ("f32", 8, 64), ("f32", 64, 64)),
        "pallas": (pallas(True), ("f32", 512, 512), ("f32", 512, 512)),
        "pallas silent": (pallas(False), ("f32", 512, 512), ("f32", 512, 512)),
        "triton": (triton, ("f32", 64, 64), ("f32", 64, 64)),
        "attention": (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True),
                      ("bf16", 2, 256, 4, 64), ("bf16", 2, 256, 2, 64), ("bf16", 2, 256, 2, 64)),
        "cholesky": (lax.linalg.cholesky, ("f32", 3, 16, 16)),
        "cholesky 512": (lax.linalg.cholesky, ("f32", 512, 512)),
        "triangular": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
                       ("f32", 3, 16, 16), ("f32", 3, 16, 5)),
        "triangular right": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, lower=True),
                             ("f32", 16, 16), ("f32", 5, 16)),
        "lu": (lambda a: lax.linalg.lu(a)[0], ("f32", 3, 24, 16)),
        "lu wide": (lambda a: lax.linalg.lu(a)[0], ("f32", 16, 24)),
        "lu complex": (lambda a: lax.linalg.lu(a)[0], ("c64", 16, 16)),
        "solve": (jnp.linalg.solve, ("f32", 16, 16), ("f32", 16, 5)),
        "qr": (lambda a: lax.linalg.qr(a, full_matrices=False), ("f32", 3, 24, 16)),
        "hessenberg": (lax.linalg.hessenberg, ("f32", 16, 16)),
        "tridiagonal": (lambda a: lax.linalg.tridiagonal(a, lower=True), ("f32", 16, 16)),
        "tridiagonal solve": (lax.linalg.tridiagonal_solve, ("f32", 16), ("f32", 16), ("f32", 16), ("f32", 16, 2)),
        "svd": (svd, ("f32", 24, 16)), "eigh": (jnp.linalg.eigh, ("f32", 16, 16)),
        "eigvalsh": (jnp.linalg.eigvalsh, ("f32", 16, 16)),
        "eig": (jnp.linalg.eig, ("f32", 16, 16)), "schur": (lax.linalg.schur, ("f32", 16, 16)),
        "fft": (jnp.fft.fft, ("c64", 4, 64)), "rfft2": (jnp.fft.rfft2, ("f32", 4, 16, 32)),
        "irfft": (lambda x: jnp.fft.irfft(x, 64), ("c64", 4, 33)), "fft 12": (jnp.fft.fft, ("c64", 12)),
        "unary": (lambda x: jnp.tanh(x) + jnp.exp(x) * lax.rsqrt(x), ("f32", 8, 128)),
        "reductions": (reductions, ("f32", 8, 128)), "pooled": (pooled, ("f32", 2, 9, 9, 4)),
        "scatter": (lambda x, i, u: x.at[i].add(u), ("f32", 64, 8), ("s32", 5), ("f32", 5, 8)),
        "gather": (lambda x, i: x[i], ("f32", 64, 8), ("s32", 5)),
        "sort": (jnp.sort, ("f32", 8, 256)), "top": (lambda x: lax.top_k(x, 4), ("f32", 8, 256)),
        "scanned": (scanned, ("f32", 16), ("f32", 6, 16)),
        **{f"conv {name}": (convolution(name), ("f32", *given[0]), ("f32", *given[1]))
           for name, given in CONVOLUTIONS.items()},
        "conv grad": (square_loss(convolution("plain"), 0, 1), ("f32", 2, 9, 11, 8), ("f32", 3, 3, 8, 16)),
        "depthwise grad": (square_loss(convolution("depthwise"), 1), ("f32", 2, 9, 11, 8), ("f32", 3, 3, 1, 8)),
        "multiplied grad": (square_loss(convolution("multiplied"), 1), ("f32", 2, 9, 11, 8), ("f32", 3, 3, 1, 16)),
    }  # fmt: skip


_DTYPES = {
    "f32": "float32", "bf16": "bfloat16", "c64": "complex64", "s8": "int8", "s4": "int4", "s32": "int32",
    "f8e4m3fn": "float8_e4m3fn", "f8e8m0fnu": "float8_e8m0fnu", "f4e2m1fn": "float4_e2m1fn", "pred": "bool",
}  # fmt: skip


@task
def compile_programs(payload: dict[str, Any]) -> dict[str, Any]:
    """Compile the named programs for one device; the module of each, or why there is none."""
    import jax

    from jaxcost.observation.compiling import compile_lowered, devices
    from jaxcost.observation.targets import parse_target

    target = parse_target(payload["target"])
    sharding = jax.sharding.SingleDeviceSharding(devices(target)[0])
    made: dict[str, Any] = {}
    programs = _programs()
    for name in payload["names"]:
        fn, *shapes = programs[name]
        arguments = [jax.ShapeDtypeStruct(dims, _DTYPES[dtype], sharding=sharding) for dtype, *dims in shapes]
        try:
            lowered = jax.jit(fn).lower(*arguments)
        except (NotImplementedError, RuntimeError) as error:
            made[name] = {"hlo": None, "reason": str(error)[:300]}
            continue
        compiled = compile_lowered(lowered, target)
        made[name] = {"hlo": compiled.modules.optimised, "reason": ""}
    return made
