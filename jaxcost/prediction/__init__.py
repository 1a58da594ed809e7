"""The first witness: arithmetic only.

A case becomes a program of tensors and ops with named axes, and every ledger (parameters, state, FLOPs, primitives,
activations, cache, traffic) is a fold over that program. Nothing here imports jax or runs the model, and nothing here
reads an observation.
"""
