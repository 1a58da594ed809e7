"""What a compile leaves behind, on each family of targets, through the pool."""

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation import compiling, private
from jaxcost.observation.pool import Pool, request_for
from jaxcost.observation.targets import Unavailable, availability, parse_target

TASKS = "tests.observation.worker_tasks"


@pytest.fixture(scope="module")
def pool():
    with Pool(allow=(TASKS,), timeout_seconds=300) as made:
        yield made


def compile_toy(pool, target, mesh, **payload):
    parsed = parse_target(target)
    found = availability(parsed)
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.reason}: {found.remedy}")
    return pool.value(request_for(parsed, f"{TASKS}:compile_toy", {"target": target, "mesh": mesh, **payload}))


TARGETS = [
    ("cpu:8", {"fsdp": 8}),
    pytest.param("h100:8", {"fsdp": 4, "tensor": 2}, marks=pytest.mark.cuda),
    pytest.param("h100:2x8", {"fsdp": 16}, marks=pytest.mark.cuda),
    pytest.param("tpu-v5e:2x4", {"fsdp": 8}, marks=pytest.mark.tpu),
    pytest.param("tpu-v5p:2x2x4", {"fsdp": 4, "tensor": 4}, marks=pytest.mark.tpu),
    pytest.param("tpu-v5e:2x2*2", {"data": 2, "fsdp": 4}, marks=pytest.mark.tpu),
]


@pytest.mark.parametrize(("target", "mesh"), TARGETS)
def test_a_compile_gives_the_module_and_the_compilers_own_words(pool, target, mesh):
    result = compile_toy(pool, target, mesh, options={"before": True})
    assert result["outcome"] == "compiled"
    assert result["module_name"] == "jit_loss"
    modules = result["modules"]
    assert b"jit_loss" in modules["optimised"] and modules["has_buffer_assignment"]
    assert b"jit_loss" in modules["before"] and modules["before"] != modules["optimised"]
    assert result["memory_analysis"]["argument_size_in_bytes"] > 0
    assert (result["cost_analysis"] is None) == bool(result["cost_analysis_reason"])
    environment = result["environment"]
    assert environment["target"] == parse_target(target).text
    assert environment["versions"]["jax"] and "xla_dump_to" not in environment["compiler_options"]
    assert [name for name in result["left"] if name.startswith("dump-")] == []


def test_without_a_dump_there_is_no_buffer_assignment(pool):
    dumped = compile_toy(pool, "cpu:8", {"fsdp": 8})
    plain = compile_toy(pool, "cpu:8", {"fsdp": 8}, options={"dump": False})
    assert dumped["modules"]["has_buffer_assignment"] and not plain["modules"]["has_buffer_assignment"]
    assert len(plain["modules"]["optimised"]) < len(dumped["modules"]["optimised"])


def test_little_effort_keeps_the_contractions(pool):
    usual = compile_toy(pool, "cpu:1", {"data": 1})
    quick = compile_toy(pool, "cpu:1", {"data": 1}, options={"optimisation_level": 0})
    other = compile_toy(pool, "cpu:1", {"data": 1}, layers=4)
    count = [result["modules"]["optimised"].count(b"dot_general") for result in (usual, quick, other)]
    assert quick["environment"]["compiler_options"]["xla_backend_optimization_level"] == 0
    assert dots(usual) == dots(quick) == 3 * 2 + 2
    assert dots(other) == dots(usual) + 3, f"the count can change {count}"


def dots(result):
    """Count the dot instructions of a module: field 2 (opcode) of an instruction, three letters."""
    return result["modules"]["optimised"].count(b"\x12\x03dot")


@pytest.mark.cuda
def test_xla_rematerialises_only_where_it_is_asked_to(pool):
    names = [
        compile_toy(pool, "a6000", {"data": 1}, width=1024, rows=1_000_000, layers=12,
                    options={"rematerialisation": wanted})["modules"]["optimised"].count(b".remat")
        for wanted in (False, True)
    ]  # fmt: skip
    assert names[0] == 0 < names[1]


