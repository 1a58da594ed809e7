"""Training steps of models that others wrote and published on PyPI, small enough to compile in seconds.

Each function returns `(step, arguments)`: a jitted step (loss, gradients, an optax update, the state donated) and its
abstract arguments. A package is imported by the function that uses it, so that one missing package costs one program.

    step, arguments = vit()
    step.lower(*arguments).compile()

    jaxcost audit --function tests.zoo.programs:vit
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import optax

Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Entry:
    """One program of the zoo: where its network comes from and how it is written."""

    name: str
    build: Callable[[], Program]
    package: str
    framework: str
    network: str

    @property
    def version(self) -> str:
        """The installed version of the package; PackageNotFoundError where there is none."""
        return metadata.version(self.package)


ZOO: dict[str, Entry] = {}


def _entry(package: str, framework: str, network: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    def register(build: Callable[[], Program]) -> Callable[[], Program]:
        ZOO[build.__name__] = Entry(build.__name__, build, package, framework, network)
        return build

    return register


def floats(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def training_step(
    loss: Callable[..., jax.Array], parameters: Any, batch: tuple[Any, ...], optimizer: Any = None
) -> Program:
    """Return the step of `loss(parameters, *batch)` with `optimizer` (AdamW), parameters and state donated."""
    optimizer = optimizer or optax.adamw(1e-3)

    def step(parameters: Any, state: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1)), (parameters, jax.eval_shape(optimizer.init, parameters), *batch)


# --- Flax Linen ---------------------------------------------------------------------------------------------------


@_entry("flax", "Flax Linen", "two LSTM layers over a sequence, bidirectional below, and a classifier")
def linen_lstm() -> Program:
    import flax.linen as nn

    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = nn.Embed(100, 32)(tokens)
            x = nn.Bidirectional(nn.RNN(nn.LSTMCell(48)), nn.RNN(nn.LSTMCell(48)))(x)
            x = nn.RNN(nn.OptimizedLSTMCell(64))(x)
            return nn.Dense(20)(x)

    model, tokens = Tagger(), integers(4, 24)
    parameters = jax.eval_shape(model.init, _key(), tokens)

    def loss(parameters: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        return _cross_entropy(model.apply(parameters, tokens), labels)

    return training_step(loss, parameters, (tokens, integers(4, 24)))


@_entry("flax", "Flax Linen", "encoder: three attention layers under one rematerialised scan (nn.remat, nn.scan)")
def linen_encoder() -> Program:
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            y = nn.gelu(nn.Dense(256)(nn.LayerNorm()(x)))
            return x + nn.Dense(64)(y), None

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = nn.Embed(128, 64)(tokens)
            layers = nn.scan(
                nn.remat(Block, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x, _ = layers()(x, None)
            return nn.Dense(128)(x)

    model, tokens = Encoder(), integers(2, 32)
    parameters = jax.eval_shape(model.init, _key(), tokens)

    def loss(parameters: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        return _cross_entropy(model.apply(parameters, tokens), labels)

    return training_step(loss, parameters, (tokens, integers(2, 32)))


@_entry("nano-moe-jax", "Flax Linen", "mixture of experts: 2 blocks, 4 experts of which each token uses 2")
def mixture_of_experts() -> Program:
    from nano_moe.config import NanoMoEConfig
    from nano_moe.model import NanoMoE

    config = NanoMoEConfig(vocab_size=96, n_layers=2, n_heads=4, d_model=64, d_ff=256, block_size=32)
    model, tokens = NanoMoE(config), integers(2, 32)
    parameters = jax.eval_shape(model.init, _key(), tokens)

    def loss(parameters: Any, tokens: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        logits, balance = model.apply(parameters, tokens, deterministic=False, rngs={"dropout": key})
        return _cross_entropy(logits, labels) + config.aux_loss_coeff * balance

    return training_step(loss, parameters, (tokens, integers(2, 32), _key()))


@_entry("diffusers", "Flax Linen", "diffusion: the conditioned U-Net of Stable Diffusion, two levels")
def diffusion_unet() -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import FlaxUNet2DConditionModel
    model = FlaxUNet2DConditionModel(
        sample_size=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), block_out_channels=(32, 64), layers_per_block=1,
        attention_head_dim=4, cross_attention_dim=24,
    )  # fmt: skip
    parameters = jax.eval_shape(model.init_weights, _key())
    batch = (floats(2, 4, 8, 8), integers(2), floats(2, 7, 24), floats(2, 4, 8, 8))

    def loss(parameters: Any, noisy: jax.Array, time: jax.Array, text: jax.Array, noise: jax.Array) -> jax.Array:
        return jnp.square(model.apply({"params": parameters}, noisy, time, text).sample - noise).mean()

    return training_step(loss, parameters, batch)


# --- Flax NNX -----------------------------------------------------------------------------------------------------


def _nnx(make: Callable[[], Any], call: Callable[..., jax.Array], batch: tuple[Any, ...]) -> Program:
    """Return the step of `call(model, *batch)`, the model split into what is trained and the rest."""
    from flax import nnx

    graph, parameters, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)

    def loss(parameters: Any, rest: Any, *batch: Any) -> jax.Array:
        return call(nnx.merge(graph, parameters, rest), *batch)

    return training_step(loss, parameters, (rest, *batch))


@_entry("flax", "Flax NNX", "convolutional classifier: grouped, dilated, strided and transposed, with batch statistics")
def nnx_convolutions() -> Program:
    from flax import nnx

    class Classifier(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Conv(3, 16, kernel_size=(3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.second = nnx.Conv(16, 32, kernel_size=(3, 3), strides=2, rngs=rngs)
            self.grouped = nnx.Conv(32, 32, kernel_size=(3, 3), feature_group_count=4, kernel_dilation=2, rngs=rngs)
            self.up = nnx.ConvTranspose(32, 16, kernel_size=(2, 2), strides=(2, 2), rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.head = nnx.Linear(16 * 8 * 8, 10, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.relu(self.norm(self.first(x)))
            x = nnx.relu(self.grouped(nnx.relu(self.second(x))))
            x = nnx.avg_pool(nnx.relu(self.up(x)), (2, 2), strides=(2, 2))
            return self.head(self.dropout(x.reshape(x.shape[0], -1)))

    def make() -> Any:
        model = Classifier(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    graph, abstract = nnx.split(nnx.eval_shape(make))

    def step(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(lambda model: _cross_entropy(model(images), labels))(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    return jax.jit(step, donate_argnums=0), (abstract, floats(4, 16, 16, 3), integers(4))


@_entry("mamba2-jax", "Flax NNX", "state space: Mamba-2 language model, two layers, chunked scan")
def state_space() -> Program:
    from flax import nnx
    from mamba2_jax import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=128, hidden_size=64, state_size=16, head_dim=16, chunk_size=16, num_hidden_layers=2
    )

    def call(model: Any, tokens: jax.Array) -> jax.Array:
        return model(tokens, labels=tokens)["loss"]

    return _nnx(lambda: Mamba2ForCausalLM(config, rngs=nnx.Rngs(0)), call, (integers(2, 48),))


@_entry("jraphx", "Flax NNX", "graph attention network (GATv2), three layers of four heads")
def graph_attention() -> Program:
    from flax import nnx
    from jraphx.nn.models import GAT

    def call(model: Any, nodes: jax.Array, edges: jax.Array, labels: jax.Array) -> jax.Array:
        return _cross_entropy(model(nodes, edges), labels)

    return _nnx(
        lambda: GAT(16, 32, num_layers=3, out_features=8, heads=4, v2=True, rngs=nnx.Rngs(0)),
        call, (floats(50, 16), integers(2, 200), integers(50)),
    )  # fmt: skip


# --- Equinox ------------------------------------------------------------------------------------------------------


def _equinox(make: Callable[[], Any], call: Callable[..., jax.Array], batch: tuple[Any, ...]) -> Program:
    """Return the step of `call(model, *batch)`, every floating-point array of the model trained."""
    import equinox as eqx

    parameters, rest = eqx.partition(eqx.filter_eval_shape(make), _is_trained)
    buffers, static = eqx.partition(rest, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct | jax.Array))

    def loss(parameters: Any, buffers: Any, *batch: Any) -> jax.Array:
        return call(eqx.combine(parameters, buffers, static), *batch)

    return training_step(loss, parameters, (buffers, *batch))


def _is_trained(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@_entry("equinox", "Equinox", "attention, MLP and a GRU over the sequence, under `filter_jit` with the whole model")
def equinox_mixed() -> Program:
    import equinox as eqx

    class Model(eqx.Module):
        embedding: eqx.nn.Embedding
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        gru: eqx.nn.GRUCell
        head: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 5)
            self.embedding = eqx.nn.Embedding(80, 32, key=keys[0])
            self.attention = eqx.nn.MultiheadAttention(4, 32, key=keys[1])
            self.mlp = eqx.nn.MLP(32, 32, 96, 2, key=keys[2])
            self.gru = eqx.nn.GRUCell(32, 48, key=keys[3])
            self.head = eqx.nn.Linear(48, 80, key=keys[4])

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = jax.vmap(self.embedding)(tokens)
            x = x + self.attention(x, x, x)
            x = x + jax.vmap(self.mlp)(x)

            def walk(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
                state = self.gru(row, state)
                return state, self.head(state)

            return jax.lax.scan(walk, jnp.zeros(48), x)[1]

    optimizer = optax.sgd(1e-2, momentum=0.9)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Any, model: Any, state: Any) -> Any:
        def loss(model: Any) -> jax.Array:
            return _cross_entropy(jax.vmap(model)(batch), batch)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    # `filter_jit` tells arrays from the rest by type, so its arguments are real.
    model = eqx.filter_jit(Model)(jax.random.key(0))
    return step, (jnp.zeros((3, 20), int), model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))


@_entry("equimo", "Equinox", "ViT-B/16 at 64 pixels, four of its twelve blocks")
def vit() -> Program:
    import equimo.models as models

    def call(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(1), images.shape[0])
        return _cross_entropy(jax.vmap(lambda x, key: model(x, key=key))(images, keys), labels)

    return _equinox(
        lambda: models.vit_base_patch16_224(img_size=64, depths=[4]), call, (floats(2, 3, 64, 64), integers(2))
    )


@_entry(
    "equimo", "Equinox", "ConvNeXt-Tiny at 32 pixels, seven of its eighteen blocks: depthwise convolutions of 7 by 7"
)
def convnext() -> Program:
    import equimo.models as models

    def call(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(1), images.shape[0])
        return _cross_entropy(jax.vmap(lambda x, key: model(x, key=key))(images, keys), labels)

    return _equinox(
        lambda: models.convnext_t(num_classes=10, depths=[2, 1, 3, 1]), call, (floats(2, 3, 32, 32), integers(2))
    )


@_entry("neojax-operators", "Equinox", "neural operator: FNO, spectral convolutions between FFTs")
def neural_operator() -> Program:
    from neojax.models import FNO

    def call(model: Any, fields: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.square(jax.vmap(model)(fields) - targets).mean()

    return _equinox(
        lambda: FNO(jax.random.key(0), 2, 1, 16, 3, (6, 6)), call, (floats(2, 2, 32, 32), floats(2, 1, 32, 32))
    )


# --- Haiku --------------------------------------------------------------------------------------------------------


def _haiku_classifier(make: Callable[[], Any], images: jax.ShapeDtypeStruct) -> Program:
    import haiku as hk

    model = hk.transform_with_state(lambda x: make()(x, is_training=True))
    parameters, state = jax.eval_shape(model.init, _key(), images)
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def loss(parameters: Any, state: Any, images: jax.Array, labels: jax.Array) -> Any:
        logits, state = model.apply(parameters, state, None, images)
        return _cross_entropy(logits, labels), state

    def step(parameters: Any, state: Any, moments: Any, images: jax.Array, labels: jax.Array) -> Any:
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, state, images, labels)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(parameters, updates), state, moments, value

    moments = jax.eval_shape(optimizer.init, parameters)
    return jax.jit(step, donate_argnums=(0, 1, 2)), (parameters, state, moments, images, integers(images.shape[0]))


@_entry("dm-haiku", "Haiku", "ResNet-50 at 64 pixels, batch normalisation over two images")
def resnet() -> Program:
    import haiku as hk

    return _haiku_classifier(lambda: hk.nets.ResNet50(1000), floats(2, 64, 64, 3))


@_entry("dm-haiku", "Haiku", "MobileNet v1 at 64 pixels: depthwise and pointwise convolutions")
def mobilenet() -> Program:
    import haiku as hk

    return _haiku_classifier(lambda: hk.nets.MobileNetV1(num_classes=1000), floats(2, 64, 64, 3))


@_entry("jraph", "plain JAX and Haiku", "graph network with edge, node and global updates, three rounds")
def graph_network() -> Program:
    import haiku as hk
    import jraph

    def forward(graph: Any) -> jax.Array:
        def update(*sizes: int) -> Callable[[jax.Array], jax.Array]:
            return jraph.concatenated_args(lambda x: hk.nets.MLP(sizes)(x))

        for _ in range(3):
            graph = jraph.GraphNetwork(update(32, 24), update(48, 24), update(16, 8))(graph)
        return graph.globals

    model = hk.without_apply_rng(hk.transform(forward))
    graph = jraph.GraphsTuple(
        nodes=floats(30, 10), edges=floats(90, 6), senders=integers(90), receivers=integers(90), globals=floats(3, 4),
        n_node=integers(3), n_edge=integers(3),
    )  # fmt: skip

    def loss(parameters: Any, graph: Any, targets: jax.Array) -> jax.Array:
        return jnp.square(model.apply(parameters, graph) - targets).mean()

    return training_step(loss, jax.eval_shape(model.init, _key(), graph), (graph, floats(3, 8)))


# --- Penzai and Keras ---------------------------------------------------------------------------------------------


@_entry("penzai", "Penzai", "Llama-like decoder with grouped queries, rotary positions and a stack of two layers")
def decoder() -> Program:
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common as llama

    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=2, query_head_multiplier=2, embedding_dim=64, projection_dim=16, mlp_hidden_dim=96,
        num_decoder_blocks=2, vocab_size=100, mlp_variant="swiglu", tie_embedder_and_logits=False,
        use_layer_stack=True,
    )  # fmt: skip
    skeleton, parameters = jax.eval_shape(
        lambda key: pz.unbind_params(llama.build_llamalike_transformer(config, key), freeze=True), _key()
    )

    def loss(parameters: Any, skeleton: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        model = pz.bind_variables(skeleton, parameters)
        positions = pz.nx.arange("seq", tokens.shape[1])
        logits = model(pz.nx.wrap(tokens).tag("batch", "seq"), token_positions=positions)
        return _cross_entropy(logits.unwrap("batch", "seq", "vocabulary"), labels)

    return training_step(loss, parameters, (skeleton, integers(2, 32), integers(2, 32)))


@_entry("keras", "Keras on JAX", "VGG-16 at 32 pixels, stateless call")
def keras_vgg() -> Program:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    with tempfile.TemporaryDirectory() as folder:  # where its import leaves a file of settings
        os.environ.setdefault("KERAS_HOME", folder)
        import keras

    if keras.backend.backend() != "jax":
        raise RuntimeError("Keras was imported with another backend; set KERAS_BACKEND=jax")
    body = keras.applications.VGG16(include_top=False, input_shape=(32, 32, 3), pooling="avg", weights=None)
    model = keras.Sequential([body, keras.layers.Dense(10, activation="softmax")])

    def shapes(variables: Any) -> list[jax.ShapeDtypeStruct]:
        return [floats(*v.shape, dtype=v.dtype) for v in variables]

    optimizer = optax.adam(1e-3)

    def loss(trained: Any, rest: Any, images: jax.Array, labels: jax.Array) -> Any:
        predicted, rest = model.stateless_call(trained, rest, images, training=True)
        return -jnp.log(jnp.take_along_axis(predicted, labels[:, None], 1) + 1e-7).mean(), rest

    def step(trained: Any, rest: Any, state: Any, images: jax.Array, labels: jax.Array) -> Any:
        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(trained, rest, images, labels)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(trained, updates), rest, state, value

    trained, rest = shapes(model.trainable_variables), shapes(model.non_trainable_variables)
    state = jax.eval_shape(optimizer.init, trained)
    return jax.jit(step, donate_argnums=(0, 1, 2)), (trained, rest, state, floats(2, 32, 32, 3), integers(2))
