"""One case through a worker and a compiler: the document that comes back, and what is refused before."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from jaxcost.catalog.manifest import load_architecture
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation import observe as room
from jaxcost.observation.observe import Wish, observe, observe_many, target_for
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import Pool
from jaxcost.observation.sections import known_scopes, short_path

TRAINING = {"phase": "training", "batch": 2, "seq": 8}
PREFILL = {"phase": "prefill", "batch": 2, "seq": 8}
DECODE = {"phase": "decode", "batch": 2, "past": 7}


def case_of(model="toy-tied", **options):
    return build_case(load_architecture(model), options)


@pytest.fixture(scope="module")
def pool():
    with Pool(size=1) as workers:
        yield workers


@pytest.fixture(scope="module")
def training(pool):
    return observe(case_of(**TRAINING), "cpu", pool=pool, optimisation_level=0)


def test_training_on_the_cpu(training):
    assert training.status == "observed", training.reason
    data = training.data
    assert data["evidence_class"] == "compiled"
    assert {"jax", "jaxlib", "equinox", "optax"} <= set(data["environment"]["versions"])
    assert len(data["environment"]["module_digest"]) == 64
    # Exact in every place: both witnesses see the same contractions, and all of them lie in a component.
    assert training.flops == data["jaxpr"]["flops"] == 129_024
    assert training.flops_by(phase="backward") == 2 * training.flops_by(phase="forward")
    assert training.flops_by("group0/attn") == sum(
        row["flops"] for row in data["hlo"]["by_scope_phase"] if row["scope"].startswith("group0/attn/")
    )
    assert training.flops_by("group0/att") == 0
    assert data["hlo"]["unattributed"] == []
    assert data["hlo"]["unknowns"] == []


def test_parameters_and_state_of_a_tied_toy(training):
    parameters = training.parameters
    assert (parameters["unique"], parameters["named"], parameters["trainable"]) == (1_128, 1_256, 1_128)
    head = next(entry for entry in parameters["entries"] if entry["name"] == "head.weight")
    assert (head["alias"], head["scope"]) == ("embed.tokens.weight", "head")
    query = next(entry for entry in parameters["entries"] if entry["scope"] == "group0/attn/q_proj")
    assert [axis for axis, _ in query["axes"]] == ["layer", "d", "h", "e"]
    assert query["repeat"] * query["per_layer"] == query["scalars"]
    state = training.data["state"]
    assert state["initialised_equal"] is True
    assert {role: total["scalars"] for role, total in state["by_role"].items()} == {
        "parameter": 1_128, "first_moment": 1_128, "second_moment": 1_128, "step": 1, "tokens": 16,
    }  # fmt: skip
    # The bytes of the state are the bytes the program takes: nothing else is among its arguments.
    assert state["device_bytes"] == training.memory["argument_bytes"] == 4 * (3 * 1_128 + 1 + 16)


def test_the_compilers_own_numbers_have_a_meaning(training):
    compiler = training.data["compiler"]
    fields = compiler["memory_analysis"]
    exact = ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")
    assert {name: fields[name]["verdict"] for name in exact} == dict.fromkeys(exact, "exact")
    assert fields["peak_memory_in_bytes"]["verdict"] == "misleading"
    assert fields["peak_memory_in_bytes"]["value"] < training.memory["live_peak_bytes"]
    flops = compiler["counters"]["flops"]
    assert flops["contractions_once_flops"] < training.flops
    assert flops["value"] > flops["contractions_once_flops"]


def test_the_document_survives_a_round_trip(training):
    assert Observed.from_dict(training.to_dict()) == training


@pytest.mark.parametrize("lost", ["module_digest", "versions", "flags"])
def test_compiled_evidence_without_its_proof_is_refused(training, lost):
    data = training.to_dict()
    data["environment"][lost] = None
    with pytest.raises(RejectedError, match=lost):
        Observed.from_dict(data)


@pytest.mark.parametrize(
    "change",
    [{"schema": "other"}, {"status": "fine"}, {"hlo": None}, {"memory": []}, {"case": 3}, {"environment": None}],
)
def test_a_misshapen_document_is_refused(training, change):
    with pytest.raises(RejectedError):
        Observed.from_dict({**training.to_dict(), **change})
    data = copy.deepcopy(training.to_dict())
    del data["jaxpr"]
    with pytest.raises(RejectedError, match="jaxpr"):
        Observed.from_dict(data)


@pytest.mark.parametrize("options", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_serving_phases(pool, options):
    seen = observe(case_of(**options), "cpu", pool=pool, optimisation_level=0)
    assert seen.status == "observed", seen.reason
    assert seen.flops == seen.data["jaxpr"]["flops"]
    assert seen.data["parameters"]["trainable"] == 1_128  # nothing freezes it, though no step trains it
    assert seen.data["state"]["initialised_equal"] is True
    assert seen.data["state"]["device_bytes"] == seen.memory["argument_bytes"]


def test_a_mesh_divides_the_work_and_its_collectives_are_named(pool):
    seen = observe(case_of(**TRAINING, mesh={"fsdp": 2}), "cpu", pool=pool, optimisation_level=0)
    assert seen.target == "cpu:2"
    assert 2 * seen.flops == seen.data["jaxpr"]["flops"]
    assert {tuple(row["axes"]) for row in seen.data["collectives"]["by_kind_axes"]} == {("fsdp",)}
    assert seen.data["state"]["device_bytes"] == seen.memory["argument_bytes"]
    assert seen.data["state"]["initialised_equal"] is True


@pytest.mark.cuda
def test_a_gpu_that_is_not_there(pool):
    seen = observe(case_of(**PREFILL), "h100", pool=pool)
    assert seen.status == "observed", seen.reason
    assert seen.data["compiler"]["counters"]["flops"] == {
        **seen.data["compiler"]["counters"]["flops"], "value": None,
        "reason": "the compiler for h100:1 gives no cost analysis ahead of time",
    }  # fmt: skip
    assert seen.data["compiler"]["memory_analysis"]["peak_memory_in_bytes"]["verdict"] == "exact"
    assert seen.data["rematerialisation"]["needed"] is False


@pytest.mark.parametrize("target", ["cpu:4", "h100:8", "tpu-v5e:2x2"])
def test_mesh_and_target_must_agree(target):
    with pytest.raises(RejectedError) as error:
        target_for(case_of(**TRAINING, mesh={"fsdp": 2}), target)
    (problem,) = error.value.problems
    assert "fsdp=2" in problem.rule
    assert target in problem.rule


def test_a_bare_cpu_takes_the_size_of_the_mesh():
    assert target_for(case_of(**TRAINING, mesh={"fsdp": 2}), "cpu").text == "cpu:2"
    assert target_for(case_of(**TRAINING), "cpu").text == "cpu:1"


def test_what_the_network_cannot_express_is_rejected_by_name(pool):
    with pytest.raises(RejectedError, match="splash"):
        observe(case_of(**TRAINING, attention="splash"), "cpu", pool=pool)


def test_a_missing_compiler_is_unavailable_with_the_line_that_adds_it(monkeypatch):
    def missing(target):
        raise UnavailableError(target.text, "libtpu is not installed", 'pip install "jax[tpu]"')

    monkeypatch.setattr(room, "require", missing)
    with pytest.raises(UnavailableError, match="pip install") as error:
        observe(case_of(**TRAINING), "tpu-v5e")
    assert error.value.exit_code == 3
    (seen,) = observe_many([Wish(case_of(**TRAINING), "tpu-v5e")])
    assert (seen.status, seen.data["failure"]["kind"]) == ("failed", "unavailable")
    assert seen.data["evidence_class"] == "unmeasured"


def test_a_worker_that_runs_out_of_time_is_a_failed_observation():
    with Pool(size=1, timeout_seconds=0.01) as hasty:
        seen = observe(case_of(**TRAINING), "cpu", pool=hasty)
    assert (seen.status, seen.data["failure"]["kind"]) == ("failed", "timed_out")
    assert seen.reason
    assert seen.flops is None
    assert seen.flops_by("head") is None


def test_no_jax_is_imported_by_the_parent():
    code = "import sys, jaxcost.observation.observe; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scopes_follow_the_groups_of_the_case():
    assert "group0" in known_scopes(case_of(**TRAINING))
    assert "group1" not in known_scopes(case_of(**TRAINING))


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/a/lib/python3.11/site-packages/optax/_src/transform.py", "optax/_src/transform.py"),
        ("/home/x/checkout/jaxcost/reference/layers.py", "jaxcost/reference/layers.py"),
        ("/home/x/jaxcost/jaxcost/reference/layers.py", "jaxcost/reference/layers.py"),
        ("/home/x/jaxcost/tests/test_step.py", "test_step.py"),
        ("/tmp/script.py", "script.py"),
        ("jaxcost/reference/layers.py:12", "jaxcost/reference/layers.py:12"),
        ("", ""),
    ],
)
def test_sources_lose_the_directories_of_the_machine(path, short):
    assert short_path(path) == short