@pytest.mark.tpu
@pytest.mark.slow
def test_xla_rematerialises_for_a_tpu_only_where_it_is_asked_to(pool):
    names = [
        compile_toy(pool, "tpu-v5e", {"data": 1}, width=1024, rows=420_000, layers=12,
                    options={"rematerialisation": wanted})["modules"]["optimised"].count(b".remat")
        for wanted in (False, True)
    ]  # fmt: skip
    assert names[0] == 0 < names[1]


@pytest.mark.tpu
def test_a_refusal_is_a_result_with_its_module(pool):
    result = compile_toy(pool, "tpu-v5e", {"data": 1}, width=1024, rows=2**23, layers=4)
    assert result["outcome"] == "refused"
    assert result["exhausted"] == "HBM" and "RESOURCE_EXHAUSTED" in result["text"]
    assert result["available_bytes"] == parse_target("tpu-v5e").device_memory_bytes
    assert result["required_bytes"] > result["available_bytes"]
    assert result["modules"]["has_buffer_assignment"] and b"jit_loss" in result["modules"]["optimised"]


@pytest.mark.parametrize(
    ("target", "mesh"),
    [("cpu:8", {"fsdp": size}) for size in (4, 3, 16, -8)] + [("cpu:1", {"fsdp": 2}), ("cpu:8", {})],
)
def test_a_mesh_that_is_not_the_target_is_refused(target, mesh):
    with pytest.raises(RejectedError) as caught:
        compiling.make_mesh(parse_target(target), mesh)
    assert caught.value.problems[0].path.startswith("mesh")


def test_a_rejection_inside_the_worker_names_both_numbers(pool):
    with pytest.raises(RejectedError, match="4 devices and cpu:8 has 8"):
        compile_toy(pool, "cpu:8", {"fsdp": 4})


def test_effort_has_no_meaning_elsewhere():
    with pytest.raises(ValueError):
        compiling.compile_lowered(None, parse_target("h100"), optimisation_level=0)
    with pytest.raises(ValueError):
        compiling.compile_lowered(None, parse_target("cpu"), optimisation_level=2)


def refusal(text):
    empty = compiling.Modules(None, False, None)
    return compiling._refusal(text, parse_target("tpu-v5e"), "jit_f", empty, 0.0, {})


def test_the_sizes_of_a_refusal_are_read_from_its_text():
    text = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (25.98G) exceeds "
        "available HBM (15.75G)."
    )
    read = refusal(text)
    assert (read.exhausted, read.available_bytes) == ("HBM", 16_911_433_728)
    assert abs(read.required_bytes - 25.98 * 2**30) < 1
    other = refusal("RESOURCE_EXHAUSTED: something new")
    assert (other.exhausted, other.required_bytes) == ("unknown", None)
    assert refusal("INVALID_ARGUMENT: no such option").exhausted is None


def test_the_dump_of_the_right_module_is_chosen(tmp_path):
    for name in (
        "module_0001.jit_step.cpu_after_optimizations.hlo.pb",
        "module_0002.jit_step2.cpu_after_optimizations.hlo.pb",
        "module_0007.helper.cpu_after_optimizations.hlo.pb",
        "module_0001.jit_step.before_optimizations.hlo.pb",
        "module_0001.jit_step.cpu_after_optimizations-memory-usage-report.pb",
    ):
        (tmp_path / name).touch()
    chosen = private.dumped_module(tmp_path, "jit_step", "after_optimizations")
    assert chosen.name == "module_0001.jit_step.cpu_after_optimizations.hlo.pb"
    assert private.dumped_module(tmp_path, "jit_step", "after_codegen") is None


def test_a_module_printed_as_text_is_read_back():
    import jax

    compiled = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((8, 8), "float32")).compile()
    proto = private.proto_of_text(compiled.as_text())
    assert proto.count(b"dot") == private.optimised_proto(compiled).count(b"dot") > 0


def test_saved_residuals_are_listed():
    import jax
    import jax.numpy as jnp

    found = private.saved_residuals(lambda x: jnp.sin(x).sum(), jax.ShapeDtypeStruct((3,), "float32"))
    assert [tuple(value.shape) for value, _ in found].count((3,)) >= 1
