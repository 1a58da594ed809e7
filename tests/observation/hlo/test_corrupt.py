"""Damaged modules: a reading or a refusal with a remedy, never anything else."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxcost.audits.tasks import audit_program
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.packing import MAX_UNPACKED_BYTES
from jaxcost.observation.hlo.table import MAX_CALL_DEPTH, MAX_DEVICES
from jaxcost.observation.sources import Program as Source
from jaxcost.observation.sources.files import read_program
from tests.observation.hlo.building import Program, array, dump
from tests.observation.hlo.corrupt_worker import SECONDS
from tests.observation.hlo.mutating import nested_calls


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


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> Path:
    """Small programs with loops, a conditional, a convolution and an FFT, as proto and as text."""

    def scanned(ws, x):
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    def mixed(x, kernel):
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME")
        branch = jax.lax.cond(y[0, 0, 0, 0] > 0, lambda v: v.sum(), lambda v: (v * 2).sum(), y)
        return jnp.fft.fft(y).real.sum() + branch

    folder = tmp_path_factory.mktemp("seeds")
    programs = {
        "scanned": (jax.grad(scanned), (array(4, 16, 16), array(2, 16))),
        "mixed": (mixed, (array(1, 3, 8, 8), array(4, 3, 3, 3))),
    }
    for name, (function, arguments) in programs.items():
        data, compiled = dump(function, *arguments)
        (folder / f"{name}.pb").write_bytes(data)
        (folder / f"{name}.txt").write_text(compiled.as_text(), encoding="utf-8")
    return folder


def ends_of(seeds: Path, first: int, count: int) -> dict:
    """What a worker with limits says of `count` damaged inputs."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.observation.hlo.corrupt_worker", str(seeds), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# Beyond the interpreter, jaxlib and the modules: what reading one damaged input may take.
MEMORY_BYTES = 1 << 30


@pytest.mark.parametrize(("first", "count"), [
    pytest.param(0, 200, id="a few"),
    *(pytest.param(1000 * n, 1000, id=f"thousand {n}", marks=pytest.mark.slow) for n in range(10)),
])  # fmt: skip
def test_damage_by_the_thousand(seeds, first, count):
    said = ends_of(seeds, first, count)
    assert said["wrong"] == []
    assert sum(said["ends"].values()) == count
    assert said["longest_seconds"] < SECONDS
    assert said["peak_resident_bytes"] < MEMORY_BYTES
    # Damage that is read must not be all there is, nor damage that is refused.
    assert min(said["ends"]["proto read"], said["ends"]["proto rejected"], said["ends"]["text rejected"]) > count // 100


def test_the_worker_sees_what_it_looks_for(monkeypatch):
    from tests.observation.hlo import corrupt_worker
    from tests.observation.hlo.mutating import Mutant

    def broken(*_, **__):
        raise TypeError("of no kind that is caught")

    monkeypatch.setattr(corrupt_worker, "audit_file", broken)
    assert "TypeError" in corrupt_worker.outcome(Mutant(0, "none", "proto", "cpu", b"\x0a\x00"))


def test_a_bomb_of_zeros_is_no_module():
    assert outcome(gzip.compress(bytes(50_000_000))) == "rejected"


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path):
    packer = zlib.compressobj(1, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range((MAX_UNPACKED_BYTES >> 20) + 1)) + packer.flush()
    rule = f"at most {MAX_UNPACKED_BYTES} bytes"
    with pytest.raises(RejectedError, match=rule):
        read_hlo(bomb, platform="cpu")
    (tmp_path / "bomb.hlo.pb.gz").write_bytes(bomb)
    with pytest.raises(RejectedError, match=rule):
        read_program(tmp_path / "bomb.hlo.pb.gz")


@pytest.mark.parametrize("kind", ["call", "fusion", "while", "conditional"])
def test_computations_that_call_the_next_one_twice_are_audited_in_time(kind):
    """Sixty of them: 2^60 ways to reach the last."""
    started = time.process_time()
    source = Source(origin="proto", name="nested", hlo=nested_calls(kind, 60, 2, fused=59).bytes(), platform="cpu")
    document = audit_program({"program": source.to_data()})["document"]
    assert time.process_time() - started < SECONDS
    if kind == "while":
        assert document["unknowns"]


def test_calls_are_not_deep_without_end():
    program = Program()
    inner = program.computation("leaf")
    program.add("parameter", ("f32",))
    for level in range(MAX_CALL_DEPTH):
        inner, called = program.computation(f"level.{level}"), inner
        program.add("call", ("f32",), [program.add("parameter", ("f32",))], [called])
    with pytest.raises(RejectedError, match=f"at most {MAX_CALL_DEPTH} deep"):
        read_hlo(program.bytes(), platform="cpu")


def test_devices_are_not_without_end(real):
    from jaxcost.observation.hlo.schema import message

    proto = message("HloProto", real)
    proto.hlo_module.device_assignment.replica_count = MAX_DEVICES + 1
    with pytest.raises(RejectedError, match="devices"):
        read_hlo(proto.SerializeToString(), platform="cpu")
