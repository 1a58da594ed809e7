"""The grammar of targets: what it reads, what it refuses, and that it stays free of jax."""

import re
import subprocess
import sys

import pytest

from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation import targets
from jaxcost.observation.targets import Available, Unavailable, availability, chip_names, parse_target, targets_table


@pytest.mark.parametrize(
    ("text", "canonical", "family", "devices", "nodes", "slices"),
    [
        ("cpu", "cpu:1", "cpu", 1, 1, 1),
        ("cpu:8", "cpu:8", "cpu", 8, 1, 1),
        ("h100", "h100:1", "cuda", 1, 1, 1),
        ("h100:8", "h100:8", "cuda", 8, 1, 1),
        ("h100:1x8", "h100:8", "cuda", 8, 1, 1),
        ("h100:4x8", "h100:4x8", "cuda", 32, 4, 1),
        ("a100-40:2", "a100-40:2", "cuda", 2, 1, 1),
        ("tpu-v5e", "tpu-v5e:1x1", "tpu", 1, 1, 1),
        ("tpu-v5e:2x4", "tpu-v5e:2x4", "tpu", 8, 1, 1),
        ("tpu-v5p:2x2x4", "tpu-v5p:2x2x4", "tpu", 16, 1, 1),
        ("tpu-v5e:16x16*2", "tpu-v5e:16x16*2", "tpu", 512, 1, 2),
        ("tpu-v5e:2x4*1", "tpu-v5e:2x4", "tpu", 8, 1, 1),
        ("tpu-v4:2x2x1", "tpu-v4:2x2x1", "tpu", 4, 1, 1),
        ("tpu-7x:2x2x1", "tpu-7x:2x2x1", "tpu", 8, 1, 1),
        ("tpu-v3:2x2", "tpu-v3:2x2", "tpu", 8, 1, 1),
    ],
)
def test_a_text_names_a_target(text, canonical, family, devices, nodes, slices):
    target = parse_target(text)
    assert (target.text, target.family) == (canonical, family)
    assert (target.device_count, target.node_count, target.slice_count) == (devices, nodes, slices)
    assert parse_target(target.text) == target


@pytest.mark.parametrize(
    "text",
    ["", " cpu", "cpu:", "cpu:0", "cpu:-1", "cpu:1.5", "cpu:2x4", "cpu:8*2", "cpu:\u0668", "cpu:9999999", "cpu:2000",
     "H100", "h100:0", "h100:1x2x3", "h100:8*2", "h100:4x0", "h100:100000x8", "h101:8", "mi300x:8", "v100:8", "tpu",
     "tpu-v5e:2", "tpu-v5e:2x2x2", "tpu-v5p:2x2", "tpu-v5e:2x4*0", "tpu-v5e:2x4*", "tpu-v5e:999x999", "tpu-v9:2x2",
     "cpu:8\n", "h100:8 --flag", "x" * 1000, None, 8, True, ["cpu"]],
)  # fmt: skip
def test_anything_else_is_refused_with_a_remedy(text):
    with pytest.raises(RejectedError) as caught:
        parse_target(text)
    (problem,) = caught.value.problems
    assert problem.path == "target" and problem.rule and problem.remedy


def test_a_remedy_that_names_a_target_names_a_good_one():
    with pytest.raises(RejectedError) as caught:
        parse_target("h100:1x2x3")
    assert parse_target(caught.value.problems[0].remedy.removeprefix("write ")).device_count == 6


def test_device_memory_is_exact_bytes_with_a_source():
    assert parse_target("h100").device_memory_bytes == 84_942_979_072
    assert parse_target("tpu-v5e").device_memory_bytes == 15 * 2**30 + 3 * 2**28
    assert parse_target("cpu").device_memory_bytes is None
    assert all(row["device_memory_source"] for row in targets_table())


def test_a_gpu_description_holds_only_the_fields_the_plugin_knows():
    for name in chip_names():
        if parse_target(name).family != "cuda":
            continue
        text = targets.gpu_description(name)
        assert text.count("{") == text.count("}") and 'platform_name: "CUDA"' in text
        values = dict(re.findall(r"^  (\w+): ([0-9.]+)$", text, re.MULTILINE))
        assert len(values) == 17
        assert int(values["device_memory_size"]) == parse_target(name).device_memory_bytes


def test_targets_are_read_without_jax():
    program = (
        "import sys; from jaxcost.observation import targets as t; t.parse_target('tpu-v5e:2x4'); t.targets_table();"
        "{} sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program.format("")], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", program.format("import jax;")], check=False).returncode == 1


def installed(versions):
    return lambda package: versions.get(package)


JAX = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA = {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}
CUDA_LINE = 'pip install "jax-cuda13-plugin==0.10.2" "jax-cuda13-pjrt==0.10.2"'


def test_a_compiler_is_available_when_its_packages_are(monkeypatch):
    monkeypatch.setattr(targets, "_version", installed(JAX | CUDA | {"libtpu": "0.0.42.1"}))
    for name in ("cpu", "h100", "tpu-v5e"):
        assert isinstance(availability(parse_target(name)), Available)


@pytest.mark.parametrize(
    ("family", "versions", "remedy"),
    [
        ("cpu", {}, 'pip install "jax>=0.10.2,<0.12"'),
        ("cpu", JAX | {"jax": "0.12.0"}, 'pip install "jax>=0.10.2,<0.12"'),
        ("cpu", JAX | {"jaxlib": "0.9.1"}, 'pip install "jax>=0.10.2,<0.12"'),
        ("cuda", JAX, CUDA_LINE),
        ("cuda", JAX | CUDA | {"jax-cuda13-pjrt": "0.10.3"}, CUDA_LINE),
        ("tpu", JAX, 'pip install "jax[tpu]==0.10.2"'),
    ],
)
def test_a_missing_or_unfit_compiler_is_unavailable_with_a_pip_line(monkeypatch, family, versions, remedy):
    monkeypatch.setattr(targets, "_version", installed(versions))
    found = availability(family)
    assert isinstance(found, Unavailable) and found.reason
    assert found.remedy == remedy


def test_requiring_a_missing_compiler_raises_the_error_of_exit_code_3(monkeypatch):
    monkeypatch.setattr(targets, "_version", installed(JAX))
    with pytest.raises(UnavailableError) as caught:
        targets.require(parse_target("h100:8"))
    assert caught.value.exit_code == 3 and "pip install" in caught.value.remedy
