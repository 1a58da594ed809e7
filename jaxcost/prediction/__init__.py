"""The first witness: arithmetic only. A case becomes a program of tensors and ops with named axes, and every ledger
(parameters, state, FLOPs, primitives, activations, cache, traffic, ownership) is a fold over that program. Nothing here
imports jax or runs the model, and nothing here reads an observation.

Start with `program.py` (the declarations), then any fold.
"""

from __future__ import annotations

from jaxcost.prediction.dead import dead_replay
from jaxcost.prediction.ledgers import FOLDS, Prediction, predict
from jaxcost.prediction.program import Program, program
from jaxcost.prediction.rows import Ledger, Row

__all__ = ["predict", "Prediction", "Ledger", "Row", "program", "Program", "dead_replay", "FOLDS"]
