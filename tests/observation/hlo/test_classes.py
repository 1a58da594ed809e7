"""What a buffer is for: hand-checked sums on recorded programs, and the rules one by one on small compiled ones."""

from __future__ import annotations

import lzma

import jax
import jax.numpy as jnp
import pytest

from jaxcost.data import room
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.classes import CLASSES, argument_kind
from jaxcost.observation.sections import COMPONENTS
from jaxcost.prediction.peak import CLASSES as PREDICTED_CLASSES
from tests.observation.hlo.building import array, cuda_devices, dump

SCOPES = frozenset(COMPONENTS) | {"group0"}
# Llama-3.1-8B, scanned, block, materialised, fsdp=8: two sequences of 4096 rows a device.
LAYERS, ROWS, WIDTH, HEADS, KV_HEADS, HEAD, FF, VOCABULARY = 32, 2 * 4096, 4096, 32, 8, 128, 14336, 128256
SHARD = WIDTH // 8
PAIRS = 2 * HEADS * 4096 * 4096


def recorded(name, platform):
    data = lzma.decompress((room("hlo_dumps") / f"{name}.hlo.xz").read_bytes())
    return read_hlo(data, platform=platform, scopes=SCOPES).memory


def seen(memory, name):
    return [b for b in memory.live if b.class_ == name]


def test_both_witnesses_use_the_same_words():
    assert CLASSES == PREDICTED_CLASSES


def test_a_recorded_training_step_on_cuda_class_by_class():
    memory = recorded("llama-3.1-8b_training_h100-8_0c6f51ab", "cuda")
    at_peak = memory.by_class_at_peak
    assert sum(at_peak.values()) == memory.live_peak_bytes == sum(b.bytes for b in memory.live)
    assert memory.unclassified_bytes == 0
    layer = WIDTH * (HEADS + 2 * KV_HEADS) * HEAD + HEADS * HEAD * WIDTH + 3 * WIDTH * FF
    parameters = 4 * ((LAYERS * layer + 2 * VOCABULARY * WIDTH) // 8 + (2 * LAYERS + 1) * WIDTH)
    assert at_peak["parameter"] == parameters
    assert at_peak["optimizer"] == 2 * parameters + 4 + 4  # two moments, a step counter, its bias correction
    assert at_peak["saved"] == LAYERS * ROWS * WIDTH * 2
    statistics = 3 * 2 * HEADS * 4096 * 4
    assert at_peak["attention"] == (4 + 2 + 2 + 2) * PAIRS + statistics
    # The stacks of all layers, the head's whole gradient before it is scattered, and two products of one layer.
    stacks = 4 * (LAYERS * layer // 8 + 2 * LAYERS * WIDTH)
    head, table, products = 4 * VOCABULARY * WIDTH, 4 * VOCABULARY * WIDTH // 8, 2 * WIDTH * FF * 2
    assert at_peak["gradient"] == stacks + head + table + products
    # The hoisted transposes of `down` and `o_proj`, weights gathered for one layer, and one norm's slice.
    hoisted = 4 * LAYERS * (FF * SHARD + HEADS * HEAD * SHARD)
    gathered = 2 * WIDTH * (HEADS + 2 * KV_HEADS) * HEAD
    assert at_peak["gathered_weight"] == hoisted + gathered + 4 * WIDTH
    assert at_peak["logits"] == 0
    between = next(moment for moment in memory.moments if moment.name == "between")
    assert between.by_class["logits"] == 4 * ROWS * VOCABULARY  # their gradient, written over the logits


def test_a_recorded_training_step_on_tpu_shows_its_padding():
    memory = recorded("llama-3.1-8b_training_tpu-v5p-2x2x4_dc36b128", "tpu")
    assert sum(memory.by_class_at_peak.values()) == memory.live_peak_bytes
    assert memory.unclassified_bytes == 0
    (stack,) = (b for b in seen(memory, "saved") if b.bytes > 2**20)
    assert stack.bytes == LAYERS * 4 * 4096 * WIDTH * 2
    norms = [b for b in memory.live if b.shape == "s32[]" and b.kind == "parameter"]
    assert norms and all(b.padding_bytes == b.bytes - 4 for b in norms)


def test_a_recorded_prefill_and_decode_keep_caches_and_logits_apart():
    decode = recorded("toy-untied_decode_h100-1_e776a961", "cuda")
    prefill = recorded("toy-tied_prefill_h100-1_a4d3d5d2", "cuda")
    for memory in (decode, prefill):
        assert {b.class_ for b in memory.live if b.kind == "output"} <= {"logits", "cache", "input_output"}
        assert memory.by_class_at_peak["logits"] == 16 * 4
        assert memory.by_class_at_peak["saved"] == memory.by_class_at_peak["gradient"] == 0
    assert {b.class_ for b in decode.live if b.op_name.startswith("caches")} == {"cache"}


def step(parameters, x):
    def loss(w):
        y = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0]
        return jnp.sum(y * y)

    value, grads = jax.value_and_grad(loss)(parameters["w"])
    return {"w": parameters["w"] - 0.1 * grads}, value


ARGUMENTS = ({"w": array(6, 64, 64)}, array(32, 64))


def check_scan(memory):
    assert sum(memory.by_class_at_peak.values()) == memory.live_peak_bytes
    assert {b.shape for b in seen(memory, "saved")} == {"f32[6,32,64]"}
    assert "f32[6,64,64]" in {b.shape for b in seen(memory, "gradient")}
    assert [b.op_name for b in seen(memory, "parameter")] == ["parameters['w']"]
    forward = next(moment for moment in memory.moments if moment.name == "forward")
    assert forward.by_class["gathered_weight"] == 64 * 64 * 4  # the slice of one layer
    assert [moment.name for moment in memory.moments] == ["before", "forward", "between", "backward"]
    assert all(b.why for b in memory.live)


def test_stacks_of_a_scan_without_any_scope_on_cpu():
    check_scan(read_hlo(dump(jax.jit(step, donate_argnums=0), *ARGUMENTS)[0], platform="cpu").memory)


@pytest.mark.cuda
def test_stacks_of_a_scan_without_any_scope_on_cuda():
    sharding = jax.sharding.SingleDeviceSharding(cuda_devices(1)[0])
    placed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), ARGUMENTS)
    check_scan(read_hlo(dump(jax.jit(step, donate_argnums=0), *placed)[0], platform="cuda").memory)


