"""What file names alone tell of a dump."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.sources.dumps import choose, dumped_file, read_dump

# file -> (label, stage, platform, text), as XLA writes them for CPU, NVIDIA, AMD and TPU, by version and flag
NAMES = {
    "module_0002.jit_f.cpu_after_optimizations.hlo.pb": ("module_0002.jit_f", "after_optimizations", "cpu", False),
    "module_0665.jit_f.sm_9.0a_gpu_after_optimizations.hlo.pb": (
        "module_0665.jit_f", "after_optimizations", "cuda", False),
    "module_0665.jit_f.sm_8.0_gpu_after_optimizations.txt": ("module_0665.jit_f", "after_optimizations", "cuda", True),
    "module_0007.jit_f.gpu_after_optimizations.hlo.pb": ("module_0007.jit_f", "after_optimizations", "cuda", False),
    "module_0007.jit_f.gfx942_gpu_after_optimizations.txt": ("module_0007.jit_f", "after_optimizations", "cuda", True),
    "module_0004.jit_f.cl_933746096.after_optimizations.hlo.pb": (
        "module_0004.jit_f", "after_optimizations", "tpu", False),
    "module_0004.jit_f.cl_933746096.oom_intermediate_module.hlo.pb": (
        "module_0004.jit_f", "oom_intermediate_module", "tpu", False),
    "module_0004.jit_f.after_optimizations.txt": ("module_0004.jit_f", "after_optimizations", "tpu", True),
    "1699999999.module_0012.jit_train_step.sm_9.0a_gpu_after_optimizations.hlo.pb.gz": (
        "1699999999.module_0012.jit_train_step", "after_optimizations", "cuda", False),
    "module_0001.jit__lambda_.before_optimizations.txt": (
        "module_0001.jit__lambda_", "before_optimizations", None, True),
    "module_0003.jit_f.1.cpu_after_optimizations.txt": ("module_0003.jit_f.1", "after_optimizations", "cpu", True),
    "module_0003.jit_f.cpu_after_optimizations.execution_0001.txt": (
        "module_0003.jit_f", "after_optimizations", "cpu", True),
}  # fmt: skip
OTHERS = (
    "module_0001.jit_f.0012.simplification.after_x.before_y.hlo.pb", "module_0001.jit_f.cpu_after_optimizations.ll",
    "module_0001.jit_f.cpu_after_optimizations-buffer-assignment.txt", "module_0001.jit_f.thunk_sequence.txt",
    "module_0001.jit_f.cpu_after_optimizations-memory-usage-report.pb", "notes.txt", "module_x.jit_f.txt",
)  # fmt: skip


def fill(folder, sizes):
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_told_by_its_name(tmp_path, name):
    fill(tmp_path, {name: 3})
    (found,) = read_dump(tmp_path)
    label, stage, platform, text = NAMES[name]
    assert (found.label, found.stage, found.platform, found.text, found.bytes) == (label, stage, platform, text, 3)
    assert found.name == label.rpartition("module_")[2].partition(".")[2]
    assert found.optimised == (stage == "after_optimizations")
    assert dumped_file(tmp_path / name) == found


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_of_a_dump_are_no_modules(tmp_path, name):
    assert dumped_file(tmp_path / name) is None
    with pytest.raises(RejectedError):
        read_dump(fill(tmp_path, {name: 3}))


def test_of_one_module_the_latest_stage_and_the_proto_count(tmp_path):
    stem = "module_0002.jit_f"
    files = [
        f"{stem}.cpu_after_optimizations.hlo.pb", f"{stem}.cpu_after_optimizations.txt",
        f"{stem}.after_spmd_partitioner.hlo.pb", f"{stem}.before_optimizations.hlo.pb",
    ]  # fmt: skip
    for number, name in enumerate(files):
        # What comes before in the list wins, whatever its size.
        sizes = dict.fromkeys(files[number:], 1000) | {name: 1}
        folder = tmp_path / str(number)
        (found,) = read_dump(fill(folder, sizes))
        assert found.path.name == name


def test_what_lies_beside_a_module_is_found_with_and_without_a_time_stamp(tmp_path):
    stem = "module_0665.jit_f"
    fill(tmp_path, {
        f"17.{stem}.sm_9.0a_gpu_after_optimizations.txt": 5, f"{stem}.gpu_target_config.pbtxt": 5,
        f"17.{stem}.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt": 5,
    })  # fmt: skip
    (found,) = read_dump(tmp_path)
    assert found.device.name == f"{stem}.gpu_target_config.pbtxt"
    assert found.assignment.name.endswith("-buffer-assignment.txt")


def test_of_a_module_before_optimisation_its_neighbours_tell_the_platform(tmp_path):
    fill(tmp_path, {"module_0001.jit_f.before_optimizations.txt": 5, "module_0001.jit_f.gpu_target_config.pbtxt": 1})
    assert read_dump(tmp_path)[0].platform == "cuda"


def test_the_largest_comes_first_and_unfinished_modules_last(tmp_path):
    fill(tmp_path, {
        "module_0001.jit_small.cpu_after_optimizations.hlo.pb": 10,
        "module_0002.jit_large.cpu_after_optimizations.hlo.pb": 20,
        "module_0003.jit_unfinished.before_optimizations.hlo.pb": 30,
    })  # fmt: skip
    modules = read_dump(tmp_path)
    assert [at.name for at in modules] == ["jit_large", "jit_small", "jit_unfinished"]
    chosen, how = choose(modules, None, "dump")
    assert chosen.name == "jit_large" and "largest" in how and "3 modules" in how
    for wanted in ("jit_small", "1", "module_0001.jit_small", "module_0001.jit_small.cpu_after_optimizations.hlo.pb"):
        assert choose(modules, wanted, "dump") == (modules[1], "")
    with pytest.raises(RejectedError, match="jit_large, jit_small"):
        choose(modules, "jit_other", "dump")


def test_a_name_of_several_modules_means_the_largest(tmp_path):
    fill(tmp_path, {f"module_000{n}.jit_f.cpu_after_optimizations.hlo.pb": n for n in (1, 3, 2)})
    chosen, how = choose(read_dump(tmp_path), "jit_f", "dump")
    assert chosen.number == 3 and "3 modules named jit_f" in how


def test_hosts_that_keep_a_folder_each_are_searched_and_links_are_not(tmp_path):
    fill(tmp_path, {
        "host_0/xla/module_0001.jit_f.cpu_after_optimizations.hlo.pb": 5,
        "host_1/xla/module_0001.jit_f.cpu_after_optimizations.hlo.pb": 6,
        "notes.txt": 1,
    })  # fmt: skip
    (tmp_path / "again").symlink_to(tmp_path)
    assert [at.label for at in read_dump(tmp_path)] == ["host_1/xla/module_0001.jit_f", "host_0/xla/module_0001.jit_f"]
    assert len(read_dump(tmp_path / "host_0")) == 1


def test_thousands_of_tiny_modules_are_listed(tmp_path):
    fill(tmp_path, {f"module_{n:04}.jit_op_{n}.cpu_after_optimizations.hlo.pb": 1 + n % 7 for n in range(3000)})
    modules = read_dump(tmp_path)
    assert len(modules) == 3000 and modules[0].bytes == 7


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({}, "is empty"),
        ({"module_0001.jit_f.kernel.ll": 1, "module_0001.jit_f.1.ptx": 1}, "code of kernels"),
        ({"module_0001.jit_f.0012.p.after_x.before_y.hlo.pb": 1}, "between passes"),
        ({"notes.md": 1}, "no HLO module"),
    ],
)
def test_a_folder_without_modules_says_what_it_holds_and_which_flag_makes_one(tmp_path, files, rule):
    with pytest.raises(RejectedError, match=rule) as error:
        read_dump(fill(tmp_path, files))
    assert "--xla_dump_hlo_as_proto" in error.value.problems[0].remedy


def test_no_folder_is_unavailable(tmp_path):
    with pytest.raises(UnavailableError):
        read_dump(tmp_path / "none")
