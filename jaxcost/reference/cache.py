"""The K/V cache: `[layer, b, t, k, e]` for a scanned group, `[b, t, k, e]` for one unrolled layer.

A scanned group carries its whole cache through the loop and writes one row per layer in place; as input and output of
the scan it would be copied.
"""

from __future__ import annotations

import equinox as eqx
import jax


class Cache(eqx.Module):
    """Keys and values of one scanned group or one layer."""

    keys: jax.Array
    values: jax.Array

    def write(self, k: jax.Array, v: jax.Array, row: jax.Array, layer: jax.Array | int) -> Cache:
        """Return the cache with rows k, v `[b, s, k, e]` written from position `row` on, in `layer` of a stack."""
        return Cache(_write(self.keys, k, row, layer), _write(self.values, v, row, layer))

    def read(self, layer: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Return all rows `[b, t, k, e]` of keys and values."""
        return _read(self.keys, layer), _read(self.values, layer)


def _write(store: jax.Array, rows: jax.Array, row: jax.Array, layer: jax.Array | int) -> jax.Array:
    rows = rows.astype(store.dtype)
    if store.ndim == 4:
        return jax.lax.dynamic_update_slice(store, rows, (0, row, 0, 0))
    return jax.lax.dynamic_update_slice(store, rows[None], (layer, 0, row, 0, 0))


def _read(store: jax.Array, layer: jax.Array | int) -> jax.Array:
    return store if store.ndim == 4 else jax.lax.dynamic_index_in_dim(store, layer, keepdims=False)