def test_written_out_layers_save_what_the_backward_pass_reads():
    def unrolled(parameters, x):
        def loss(w):
            with jax.named_scope("group0"):
                y = x
                for i in range(3):
                    y = jnp.tanh(y @ w[i])
            return jnp.sum(y * y)

        return jax.grad(loss)(parameters["w"])

    memory = read_hlo(dump(unrolled, {"w": array(3, 64, 64)}, array(32, 64))[0], platform="cpu", scopes=SCOPES).memory
    assert seen(memory, "saved")
    assert all("read by" in b.why for b in seen(memory, "saved"))


def test_what_nothing_speaks_for_is_counted_not_guessed():
    """Without op names and without a path the module says nothing about a temporary; the bytes are reported."""

    def program(anything):
        return jnp.sort(jnp.cos(anything) @ anything, axis=0)[:3]

    memory = read_hlo(dump(program, array(64, 64))[0], platform="cpu").memory
    (argument,) = (b for b in memory.live if b.kind == "parameter")
    assert (argument.class_, argument.sure) == ("input_output", False)
    assert memory.unclassified_bytes >= argument.bytes
    assert memory.unclassified_bytes == sum(b.bytes for b in memory.live if not b.sure)


@pytest.mark.parametrize(("path", "name"), [
    ("state.parameters.groups[0].mlp.up.weight", "parameter"), ("parameters['w']", "parameter"),
    ("state['params']['w']", "parameter"), ("state.optimizer[0].mu.head.weight", "optimizer"),
    ("state.master.head.weight", "optimizer"), ("caches[0].keys", "cache"), ("tokens", "input_output"),
    ("position", "input_output"),
])  # fmt: skip
def test_arguments_by_their_path(path, name):
    assert (argument_kind(path).name, argument_kind(path).sure) == (name, True)
    assert not argument_kind("x" + path).sure
