"""Whatever happens inside a worker is a typed value outside, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.pool import Pool, Reply, Request, WorkerError, WorkerFailure
from jaxcost.observation.worker import answer, from_line, resolve, to_line

TASKS = "tests.observation.worker_tasks"


def ask(name, payload=None, **options):
    return Request(f"{TASKS}:{name}", payload, **options)


@pytest.fixture
def pool():
    with Pool(allow=(TASKS,)) as made:
        yield made


def test_a_message_survives_the_pipe():
    message = {"text": "\u2028line\n", "bytes": b"\x00\xff", "large": 2**200, "list": [None, True, 1.5]}
    line = to_line(message)
    assert line.count(b"\n") == 1
    assert from_line(line) == message
    with pytest.raises(ValueError):
        from_line(b'{"$bytes": "?"}')


def test_only_marked_functions_of_allowed_packages_are_called():
    assert resolve("jaxcost.observation.worker:ping", ["jaxcost.observation"])(3) == 3
    for name in ("os:system", "jaxcost.observation.worker:main", "jaxcost.observation.worker", "jaxcost.observationx:f",
                 "jaxcost.observation.worker:ping.x", ":ping"):  # fmt: skip
        with pytest.raises(ValueError):
            resolve(name, ["jaxcost.observation"])
    assert from_line(answer({"function": "os:getcwd", "payload": None}, ["jaxcost.observation"]))["failed"] == "raised"


def test_ping(pool):
    reply = pool.call(Request("jaxcost.observation.worker:ping", {"a": [1, b"\x00"]}))
    assert isinstance(reply, Reply)
    assert reply.value == {"a": [1, b"\x00"]}


def test_a_worker_is_reused(pool):
    first, second = (pool.value(ask("environment", [])) for _ in range(2))
    assert first == second and first["pid"] != os.getpid()
    assert pool.value(ask("environment", [], kind="cpu"))["pid"] != first["pid"]


def test_at_most_the_given_number_of_workers_lives():
    with Pool(size=1, allow=(TASKS,)) as pool:
        first = pool.value(ask("environment", []))["pid"]
        pool.value(ask("environment", [], kind="cpu"))
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


def test_the_environment_is_the_workers_own(pool, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    names = ["JAX_ENABLE_X64", "XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_COMPILATION_CACHE", "TPU_SKIP_MDS_QUERY"]
    seen = pool.value(ask("environment", names, kind="cpu", cpu_devices=4))
    assert seen["JAX_ENABLE_X64"] is None
    assert seen["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert (seen["JAX_PLATFORMS"], seen["JAX_ENABLE_COMPILATION_CACHE"]) == ("cpu", "false")
    assert seen["TPU_SKIP_MDS_QUERY"] is None
    assert pool.value(ask("environment", names, kind="tpu"))["TPU_SKIP_MDS_QUERY"] == "1"


def test_noise_on_standard_output_does_not_reach_the_parent(pool):
    assert pool.value(ask("print_and_return", "mine")) == "mine"
    assert pool.value(ask("print_and_return", "again")) == "again"


@pytest.mark.parametrize(
    ("request_", "kind", "reason"),
    [
        (ask("crash"), "crashed", "SIGSEGV"),
        (ask("leave", 7), "crashed", "code 7"),
        (ask("sleep", 60, timeout_seconds=0.3), "timed_out", "0.3 s"),
        (ask("hold_memory", 300 * 2**20, memory_bytes=200 * 2**20), "memory_exceeded", "bytes"),
        (ask("divide", 0), "raised", "ZeroDivisionError"),
        (ask("return_a_set"), "raised", "set"),
        (ask("not_a_task"), "raised", "not marked"),
        (ask("missing"), "raised", "not marked"),
        (Request("os:system", "true"), "raised", "names no task"),
    ],
)
def test_a_failure_is_a_value_and_the_next_request_runs(pool, request_, kind, reason):
    failure = pool.call(request_)
    assert isinstance(failure, WorkerFailure)
    assert failure.kind == kind
    assert reason in failure.reason
    with pytest.raises(WorkerError):
        failure.throw()
    assert pool.value(ask("divide", 4)) == 0.25


def test_a_crash_shows_where_it_happened(pool):
    assert "worker_tasks" in pool.call(ask("crash")).stderr_tail


def test_the_same_task_within_its_limits_passes(pool):
    assert pool.value(ask("sleep", 0.1, timeout_seconds=30, memory_bytes=2**30)) == 0.1


def test_a_rejection_comes_back_whole(pool):
    with pytest.raises(RejectedError) as caught:
        pool.value(ask("refuse", -1))
    (problem,) = caught.value.problems
    assert (problem.path, problem.value, problem.remedy) == ("case.batch", -1, "write 1")


def test_results_come_in_order_and_progress_is_told():
    told = []
    with Pool(size=2, allow=(TASKS,), on_progress=told.append) as pool:
        results = pool.map([ask("sleep", 0.3), ask("crash"), ask("sleep", 0), ask("divide", 2)])
    assert [getattr(result, "value", None) for result in results] == [0.3, None, 0, 0.5]
    assert sorted(step.index for step in told) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sum(step.result is None for step in told) == 4


def test_a_fault_of_the_progress_hook_is_raised():
    def broken(progress):
        raise LookupError("hook")

    with Pool(on_progress=broken) as pool, pytest.raises(LookupError):
        pool.call(Request("jaxcost.observation.worker:ping", 1))


def test_nothing_is_left_behind(pool):
    directory = Path(pool.value(ask("environment", []))["temporary"])
    assert directory.is_dir()
    assert pool.call(ask("sleep", 60, timeout_seconds=0.3)).kind == "timed_out"
    assert not directory.exists()


PARENT = f"""
import signal
from jaxcost.observation.pool import Pool, Request
signal.signal(signal.SIGINT, signal.default_int_handler)
with Pool(allow=("{TASKS}",)) as pool:
    seen = pool.value(Request("{TASKS}:environment", []))
    print(seen["pid"], seen["temporary"], flush=True)
    pool.call(Request("{TASKS}:sleep", 60))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_does_not_outlive_its_parent(number):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pid, directory = parent.stdout.readline().split()
    left_behind = Path(directory.decode(), "left-behind")
    assert wait_until(left_behind.exists), "the worker is at work"
    parent.send_signal(number)
    _, errors = parent.communicate(timeout=30)
    assert wait_until(lambda: not Path(f"/proc/{int(pid)}").exists())
    assert wait_until(lambda: not Path(directory.decode()).exists())
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_workers_work_in_the_systems_temporary_directory(pool):
    assert Path(pool.value(ask("environment", []))["temporary"]).parent == Path(tempfile.gettempdir())
