"""Positions that are computed: rotary angles (Su et al. 2021, arXiv:2104.09864) and the sinusoidal table.

Rotary: coordinate i of the first half is paired with coordinate i of the second half, as Hugging Face Llama does, or
interleaved, coordinate 2i with 2i + 1, as the paper and GPT-J do; pair i turns by position * theta^(-2i / dimensions).
Llama 3 stretches the slow pairs for longer contexts.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxcost.contracts.architecture import Rotary, RotaryScaling


def frequencies(rotary: Rotary) -> np.ndarray:
    """Return the fp32 angles per position of each pair, `[dimensions / 2]`."""
    exponents = np.arange(0, rotary.dimensions, 2, dtype=np.float32) / np.float32(rotary.dimensions)
    plain: np.ndarray = (1.0 / np.float32(rotary.theta) ** exponents).astype(np.float32)
    return _stretch(plain, rotary.scaling) if rotary.scaling else plain


def _stretch(plain: np.ndarray, scaling: RotaryScaling) -> np.ndarray:
    """Divide slow pairs by `factor`, keep fast ones, and blend between the two wavelengths."""
    wavelength = 2 * math.pi / plain
    turns = scaling.original_positions / wavelength
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    stretched: np.ndarray = (1 - blend) * plain / scaling.factor + blend * plain
    return stretched.astype(np.float32)


def angles(rotary: Rotary | None, positions: jax.Array) -> tuple[jax.Array, jax.Array] | None:
    """Return cosines and sines `[s, dimensions / 2]` in fp32 at integer positions `[s]`."""
    if rotary is None:
        return None
    turned = positions.astype(jnp.float32)[:, None] * frequencies(rotary)[None, :]
    return jnp.cos(turned), jnp.sin(turned)


def rotate(x: jax.Array, cosine_sine: tuple[jax.Array, jax.Array] | None, interleaved: bool = False) -> jax.Array:
    """Turn the leading coordinates of `[b, s, heads, e]`; the others pass."""
    if cosine_sine is None:
        return x
    cosine, sine = (part[None, :, None, :] for part in cosine_sine)
    half = cosine.shape[-1]
    turning, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :half], turning[..., half:]
    pair = [part.astype(x.dtype) for part in (first * cosine - second * sine, second * cosine + first * sine)]
    if interleaved:
        pair = [jnp.stack(pair, axis=-1).reshape(turning.shape)]
    return jnp.concatenate([*pair, rest], axis=-1)


def sinusoid(positions: jax.Array, width: int) -> jax.Array:
    """Return the fp32 table rows `[s, width]` of Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    PE(p, 2i) = sin(p / 10000^(2i / width)) and PE(p, 2i + 1) = cos of the same; an odd width ends in a sine.
    """
    frequency = (10000.0 ** -(np.arange(0, width, 2) / width)).astype(np.float32)
    turned = positions.astype(jnp.float32)[:, None] * frequency[None, :]
    return jnp.stack([jnp.sin(turned), jnp.cos(turned)], axis=-1).reshape(len(positions), -1)[:, :width]
