"""A real sharded Equinox train state: saved with Orbax, restored, and reconciled with what is on disk."""

import json
import shutil

import chex
import equinox as eqx
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.checkpoint import read_checkpoint
from jaxcost.observation.live_state import OPTAX_FIELDS, live_state, same_arrays
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import program
from jaxcost.reconciliation.checkpoint import reconcile_checkpoint
from jaxcost.reconciliation.checkpoint_names import OPTIMIZER_FIELDS
from jaxcost.reconciliation.layouts import expected_tensors
from jaxcost.reference import init_model, make_mesh, make_step, parameters
from jaxcost.reference.training import abstract_state, random_state

OPTIONS = {"batch": 8, "seq": 4, "mesh": {"fsdp": 4, "tensor": 2}}


def make_case(model="toy-untied", **options):
    return jaxcost.training(jaxcost.load(model), **{**OPTIONS, "precision": "fp32", **options})


def save(tree, folder):
    with ocp.StandardCheckpointer() as saver:
        saver.save(folder, tree)
    return folder


def row_of(found, key):
    row = found.report.row(key)
    assert row is not None, [row.key for row in found.report.rows]
    return row


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The case, its step, a sharded state, and where Orbax saved it."""
    assert len(jax.devices()) == 8
    case = make_case()
    step = make_step(case, make_mesh(case, jax.devices()))
    state = jax.device_put(random_state(case, jax.random.key(0)), step.in_shardings[0])
    return case, step, state, save(state, tmp_path_factory.mktemp("state") / "step_0")


def test_what_is_restored_is_what_was_saved_and_what_is_on_disk_is_what_was_declared(saved):
    case, step, state, folder = saved
    weight = state.parameters.groups[0].mlp.up.weight
    assert len(weight.sharding.device_set) == 8 and weight.addressable_shards[0].data.size * 8 == weight.size
    template = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract_state(case), step.in_shardings[0]
    )
    with ocp.StandardCheckpointer() as saver:
        restored = saver.restore(folder, template)
    chex.assert_trees_all_equal(restored, state)
    chex.assert_trees_all_equal_structs(restored, abstract_state(case))
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, abstract_state(case))
    assert restored.parameters.groups[0].mlp.up.weight.sharding == weight.sharding
    assert same_arrays(abstract_state(case), restored) == ""
    with pytest.raises(AssertionError):  # and it can fail
        chex.assert_trees_all_equal(eqx.tree_at(lambda s: s.parameters.final_norm.scale, restored, np.zeros(8)), state)

    found = reconcile_checkpoint(predict(case), read_checkpoint(folder), typed=True)
    assert (found.status, found.layout.name) == ("exact", "equinox")
    assert {row.status for row in found.report.rows} == {"exact"}
    live = live_state({"parameters": restored.parameters, "optimizer": restored.optimizer})
    assert found.checkpoint.payload_bytes == sum(row.bytes for row in live) == 4 * 3 * 1256 + 4
    answers = found.answers
    assert answers["resident"]["bytes"] == 4 * 1256
    assert answers["optimizer"]["bytes"] == answers["optimizer"]["stored_bytes"] == 8 * 1256 + 4
    assert answers["checkpoint"]["bytes"] == predict(case).value("state.checkpoint_bytes")


def test_headers_agree_with_orbaxs_own_reader(saved):
    *_, folder = saved
    with ocp.StandardCheckpointer() as reader:
        tree = reader.metadata(folder).item_metadata.tree
    theirs = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        theirs[".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)] = (
            tuple(leaf.shape), np.dtype(leaf.dtype).itemsize * int(np.prod(leaf.shape)),
        )  # fmt: skip
    ours = {tensor.name: (tensor.shape, tensor.bytes) for tensor in read_checkpoint(folder).tensors}
    assert ours == theirs and len(ours) == 37


@pytest.mark.parametrize(
    ("model", "options", "key", "said"),
    [
        ("toy-tied", {}, "tensor:head.weight", "no declared parameter"),
        ("toy-untied", {"precision": "bf16"}, "tensor:final_norm.scale", "type fp32, declared bf16"),
        ("toy-untied", {"optimizer": "momentum"}, "state.second_moment:final_norm.scale", "declared by no object"),
        ("toy-untied", {"optimizer": "adafactor"}, "state.second_moment_row:final_norm.scale", "not stored"),
        ("toy-untied", {"frozen": ["head"]}, "tensor:head.weight", "declared frozen"),
        ("toy-untied", {"layers": "unrolled"}, "tensor:groups.0.attn_norm.scale", ""),
    ],
)
def test_another_declaration_leaves_something_open(saved, model, options, key, said):
    found = reconcile_checkpoint(predict(make_case(model, **options)), read_checkpoint(saved[3]), typed=True)
    if "layers" in options:  # the file says by its names how layers are kept; the parameters are the same
        assert row_of(found, key).status == "exact"
        return
    assert found.status == "open"
    assert said in row_of(found, key).reason


def test_a_changed_state_is_seen(saved, tmp_path):
    case, _, state, _ = saved
    scale = state.optimizer[0].mu.final_norm.scale
    fewer = eqx.tree_at(lambda s: s.optimizer[0].mu.final_norm.scale, state, scale[:4])
    found = reconcile_checkpoint(predict(case), read_checkpoint(save(fewer, tmp_path / "a")), typed=True)
    assert "stored as [4], declared [8]" in row_of(found, "state.first_moment:final_norm.scale").reason
    assert row_of(found, "checkpoint.state_bytes").residual == -16
    turned = eqx.tree_at(lambda s: s.parameters.head.weight, state, state.parameters.head.weight.T)
    found = reconcile_checkpoint(predict(case), read_checkpoint(save(turned, tmp_path / "b")), typed=True)
    assert "transposed" in row_of(found, "tensor:head.weight").reason


def test_a_damaged_orbax_folder_is_refused(saved, tmp_path):
    def damaged(name, change):
        folder = tmp_path / name
        shutil.copytree(saved[3], folder)
        change(folder)
        with pytest.raises(RejectedError) as caught:
            read_checkpoint(folder)
        return str(caught.value)

    def rename(folder):
        path = folder / "_METADATA"
        path.write_text(path.read_text().replace('"tokens"', '"other"'))

    def cut(folder, pattern):
        for path in folder.glob(pattern):
            path.write_bytes(path.read_bytes()[:50])

    def link(folder):
        (folder / "extra").symlink_to(saved[3] / "_METADATA")

    assert "no array is stored so" in damaged("renamed", rename)
    assert "the store cannot be read" in damaged("manifest", lambda folder: cut(folder, "manifest.ocdbt"))
    assert "the store cannot be read" in damaged("nodes", lambda folder: cut(folder, "d/*"))
    assert "no array is stored so" in damaged("gone", lambda folder: (folder / "manifest.ocdbt").unlink())
    assert "outside the checkpoint" in damaged("link", link)
    assert "not JSON" in damaged("json", lambda folder: (folder / "_METADATA").write_text("{"))
    assert "tree_metadata" in damaged("tree", lambda folder: (folder / "_METADATA").write_text("{}"))
    assert "path and type" in damaged(
        "entry", lambda folder: (folder / "_METADATA").write_text(json.dumps({"tree_metadata": {"a": {}}}))
    )


def test_no_chunk_of_an_array_is_needed(tmp_path):
    """Arrays in folders of their own: with every chunk gone the headers still say all."""
    case = make_case()
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as saver:
        saver.save(tmp_path / "zarr", random_state(case, jax.random.key(1)))
    folder = tmp_path / "zarr"
    chunks = [path for path in folder.glob("*/*") if path.name.replace(".", "").isdigit()]
    assert len(chunks) >= 37
    for path in chunks:
        path.unlink()
    found = reconcile_checkpoint(predict(case), read_checkpoint(folder), typed=True)
    assert found.status == "exact"


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("model", ["toy-tied", "toy-untied", "gpt2", "qwen2.5-0.5b"])
def test_the_tree_layouts_are_the_paths_of_the_network_in_its_order(model, layers):
    case = jaxcost.prefill(jaxcost.load(model), seq=1, layers=layers)
    name = "equinox" if layers == "scan" else "equinox-unrolled"
    declared = [(tensor.name, tensor.shape) for tensor in expected_tensors(program(case), name)]
    network = [
        (path.replace("[", ".").replace("]", "").strip("."), parameter.shape) for path, parameter in parameters(case)
    ]
    assert declared == network


def test_equinox_leaves_are_read_by_position(tmp_path):
    case = make_case("toy-tied", mesh={}, precision="mixed")
    model = init_model(case, jax.random.key(0))
    path = tmp_path / "model.eqx"
    eqx.tree_serialise_leaves(path, model)
    found = reconcile_checkpoint(predict(case), read_checkpoint(path), typed=True)
    assert (found.status, found.layout.name) == ("exact", "equinox")
    assert found.totals["stored_scalars"] == 1128
    eqx.tree_serialise_leaves(path, random_state(case, jax.random.key(0)))
    found = reconcile_checkpoint(predict(case), read_checkpoint(path), typed=True)
    assert found.status == "exact" and found.answers["optimizer"]["stored_bytes"] == 8 * 1128 + 4
    eqx.tree_serialise_leaves(path, init_model(make_case("toy-untied", mesh={}), jax.random.key(0)))
    found = reconcile_checkpoint(predict(case), read_checkpoint(path), typed=True)
    assert found.status == "open"
    swapped = eqx.tree_at(lambda m: m.embed.tokens.weight, model, model.embed.tokens.weight.T)
    eqx.tree_serialise_leaves(path, swapped)
    found = reconcile_checkpoint(predict(case), read_checkpoint(path), typed=True)
    assert "transposed" in row_of(found, "tensor:embed.tokens.weight").reason


def test_the_fields_of_optax_are_the_same_in_both_tables():
    assert dict(OPTAX_FIELDS) == dict(OPTIMIZER_FIELDS)
