"""Damaged modules: a reading or a refusal with a remedy, never anything else."""

from __future__ import annotations

import gzip
import random

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from tests.observation.hlo.building import array, dump


@pytest.fixture(scope="module")
def real() -> bytes:
    def loss(ws, x):
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    return dump(jax.grad(loss), array(4, 16, 16), array(2, 16))[0]


def outcome(data: bytes) -> str:
    try:
        read_hlo(data, platform="cpu").to_dict()
    except RejectedError as error:
        assert error.problems and all(p.remedy and p.rule and p.path for p in error.problems)
        return "rejected"
    return "read"


def test_every_truncation(real):
    rng = random.Random(0)
    cuts = [0, 1, 2, 3, 10, len(real) - 1, *(rng.randrange(len(real)) for _ in range(200))]
    assert {outcome(real[:cut]) for cut in cuts} == {"rejected"}
    assert outcome(real) == "read"


def test_flipped_bytes(real):
    rng = random.Random(1)
    seen = []
    for _ in range(400):
        data = bytearray(real)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        seen.append(outcome(bytes(data)))
    assert {"read", "rejected"} == set(seen)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"hello world",
        b"\xff" * 100,
        b'{"json": true}',
        b"\x1f\x8b broken gzip",
        bytes(1000),
        b"\x0a\x02\x0a\x00",
    ],
)
def test_foreign_bytes(data):
    assert outcome(data) == "rejected"


def test_gzip(real):
    packed = gzip.compress(real)
    whole = read_hlo(packed, platform="cpu")
    assert whole.flops == read_hlo(real, platform="cpu").flops
    assert whole.digest != read_hlo(real, platform="cpu").digest
    assert outcome(packed[:-9]) == "rejected"


def test_a_wrong_platform_is_refused(real):
    with pytest.raises(RejectedError, match="cpu, cuda, tpu"):
        read_hlo(real, platform="gpu")
