"""One training step: loss, gradients, update. It takes and returns a `TrainState`, which is donated.

The loss is the mean cross entropy of each row's successor, in fp32 through log-sum-exp. Logits are computed for all
rows; the last has no successor and is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxcost.contracts.case import Case
from jaxcost.reference import optim
from jaxcost.reference.context import next_tokens
from jaxcost.reference.layers import Run
from jaxcost.reference.model import Decoder, abstract_model, build, init_model, parameter_tree
from jaxcost.reference.sharding import Layout
from jaxcost.reference.stack import dropout_acts, hidden, make_run

SINGLE = Layout(None, False)
Found = tuple[jax.Array, Decoder]  # loss and gradients


class TrainState(eqx.Module):
    """Parameters, the master copy of the trained ones (where the policy has it) and the optimizer state of optax."""

    parameters: Decoder
    master: Decoder | None
    optimizer: Any


def trainable(case: Case) -> Decoder:
    """Return the decoder with, for every array, whether it is trained."""
    return build(case, lambda p: not case.is_frozen(p.scope))


def init_state(case: Case, parameters: Decoder) -> TrainState:
    """Return the state before the first step."""
    trained = eqx.filter(parameters, trainable(case))
    basis = optim.cast(trained, optim.update_dtype(case.state))
    master = basis if case.state.object("master") else None
    return TrainState(parameters, master, optim.make_optimizer(case.state).init(basis))


def abstract_state(case: Case) -> TrainState:
    """Return the state as shapes; nothing is allocated."""
    state: TrainState = eqx.filter_eval_shape(lambda model: init_state(case, model), abstract_model(case))
    return state


def random_state(case: Case, key: jax.Array) -> TrainState:
    """Return a state over random weights."""
    return init_state(case, init_model(case, key))


def state_shardings(case: Case, layout: Layout) -> TrainState:
    """Return the sharding of every array of the state."""
    records = parameter_tree(case)
    stored = jax.tree.map(lambda p: layout.parameter(p.axes), records)
    trained = eqx.filter(records, trainable(case))
    abstract = abstract_state(case)
    return TrainState(
        parameters=stored,
        master=None if abstract.master is None else eqx.filter(stored, trainable(case)),
        optimizer=optim.state_shardings(abstract.optimizer, trained, layout),
    )


def make_loss(case: Case, run: Run) -> Callable[[Decoder, jax.Array, jax.Array | None], jax.Array]:
    """Return loss(model, tokens `[b, s]`, key) in fp32."""

    def loss(model: Decoder, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        x, _ = hidden(model, case, run, tokens, jnp.int32(0), key=key)
        logits = model.logits(x, run)
        with jax.named_scope("loss"):
            return cross_entropy(logits, tokens, run.layout)

    # The whole forward pass, head included, is computed again in backward.
    return jax.checkpoint(loss) if case.execution.remat == "everything" else loss


def cross_entropy(logits: jax.Array, tokens: jax.Array, layout: Layout = SINGLE) -> jax.Array:
    """Return the mean over b and the first s - 1 rows of logsumexp(logits) - logits[next token].

    The logit of the label is picked by a masked sum, which stays local where the vocabulary is sharded.
    """
    logits = logits.astype(jnp.float32)
    labels = next_tokens(tokens, layout)
    column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    picked = jnp.sum(jnp.where(column == labels[..., None], logits, 0.0), axis=-1)
    rows = tokens.shape[1]
    supervised = (jnp.arange(rows) < rows - 1).astype(jnp.float32)
    losses = (jax.nn.logsumexp(logits, axis=-1) - picked) * supervised
    return jnp.sum(losses) / (tokens.shape[0] * max(rows - 1, 1))


def make_gradients(case: Case, layout: Layout) -> Callable[..., Found]:
    """Return gradients(parameters, tokens, key) -> (loss, gradients of the trained arrays), accumulated if declared."""
    loss = make_loss(case, make_run(case, layout))
    mask, count = trainable(case), case.workload.accumulate
    dtype = optim.gradient_dtype(case.state)
    shards = eqx.filter(state_shardings(case, layout).parameters, mask) if layout.mesh is not None else None

    def pinned(gradients: Decoder) -> Decoder:
        if shards is None or not layout.explicit:
            return gradients
        held: Decoder = jax.tree.map(jax.lax.with_sharding_constraint, gradients, shards)
        return held

    def once(parameters: Decoder, tokens: jax.Array, key: jax.Array | None) -> Found:
        trained, frozen = eqx.partition(parameters, mask)
        value, gradients = jax.value_and_grad(lambda t: loss(eqx.combine(t, frozen), tokens, key))(trained)
        return value, pinned(optim.cast(gradients, dtype))

    def accumulated(parameters: Decoder, tokens: jax.Array, key: jax.Array | None) -> Found:
        # Every count-th sequence, not runs of them: each device keeps its own sequences.
        micro = jnp.swapaxes(tokens.reshape(-1, count, tokens.shape[1]), 0, 1)

        def body(total: Found, item: tuple[jax.Array, jax.Array]) -> tuple[Found, None]:
            number, part = item
            micro_key = None if key is None else jax.random.fold_in(key, number)
            found = once(parameters, layout.pin(part, "bs"), micro_key)
            with jax.named_scope("optimizer"):
                return jax.tree.map(jnp.add, total, found), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), eqx.filter(parameters, mask))
        (value, gradients), _ = jax.lax.scan(body, (jnp.float32(0), pinned(zeros)), (jnp.arange(count), micro))
        with jax.named_scope("optimizer"):
            return value / count, jax.tree.map(lambda g: (g / count).astype(dtype), gradients)

    # Stages take their microbatches in turn inside of one pass (see `pipeline`).
    return once if count == 1 or case.execution.degree("pipeline") > 1 else accumulated


def make_training_step(case: Case, layout: Layout) -> Callable[..., tuple[TrainState, jax.Array]]:
    """Return training_step(state, tokens int32 `[batch, seq]`[, key uint32 `[2]`]) -> (state, loss)."""
    gradients_of = make_gradients(case, layout)
    optimizer, mask = optim.make_optimizer(case.state), trainable(case)

    def training_step_with_key(
        state: TrainState, tokens: jax.Array, key: jax.Array | None
    ) -> tuple[TrainState, jax.Array]:
        value, gradients = gradients_of(state.parameters, tokens, key)
        with jax.named_scope("optimizer"):
            trained, frozen = eqx.partition(state.parameters, mask)
            kept, master = state.optimizer, state.master
            trained, master, kept = optim.update(optimizer, case.state, gradients, kept, trained, master)
        return TrainState(eqx.combine(trained, frozen), master, kept), value

    def training_step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
        return training_step_with_key(state, tokens, None)

    return training_step_with_key if dropout_acts(case) else training_step
