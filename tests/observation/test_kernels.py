"""A kernel on the wrong family or without its library is refused before anything is compiled."""

from __future__ import annotations

from importlib import metadata

import pytest

from jaxcost.catalog.manifest import load_architecture
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation import kernels
from jaxcost.observation.observe import target_for
from jaxcost.observation.targets import parse_target


def case_of(attention: str):
    return build_case(
        load_architecture("toy-tied"), {"phase": "training", "batch": 2, "seq": 256, "attention": attention}
    )


@pytest.mark.parametrize(("attention", "target"), [("cudnn", "cpu"), ("cudnn", "tpu-v5e"), ("splash", "h100")])
def test_a_kernel_of_another_family_is_rejected(attention, target):
    with pytest.raises(RejectedError) as caught:
        target_for(case_of(attention), target)
    assert caught.value.exit_code == 2
    assert "--attention blockwise" in caught.value.problems[0].remedy


@pytest.mark.parametrize(("attention", "target"), [("cudnn", "h100"), ("splash", "tpu-v5e"), ("blockwise", "cpu")])
def test_a_kernel_of_this_family_is_not(attention, target):
    assert target_for(case_of(attention), target).device_count == 1


def test_cudnn_without_its_wheel_is_unavailable_with_the_line_that_adds_it(monkeypatch):
    def without(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(kernels.metadata, "version", without)
    with pytest.raises(UnavailableError, match="pip install nvidia-cudnn-cu13") as caught:
        kernels.require_kernel(case_of("cudnn"), parse_target("h100"))
    assert caught.value.exit_code == 3
    kernels.require_kernel(case_of("splash"), parse_target("tpu-v5e"))
    monkeypatch.setattr(kernels.metadata, "version", lambda name: "9.10")
    kernels.require_kernel(case_of("cudnn"), parse_target("h100"))
