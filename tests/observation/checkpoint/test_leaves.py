"""Equinox leaves by their headers: what equinox wrote is read back as shapes and types, and damage is refused."""

import io
import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.checkpoint import read_checkpoint

TREE = {"a": jnp.ones((4, 8), jnp.bfloat16), "b": jnp.ones((3,), jnp.float32), "c": jnp.int32(7), "d": np.ones((2, 0))}


def test_what_equinox_writes_is_read(tmp_path):
    path = tmp_path / "model.eqx"
    eqx.tree_serialise_leaves(path, TREE)
    seen = read_checkpoint(path)
    assert seen.format == "equinox_leaves" and not seen.named
    found = [(tensor.shape, tensor.dtype, tensor.bytes) for tensor in seen.tensors]
    assert found == [((4, 8), "bf16", 64), ((3,), "fp32", 12), ((), "int32", 4), ((2, 0), "fp64", 0)]
    assert any("V2" in note for note in seen.notes)
    assert seen.file_bytes == path.stat().st_size == seen.files[0].header_bytes + 80


def test_a_first_line_of_hyperparameters_is_stepped_over(tmp_path):
    path = tmp_path / "model.eqx"
    with path.open("wb") as file:
        file.write((json.dumps({"width": 4}) + "\n").encode())
        eqx.tree_serialise_leaves(file, TREE)
    assert len(read_checkpoint(path).tensors) == 4


def test_damage_is_refused(tmp_path):
    path = tmp_path / "model.eqx"
    eqx.tree_serialise_leaves(path, TREE)
    whole = path.read_bytes()
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    for content, rule in (
        (whole[:-129], "are left"), (whole + b"x", "ends inside"), (whole[:70], "ends inside"),
        (whole.replace(b"'shape'", b"'shepa'", 1), "must give descr"),
        (whole.replace(b"(4, 8)", b"(4,-8)", 1), "whole numbers"),
        (whole.replace(b"(4, 8)", b"(4, 9)", 1), "must begin here"), (objects.getvalue(), "unpickled"),
        (whole.replace(b"'<V2'", b"'|S9'", 1), "not a plain array type"),
    ):  # fmt: skip
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(RejectedError) as caught:
            read_checkpoint(path)
        assert rule in caught.value.problems[0].rule, (rule, caught.value)
