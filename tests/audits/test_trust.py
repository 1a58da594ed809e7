"""What XLA says of a program, against what was counted: each figure on each backend."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace

import pytest

from jaxcost.audits import trust
from jaxcost.audits.evidence import Notes, gather
from jaxcost.audits.xla_counts import recount
from jaxcost.observation.exceeded import exceeded
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target
from tests.observation.hlo.building import Program as ByHand
from tests.observation.hlo.building import loop


def verdicts(program):
    notes = Notes()
    section = trust.section(gather(program), notes)
    rows = {row["figure"]: row for row in section["verdicts"]}
    return section, rows, notes


CPU = pytest.param("cpu:1")
H100 = pytest.param("h100:1", marks=pytest.mark.cuda)
V5E = pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu)


@pytest.mark.parametrize(
    ("name", "reported", "contractions"),
    [("forward", 66_049, 786_432), ("grad", 198_664, 2_359_296), ("remat", 264_199, 3_145_728)],
)
def test_a_scanned_body_is_counted_once(compiled, name, reported, contractions):
    section, rows, notes = verdicts(compiled(name))
    row = rows["flops"]
    assert section["flops"] == row["value"] == reported
    assert row["verdict"] == "wrong" and "counted once" in row["reason"]
    assert f"{contractions:,} of the executed FLOPs" in row["reason"]
    assert row["measured"] > contractions and row["difference"] == reported - row["measured"]
    assert row["ratio"] == pytest.approx(reported / row["measured"])
    assert rows["bytes_accessed"]["verdict"] == rows["transcendentals"]["verdict"] == "wrong"
    (finding,) = (f for f in notes.findings if "flops is" in f["text"])
    assert f"{reported:,}" in finding["text"]


def test_the_unrolled_program_is_counted_whole(compiled):
    section, rows, _ = verdicts(compiled("unrolled"))
    assert section["flops"] == 786_943
    assert {rows[name]["verdict"] for name in ("flops", "bytes_accessed", "transcendentals")} == {"right"}


@pytest.mark.tpu
def test_the_tpu_compiler_counts_a_body_once_too(compiled):
    section, rows, _ = verdicts(compiled("wide", "tpu-v5e:1x1"))
    assert section["flops"] == 137_494_528
    assert rows["flops"]["verdict"] == "wrong" and "1,610,612,736" in rows["flops"]["reason"]
    assert rows["bytes_accessed"]["verdict"] == "not_comparable"
    assert rows["optimal_seconds"]["verdict"] == "not_comparable"
    assert rows["temp_size_in_bytes"]["verdict"] == "not_comparable"
    assert rows["known_trip_count"]["verdict"] == "absent"
    assert rows["estimated_cycles"]["verdict"] == "absent"


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "dots"), [("dense1", 37_376), ("dense2", 74_752), ("dense9", 336_384)])
def test_there_is_no_count_ahead_of_time_on_a_gpu(compiled, name, dots):
    section, rows, _ = verdicts(compiled(name, "h100:1"))
    assert section["flops"] is None and "no cost analysis" in section["reasons"]["flops"]
    assert rows["flops"]["verdict"] == "absent"
    # With one row the product is multiply and reduce, which XLA's rules count as 2 k - 1 a result.
    assert rows["flops"]["measured"] >= dots - 256


def test_a_loop_that_data_ends_is_no_once(compiled):
    section, rows, _ = verdicts(compiled("runtime"))
    assert section["flops"] == 65_538
    assert (rows["flops"]["verdict"], rows["flops"]["measured"]) == ("not_comparable", None)
    assert section["recounted"]["executed"]["flops"] is None


def test_branches_are_counted_by_the_largest(compiled):
    section, rows, _ = verdicts(compiled("branches"))
    assert section["flops"] == section["recounted"]["executed"]["flops"]["maximum"] == 16_386
    assert rows["flops"]["verdict"] == "not_comparable" and "largest" in rows["flops"]["reason"]


def test_a_library_call_counts_as_nothing_and_takes_a_second_off(compiled):
    _, rows, _ = verdicts(compiled("solve"))
    assert rows["flops"]["verdict"] == "wrong" and "lapack" in rows["flops"]["reason"]
    assert rows["flops"]["difference"] < 0
    assert rows["optimal_seconds"]["verdict"] == "wrong" and rows["optimal_seconds"]["value"] < 0


@pytest.mark.tpu
def test_a_kernel_is_believed_only_as_far_as_it_is_known(compiled):
    section, rows, _ = verdicts(compiled("pallas", "tpu-v5e:1x1"))
    assert section["flops"] == rows["cost_estimate.flops"]["value"] == 268_435_456
    assert rows["cost_estimate.flops"]["verdict"] == rows["flops"]["verdict"] == "not_comparable"
    silent, rows, _ = verdicts(compiled("pallas_silent", "tpu-v5e:1x1"))
    assert silent["flops"] is None and rows["flops"]["verdict"] == "absent" and rows["flops"]["measured"] is None


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("counted", "verdict"), [(268_435_456, "right"), (268_435_458, "wrong"), (None, "not_comparable")]
)
def test_a_declared_cost_beside_the_count_of_the_kernels_own_program(compiled, counted, verdict):
    program = compiled("pallas", "tpu-v5e:1x1")
    kernels = [{"name": "kernel", "flops": counted, "declared": 268_435_456}]
    program = replace(program, lowered=replace(program.lowered, jaxpr={"kernels": kernels}))
    _, rows, _ = verdicts(program)
    assert rows["cost_estimate.flops"]["verdict"] == verdict
    assert rows["flops"]["verdict"] == ("right" if verdict == "right" else "not_comparable")


def test_cycles_are_the_compilers_own_and_loops_count():
    made = ByHand()

    def body(program):
        program.add("copy", ("f32", 8), [program.add("broadcast", ("f32", 8), [program.constant(0)])])
        program.open.instructions[-1].backend_config = b'{"window_config": {"estimated_cycles": "7"}}'

    loop(made, 0, 1, 5, "LT", per_trip=body)
    _, rows, _ = verdicts(Program("proto", "x", made.bytes(), "tpu"))
    assert (rows["estimated_cycles"]["value"], rows["estimated_cycles"]["verdict"]) == (35, "not_comparable")


@pytest.mark.parametrize("target", [CPU, H100, V5E])
def test_fields_of_memory_by_backend(compiled, target):
    program = compiled("donated", target)
    _, rows, _ = verdicts(program)
    for name, value in (("argument", 8_388_608), ("output", 4_194_304), ("alias", 4_194_304)):
        row = rows[f"{name}_size_in_bytes"]
        assert (row["verdict"], row["value"], row["measured"]) == ("right", value, value)
        assert row["versions"]["jax"] == program.environment["versions"]["jax"]
        assert row["backend"] == program.platform
    assert rows["generated_code_size_in_bytes"]["verdict"] == "not_comparable"
    assert all(row["verdict"] == "right" for name, row in rows.items() if name.startswith("host_"))


def test_the_peak_of_the_cpu_holds_no_temporary(compiled):
    _, rows, notes = verdicts(compiled("grad"))
    row = rows["peak_memory_in_bytes"]
    assert row["verdict"] == "wrong" and row["value"] < row["measured"]
    assert any("peak_memory_in_bytes" in finding["text"] for finding in notes.findings)


@pytest.mark.cuda
def test_the_peak_of_a_gpu_is_the_live_peak(compiled):
    _, rows, _ = verdicts(compiled("grad", "h100:1"))
    assert rows["peak_memory_in_bytes"]["verdict"] == "right"


@pytest.mark.tpu
def test_the_peak_of_a_tpu_counts_on_chip_memory(compiled):
    _, rows, _ = verdicts(compiled("square", "tpu-v5e:1x1"))
    assert rows["peak_memory_in_bytes"]["verdict"] == "wrong"
    assert rows["peak_memory_in_bytes"]["value"] > rows["peak_memory_in_bytes"]["measured"]


def test_one_more_flop_or_byte_is_wrong(compiled):
    """The checks can fail: a figure off by one is no longer right."""
    program = compiled("unrolled")
    for key, name in (("flops", "flops"), ("bytes accessed", "bytes_accessed"), ("transcendentals", "transcendentals")):
        costs = {**program.cost_analysis, key: program.cost_analysis[key] + 1}
        _, rows, _ = verdicts(replace(program, cost_analysis=costs))
        assert (rows[name]["verdict"], rows[name]["difference"]) == ("wrong", 1)
    for name in ("argument_size_in_bytes", "temp_size_in_bytes", "host_temp_size_in_bytes"):
        fields = {**program.memory_analysis, name: program.memory_analysis[name] + 1}
        _, rows, _ = verdicts(replace(program, memory_analysis=fields))
        assert (rows[name]["verdict"], rows[name]["difference"]) == ("wrong", 1)


def test_a_declared_count_that_the_scalars_contradict():
    made = ByHand()
    loop(made, 0, 1, 5, "LT", per_trip=lambda program: None)
    made.open.instructions[-1].backend_config = b'{"known_trip_count": {"n": "5"}}'
    _, rows, _ = verdicts(Program("proto", "x", made.bytes(), "cpu"))
    assert (rows["known_trip_count"]["verdict"], rows["known_trip_count"]["measured"]) == ("right", 5)
    made.open.instructions[-1].backend_config = b'{"known_trip_count": {"n": "6"}}'
    _, rows, _ = verdicts(Program("proto", "x", made.bytes(), "cpu"))
    row = rows["known_trip_count"]
    assert (row["verdict"], row["value"], row["measured"], row["difference"]) == ("wrong", 6, 5, 1)


def test_a_file_has_no_numbers_of_a_compiler(root):
    data = lzma.decompress((root / "hlo_dumps/toy-tied_training_h100-1_62ac7e0b.hlo.xz").read_bytes())
    section, rows, _ = verdicts(Program("proto", "toy", data, "cuda", parse_target("h100")))
    assert section["flops"] is None and "no compiler ran" in section["reasons"]["flops"]
    assert rows["argument_size_in_bytes"]["verdict"] == "absent"


MESSAGE = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries ({}) exceeds "
    "available HBM (15.75G)."
)


def test_the_sizes_in_a_refusal(root):
    data = lzma.decompress((root / "hlo_dumps/toy-tied_training_tpu-v5e-1x1_62ac7e0b.hlo.xz").read_bytes())
    program = Program("proto", "toy", data, "tpu", parse_target("tpu-v5e"))
    required = gather(program).reading.memory.required_bytes
    said = f"{required / 2**20:.2f}M"
    _, rows, _ = verdicts(replace(program, refused=MESSAGE.format(said)))
    assert rows["refusal.required"]["verdict"] == rows["refusal.available"]["verdict"] == "right"
    _, rows, _ = verdicts(replace(program, refused=MESSAGE.format("25.98G")))
    assert rows["refusal.required"]["verdict"] == "wrong"
    _, rows, _ = verdicts(replace(program, refused="INVALID_ARGUMENT: something else"))
    assert rows["refusal"]["verdict"] == "not_comparable"
    found = exceeded(MESSAGE.format("25.98G"))
    assert (found.space, found.required_bytes, found.available_bytes) == ("HBM", round(25.98 * 2**30), 15.75 * 2**30)
    assert exceeded("fine") is None and exceeded(MESSAGE.format("1.2.3G")) is None


def recorded(root):
    for path in sorted((root / "hlo_dumps").glob("*.json")):
        raw = json.loads(path.read_text())["observed"]["compiler"]["raw"]
        if raw["cost_analysis"]:
            yield path, raw["cost_analysis"]


def test_every_recorded_count_is_what_the_recount_says(root):
    """Recorded training steps on CPU and TPU: XLA adds in 32-bit floats, whose rounding is the only difference."""
    found = 0
    for path, costs in recorded(root):
        family = "tpu" if "_tpu-" in path.name else "cpu"
        data = lzma.decompress(path.with_suffix(".hlo.xz").read_bytes())
        graph = gather(Program("proto", path.stem, data, family)).graph
        once = recount(graph.module, graph.executions).once
        figures = [(costs["flops"], once.flops), (costs["transcendentals"], once.transcendentals)]
        if family == "cpu":
            figures.append((costs["bytes accessed"], once.bytes))
        for theirs, ours in figures:
            bound = 0 if theirs < 2**24 else once.terms * 2**-24 * theirs
            assert abs(theirs - ours) <= bound, path.name
        found += 1
    assert found >= 6


def test_a_module_that_cannot_be_recounted_leaves_its_figures_uncompared(compiled, monkeypatch):
    def broken(module, executions):
        raise IndexError("dimension 9 of 2")

    monkeypatch.setattr(trust, "recount", broken)
    program = compiled("forward")
    with pytest.raises(IndexError):  # a compile of our own is not damaged: the fault is ours
        verdicts(program)
    section, rows, _ = verdicts(replace(program, origin="proto"))
    assert section["recounted"] is None
    assert rows["flops"]["verdict"] == "not_comparable" and "dimension 9" in rows["flops"]["reason"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_none(compiled, value):
    program = compiled("forward")
    table = {**dict(program.cost_analysis), "flops": value, "optimal_seconds": value}
    section, rows, _ = verdicts(replace(program, cost_analysis=table))
    assert section["flops"] is None and rows["optimal_seconds"]["verdict"] == "wrong"
    json.dumps(section, allow_nan=False)
