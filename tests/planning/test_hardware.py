"""Device figures: exact, dense apart from sparse, consistent with the targets, and refused where they do not apply."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.data import room
from jaxcost.observation.targets import parse_target
from jaxcost.planning import hardware
from jaxcost.planning.hardware import Device, device, devices


def refused(problem: str, call: object, *arguments: object, **options: object) -> str:
    assert callable(call)
    with pytest.raises(RejectedError, match=problem) as caught:
        call(*arguments, **options)
    assert all(found.remedy for found in caught.value.problems)
    return str(caught.value)


def test_every_file_loads_and_says_where_it_is_from() -> None:
    assert len(devices()) == 22
    for item in devices():
        assert item.sources
        assert item.peaks
        assert all(peak.dense > 0 for peak in item.peaks)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "nvidia-h100-sxm5-80gb"),
        ("H100:4x8", "nvidia-h100-sxm5-80gb"),
        ("h100_80gb", "nvidia-h100-sxm5-80gb"),
        ("a100", "nvidia-a100-sxm4-80gb"),
        ("a100-40gb", "nvidia-a100-sxm4-40gb"),
        ("a100_40gb", "nvidia-a100-sxm4-40gb"),
        ("tpu-v5p:4x4x4", "google-tpu-v5p"),
        ("v5e", "google-tpu-v5e"),
        ("mi300x", "amd-mi300x"),
    ],
)
def test_a_device_answers_to_its_names(alias: str, name: str) -> None:
    assert device(alias).name == name


@pytest.mark.parametrize("text", ["h1000", "cpu", "", "x" * 100, None, 3, "a\x00b"])
def test_an_unknown_device_is_refused(text: object) -> None:
    refused("figures|name of a device", device, text)


@pytest.mark.parametrize("text", ["h100:", "h100:0", "h100:-1", "h100:8x", "h100:many", "h100:4:8", "tpu-v5e:2x4*0"])
def test_what_follows_the_colon_is_a_shape(text: str) -> None:
    refused("of the form NAME:SHAPE", device, text)
    assert device(text.partition(":")[0] + ":4x8").aliases


def test_peaks_are_exact() -> None:
    h100 = device("h100").peak("bf16")
    assert h100.per_second == 989_400_000_000_000
    assert device("h100").peak("fp8_e4m3").per_second == 1_978_900_000_000_000
    assert "dense bf16" in h100.label
    assert device("h100").peak("fp32", "vector").per_second == 66_900_000_000_000
    assert device("tpu-v5p").peak("int8").unit == "OP/s"
    assert device("a100-40gb").ridge("bf16") == Fraction(312_000, 1_555)


def test_a_sparse_peak_is_refused_for_a_dense_matmul() -> None:
    text = refused("structured sparsity", device("h100").peak, "bf16", density="sparse")
    assert "989.4" in text
    refused("structured sparsity", device("a100-40gb").declared_peak, "bf16", 624)
    refused("structured sparsity", device("h100").declared_peak, "bf16", 1979)


def test_a_peak_of_another_precision_is_refused() -> None:
    refused("operands are bf16", device("h100").peak, "fp8", operands="bf16")
    refused("fp32 peak on the vector path", device("a100").declared_peak, "bf16", 19.5)
    refused("tf32 peak", device("a100").declared_peak, "bf16", 156)
    refused("no fp32 peak on the matrix path", device("h100").peak, "fp32")
    refused("above the dense bf16 peak", device("h100").declared_peak, "bf16", 1200)
    refused("no fp16 peak", device("h200").peak, "fp16")
    refused("element type", device("h100").peak, "float32")
    assert device("h100").peak("bf16", operands="bf16")


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), 0, -1, "989", 1e300, 10**50])
def test_a_declared_peak_is_a_number(value: object) -> None:
    refused("tera_per_s", device("h100").declared_peak, "bf16", value)


def test_published_constants_are_named() -> None:
    assert "LLM-Foundry" in device("h100").declared_peak("bf16", 989.5).label
    assert device("h100").declared_peak("bf16", 989).per_second == 989 * 10**12
    assert "rounded" in device("h200").declared_peak("bf16", 989.4).origin
    assert device("h100").declared_peak("bf16", 800).origin == "declared by the caller"


def test_what_was_not_read_is_unknown() -> None:
    refused("memory is unknown: no capacity", device("v100").bandwidth)
    assert device("v100").link("node") is None
    assert device("mi325x").link("node") is None, "an unverified link is not used"
    assert device("h100-pcie").link("pair") is None


def test_links_keep_direction_and_reach() -> None:
    link = device("h100").link("node")
    assert link is not None
    assert (link.per_direction_gb_per_s, link.bidirectional_gb_per_s) == (450, 900)
    ici = device("tpu-v5p").link("slice")
    assert ici is not None
    assert (ici.topology, ici.dimensions, ici.bidirectional_gb_per_s) == ("torus", 3, 1200)
    dcn = device("tpu-v5p").link("between")
    assert dcn is not None
    assert dcn.unstated_gbit_per_s == 50, "its direction is not stated, so it is in no directed field"


# Where a target's usable bytes stand against the printed capacity, and why; a device not listed fails.
ABOVE_PRINTED = "vendors print GB for a size nearer to that many GiB"
RELATIONS = {
    "nvidia-a100-sxm4-40gb": ABOVE_PRINTED, "nvidia-a100-sxm4-80gb": ABOVE_PRINTED,
    "nvidia-a100-pcie-80gb": "the compiler's description leaves a reserve", "nvidia-h100-sxm5-80gb": ABOVE_PRINTED,
    "nvidia-h100-pcie-80gb": ABOVE_PRINTED, "nvidia-h200-sxm-141gb": ABOVE_PRINTED,
    "nvidia-b200-sxm": ABOVE_PRINTED, "nvidia-gb200-per-gpu": ABOVE_PRINTED,
    "nvidia-b300-sxm": "the compiler's description holds 297 GB where nvidia-smi reports 275,040 MiB (288 GB)",
    "nvidia-gb300-per-gpu": "the compiler's description is a little below nvidia-smi's MiB",
    "google-tpu-v3": ABOVE_PRINTED, "google-tpu-v4": "the compiler keeps a reserve", "google-tpu-v5e": ABOVE_PRINTED,
    "google-tpu-v5p": "95 GB printed is 95 GiB; the compiler prints 95.74 GiB", "google-tpu-v6e": ABOVE_PRINTED,
    "google-tpu-v7x": "the compiler keeps a reserve",
}  # fmt: skip


def test_memory_agrees_with_the_targets() -> None:
    seen = set()
    for item in devices():
        if item.target is None:
            continue
        target = parse_target(item.target)
        assert target.device_memory_bytes is not None
        assert item.memory is not None
        usable = target.device_memory_bytes * item.jax_devices_per_chip
        assert target.device_count == item.jax_devices_per_chip, item.name
        printed, seen = item.memory.capacity_bytes, seen | {item.name}
        ratio = Fraction(usable, printed)
        if RELATIONS[item.name] == ABOVE_PRINTED:
            assert item.memory.unit == "GB"
            assert 1 < ratio <= Fraction(2**30, 10**9), item.name
        elif "reserve" in RELATIONS[item.name] or "below" in RELATIONS[item.name]:
            assert Fraction(9, 10) < ratio < 1, item.name
        else:
            assert 1 < ratio < Fraction(11, 10), item.name
    assert seen == set(RELATIONS)


def test_bandwidths_agree_with_what_the_compiler_is_told() -> None:
    from jaxcost.observation.targets import _tables

    chips = _tables()["cuda"]["chips"]
    for item in devices():
        if item.vendor == "NVIDIA" and item.target is not None:
            ratio = Fraction(chips[item.target]["memory_bandwidth"]) / item.bandwidth()
            assert abs(ratio - 1) < Fraction(6, 100), (item.name, float(ratio))


def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    shutil.copytree(room("hardware"), tmp_path / "hardware")
    path = tmp_path / "hardware" / "nvidia-h100-sxm5-80gb.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    monkeypatch.setattr(hardware, "room", lambda name: tmp_path / name)
    hardware.read_device("nvidia-h100-sxm5-80gb")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("tdp_w = 700", "tdp_w = 700\ntpd_w = 3", "Extra inputs|extra"),
        ("tdp_w = 700", "tdp_w = 700\ntdp_w = 700", "not TOML"),
        ("tdp_w = 700", "", "missing.tdp_w"),
        ("dense = 989.4", "dense = true", "dense"),
        ("dense = 989.4", "dense = nan", "dense|JSON"),
        ("dense = 989.4", "dense = -1", "dense"),
        ("sparse = 1978.9", "sparse = 989.4", "not above the dense"),
        ("bidirectional_gb_per_s = 900", "bidirectional_gb_per_s = 450", "not twice"),
        ('unit = "GB"', 'unit = "gigabytes"', "unit"),
        ("sources = [", "sources = []\nold = [", "sources"),
        ('name = "nvidia-h100-sxm5-80gb"', 'name = "h100"', "name of its file"),
        ("per_direction_gb_per_s = 64 ", "unverified = true ", "without a rate"),
    ],
)
def test_a_damaged_file_is_refused(
    before: str, after: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RejectedError, match=problem):
        damaged(tmp_path, monkeypatch, before, after)


def test_an_undamaged_copy_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(tmp_path, monkeypatch, "tdp_w = 700", "tdp_w = 701")


def test_two_devices_cannot_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = hardware.read_device

    def claimed(name: str) -> Device:
        found = original(name)
        return found.replaced(aliases=("h100",)) if name == "nvidia-l4" else found

    monkeypatch.setattr(hardware, "read_device", claimed)
    hardware.devices.cache_clear()
    with pytest.raises(RejectedError, match="also nvidia"):
        hardware.devices()
    hardware.devices.cache_clear()
