"""`jaxcost audit` as a user calls it: dumps, files, functions, saved audits, and every way of being wrong."""

from __future__ import annotations

import json
import sys

import jsonschema
import pytest

from jaxcost.audits.audit import ALLOWED, audited
from jaxcost.audits.regression import kept
from jaxcost.cli.program import main
from jaxcost.observation.pool import Pool
from jaxcost.schema import schema
from tests.observation.sources.dumping import FLOPS, PROTO, TARGETS, TASK, write_dump

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P, NamedSharding

print("a line of the user's own")

def step(w, x):
    return w - 0.1 * jnp.tanh(x @ w).mean(0)

def shapes(x=(64, 256), **options):
    return jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct(x, jnp.float32, **options)

def named():
    return jax.jit(step, donate_argnums=0), shapes()

def with_keywords():
    return step, shapes()[:1], {"x": shapes()[1]}

def over_a_mesh():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return step, shapes((512, 256), sharding=NamedSharding(mesh, P("data")))

def over_an_abstract_mesh():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    return step, shapes((512, 256), sharding=NamedSharding(mesh, P("data")))

def traced():
    return jax.jit(step).trace(*shapes())

def loop():
    return lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x), (shapes()[0], jax.ShapeDtypeStruct((), int))

whole = (step, shapes())

class inner:
    def again(): return named()

def aborts():
    import os
    os.write(2, b"F0000 file.cc:7] Check failed: that is so\\n")
    os.abort()
def number(): return 3
def raises(): raise KeyError("state")
def leaves(): raise SystemExit(3)
def interrupts(): raise KeyboardInterrupt
def traced_by(error):
    def fails(x): raise error
    return fails, shapes()[:1]
def leaves_traced(): return traced_by(SystemExit(0))
def interrupts_traced(): return traced_by(KeyboardInterrupt())
def mute_traced(): return traced_by(Mute())

class Mute(Exception):
    def __str__(self): raise RuntimeError("mute")
    __repr__ = __str__
class Raiser:
    def __getattr__(self, name): raise RuntimeError("no " + name)
    def __call__(self): raise RuntimeError("no call")

def mute(): raise Mute()
raiser = Raiser()
def wrong(): return (lambda x: x @ x), (jax.ShapeDtypeStruct((4, 8), jnp.float32),)
"""


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """dumped(target, proto) -> the folder of a dump."""
    made = {}
    with Pool(size=1, allow=(TASK.partition(":")[0],), timeout_seconds=300) as pool:

        def get(target="cpu:1", proto=True):
            if (target, proto) not in made:
                folder = tmp_path_factory.mktemp("dump")
                made[target, proto] = write_dump(pool, target, folder, PROTO if proto else {})
            return made[target, proto]

        yield get


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in a folder with `mine.py`: (exit code, its document or its text)."""
    (tmp_path / "mine.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0, text=False):
        given = main(["audit", *map(str, words), *([] if text else ["--json"])])
        out, err = capsys.readouterr()
        assert given == code, (given, out[-2000:], err[-2000:])
        if text:
            return out
        data = json.loads(out)
        jsonschema.validate(data, schema(data["schema"]))
        return data

    return call


@pytest.mark.parametrize("target", TARGETS)
def test_a_dump_is_audited_by_its_largest_module_another_or_all(run, dumped, target):
    folder = dumped(target)
    data = run(folder)
    assert data["flops"]["total"] == FLOPS and data["program"]["origin"] == "dump"
    assert data["program"]["mesh"] == {"data": 1} and "largest" in data["program"]["notes"][1]
    init = run(folder, "--module", "jit_init")
    assert init["flops"]["total"] == 0 and init["program"]["module"] == "jit_init"
    every = run(folder, "--all")
    assert every["schema"] == "jaxcost.audits.v1" and not every["rejected"]
    assert [audit["program"]["name"] for audit in every["audits"]] == ["step", "init"]
    assert len(run(folder, "--all", text=True).splitlines()) == 2
    number = every["audits"][1]["program"]["notes"][0].partition("module_")[2].partition(".")[0]
    for wanted in (number, str(int(number)), f"{int(number):09d}"):
        (one,) = run(folder, "--all", "--module", wanted)["audits"]
        assert one["program"]["name"] == "init", wanted


@pytest.mark.parametrize("proto", [True, False])
def test_one_file_is_audited_with_what_lies_beside_it(run, dumped, proto, capsys):
    ending = "hlo.pb" if proto else "txt"
    (path,) = dumped(proto=proto).glob(f"*jit_step.cpu_after_optimizations.{ending}")
    data = run(path)
    assert data["flops"]["total"] == FLOPS and data["program"]["platform"] == "cpu"
    assert data["memory"]["required_bytes"] == run(dumped())["memory"]["required_bytes"]
    assert (data["memory"]["live_peak_bytes"] is None) == (not proto)
    assert main(["audit", str(path), "--mesh", "data=7"]) == 2
    assert "has 7 devices, and the module is for 1" in capsys.readouterr().err
    run(path, "--strict", code=0 if proto else 1)
    bare = path.rename(path.with_name("program.bin"))
    try:
        assert run(bare)["flops"]["total"] == FLOPS
    finally:
        bare.rename(path)


def test_a_damaged_file_is_refused_by_its_name(run, dumped, tmp_path):
    (path,) = dumped().glob("*jit_step.cpu_after_optimizations.hlo.pb")
    broken = tmp_path / "broken.pb"
    broken.write_bytes(path.read_bytes()[:3000])
    (error,) = run(broken, code=2)["errors"]
    assert error["path"] == "broken.pb: hlo"


def test_a_damaged_module_does_not_stop_the_others(run, dumped, tmp_path):
    for path in dumped().glob("*after_optimizations.hlo.pb"):
        data = path.read_bytes()
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / path.name).write_bytes(data if "step" in path.name else data[: len(data) // 2])
    every = run(tmp_path / "d", "--all", code=1)
    assert len(every["audits"]) == 1 and every["rejected"][0]["module"].endswith("jit_init")
    assert "jit_init" in run(tmp_path / "d", "--all", code=1, text=True)
    run(tmp_path / "d", "--module", "jit_init", code=2)


@pytest.mark.parametrize("name", ["named", "with_keywords", "whole", "inner.again", "traced"])
def test_a_function_is_named_and_called_for_its_arguments(run, name):
    data = run("--function", f"mine:{name}")
    assert data["flops"]["total"] == FLOPS and data["program"]["name"] == "step"
    donated = name in ("named", "inner.again")
    assert (data["memory"]["alias_bytes"] > 0) == donated


def test_several_targets_are_several_audits(run):
    data = run("--function", "mine:named", "--target", "cpu:1", "--target", "cpu:2")
    assert [audit["program"]["target"]["text"] for audit in data["audits"]] == ["cpu:1", "cpu:2"]
    text = run("--function", "mine:named", "--target", "cpu:1", "--target", "cpu:2", text=True)
    assert "step on cpu:1" in text and "step on cpu:2" in text


@pytest.mark.parametrize("target", ["cpu:8", pytest.param("h100:8", marks=pytest.mark.cuda)])
def test_a_mesh_of_the_named_function_has_the_devices_of_the_target(run, target):
    data = run("--function", "mine:over_a_mesh", "--target", target)
    assert data["flops"]["total"] == FLOPS and data["program"]["device_count"] == 8
    assert [row["axes"] for row in data["collectives"]] == [["data"]]
    other = run("--function", "mine:over_a_mesh", "--target", target, "--mesh", "x=2,y=4")
    assert other["program"]["mesh"] == {"x": 2, "y": 4} and other["collectives"][0]["axes"] == ["x", "y"]


def test_a_bare_cpu_has_the_devices_of_the_program(run, capsys):
    data = run("--function", "mine:over_an_abstract_mesh")
    assert data["program"]["target"]["text"] == "cpu:4" and data["collectives"][0]["axes"] == ["data"]
    run("--function", "mine:over_an_abstract_mesh", "--target", "cpu:1", code=2, text=True)
    assert main(["audit", "--function", "mine:over_a_mesh"]) == 2
    assert "--target cpu:8" in capsys.readouterr().err


def test_trips_of_a_loop_can_be_given(run):
    data = run("--function", "mine:loop")
    assert not isinstance(data["flops"]["total"], int) and data["unknowns"]
    (name,) = [row["name"] for row in data["loops"]]
    counted = run("--function", "mine:loop", "--trips", f"{name}=7")
    assert counted["flops"]["total"] == 7 * 2 * 256**3


def test_a_saved_audit_is_shown_compared_and_fails_on_growth(run, tmp_path):
    run("--function", "mine:named", "--save", "step.json")
    assert run("step.json") == json.loads((tmp_path / "step.json").read_text())
    assert "step on cpu:1" in run("step.json", text=True)
    same = run("--function", "mine:named", "--against", "step.json")
    assert same["against"]["failed"] is False
    (tmp_path / "mine.py").write_text(STEP.replace("x=(64, 256)", "x=(65, 256)"))
    grown = run("--function", "mine:named", "--against", "step.json", code=1)
    assert grown["against"]["status"] == "grown"
    bounds = ("--bound", "flops=2%", "--bound", "memory=2%")
    assert run("--function", "mine:named", "--against", "step.json", *bounds)["against"]["failed"] is False
    assert "flops.total" in run("--function", "mine:named", "--against", "step.json", code=1, text=True)


def test_the_record_of_a_test_is_shown_without_what_it_leaves_out(run, tmp_path):
    data = run("--function", "mine:named", "--save", "step.json")
    (tmp_path / "kept.json").write_text(kept(data))
    shown = run("kept.json", "--html", "kept.html", text=True)
    assert "step on cpu:1" in shown and f"{FLOPS:,}" in shown and "unknown" not in shown
    assert all("no trees of places" in text for text in (shown, (tmp_path / "kept.html").read_text()))
    assert "no trees of places" in json.dumps(run("kept.json", "--export", "a.speedscope.json", code=2))
    assert run("step.json", "--against", "kept.json")["against"]["status"] == "same"


def test_pages_and_exports_are_written(run, tmp_path, capsys):
    files = ("--html", "a.html", "--export", "a.speedscope.json")
    assert main(["audit", "--function", "mine:named", *files]) == 0
    assert capsys.readouterr().err.splitlines()[-2:] == ["wrote a.speedscope.json", "wrote a.html"]
    assert main(["audit", "--function", "mine:named", *files, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert "<html" in (tmp_path / "a.html").read_text()
    assert json.loads((tmp_path / "a.speedscope.json").read_text())["$schema"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "nothing is named"),
        (("a", "--function", "b:c"), 2, "one of the two"),
        (("none",), 3, "no such file"),
        (("",), 2, "is empty"),
        (("turn",), 2, "cannot be read"),
        (("a" * 5000,), 2, "cannot be read"),
        (("turns",), 2, "is empty"),
        (("mine.py", "--against", "/dev/zero"), 2, "is no plain file"),
        (("mine.py", "--html", "turn", "--save", "turn"), 2, "is the file of --html too"),
        (("mine.py",), 2, "HloModule"),
        (("empty.pb",), 2, "is empty"),
        (("folder",), 2, "is empty"),
        (("folder", "--target", "h101"), 2, "not a chip"),
        (("other.json",), 2, "must be jaxcost.audit.v1"),
        (("broken.json",), 2, "is no whole JSON"),
        (("thin.json",), 2, "thin.json"),
        (("mine.py", "--all"), 2, "a file is one module"),
        (("mine.py", "--target", "cpu:1", "--target", "cpu:2"), 2, "of one target"),
        (("mine.py", "--mesh", "data"), 2, "not of the form"),
        (("mine.py", "--mesh", "a=2,a=2"), 2, "named twice"),
        (("mine.py", "--mesh", ""), 2, "not of the form"),
        (("--function", "mine:named", "--mesh", "data=0"), 2, "size of 1 or more"),
        (("mine.py", "--trips", "x"), 2, "not of the form"),
        (("mine.py", "--timeout", "0"), 2, "whole number"),
        (("mine.py", "--against", "none"), 3, "no such file"),
        (("mine.py", "--bound", "flops=0"), 2, "nothing is compared"),
        (("folder", "--all", "--html", "a.html"), 2, "several are asked for"),
        (("mine.py", "--html", "none/a.html"), 2, "folder does not exist"),
        (("mine.py", "--html", "a", "--save", "./a"), 2, "is the file of --html too"),
        (("--function", "absent:step", "--export", "x.json"), 2, "must end in .speedscope.json"),
        (("--function", "mine"), 2, "module:name"),
        (("--function", "mine:a b"), 2, "module:name"),
        (("--function", "absent:step"), 2, "no module absent"),
        (("--function", "mine:absent"), 2, "mine has no absent"),
        (("--function", "mine:step"), 2, "needs arguments (w, x)"),
        (("--function", "mine:number"), 2, "gives int"),
        (("--function", "mine:raises"), 2, "KeyError: 'state' (mine.py, line"),
        (("--function", "mine:leaves"), 2, "SystemExit"),
        (("--function", "mine:interrupts"), 2, "KeyboardInterrupt"),
        (("--function", "mine:leaves_traced"), 2, "SystemExit"),
        (("--function", "mine:interrupts_traced"), 2, "KeyboardInterrupt"),
        (("--function", "mine:mute"), 2, "Mute"),
        (("--function", "mine:mute_traced"), 2, "Mute"),
        (("--function", "mine:aborts"), 2, "it said: F0000 file.cc:7] Check failed: that is so)"),
        (("--function", "mine:raiser"), 2, "mine:raiser"),
        (("--function", "mine:wrong"), 2, "dot_general"),
        (("--function", "mine:named", "--module", "x"), 2, "belongs to a dump"),
        (("--function", "mine:named", "--target", "cpu:1x2"), 2, "one number of devices"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(run, tmp_path, words, code, said):
    (tmp_path / "empty.pb").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "turn").symlink_to("turn")
    (tmp_path / "turns").mkdir()
    (tmp_path / "turns" / "module_0001.x.cpu_after_optimizations.hlo.pb").symlink_to("../turn")
    (tmp_path / "other.json").write_text('{"schema": "jaxcost.verify.v1"}')
    (tmp_path / "broken.json").write_text('{"schema": ')
    (tmp_path / "thin.json").write_text('{"schema": "jaxcost.audit.v1", "program": {}}')
    data = run(*words, code=code)
    shown = json.dumps(data["errors"], ensure_ascii=False)
    assert said in shown and all(error["remedy"] for error in data["errors"]) and "Traceback" not in shown


def test_a_line_of_a_project_in_a_folder_named_like_the_package_is_named(run, tmp_path, monkeypatch):
    (tmp_path / "jaxcost").mkdir()
    (tmp_path / "jaxcost" / "theirs.py").write_text("def raises():\n    raise KeyError('state')\n")
    monkeypatch.chdir(tmp_path / "jaxcost")
    data = run("--function", "theirs:raises", code=2)
    assert "KeyError: 'state' (theirs.py, line 2)" in data["errors"][0]["rule"]


def test_recorded_evidence_is_audited_by_the_module_beside_it(run, root):
    path = sorted((root / "hlo_dumps").glob("*decode_h100-1_*.json"))[0]
    data = run(path)
    assert data["program"]["target"]["text"] == "h100:1" and data["flops"]["total"] > 0


def test_an_audit_imports_no_jax_for_a_file(dumped):
    assert "jax" not in ALLOWED and callable(audited)
    import subprocess

    code = (
        "import sys\nfrom jaxcost.cli.program import main\n"
        f"assert main(['audit', {str(dumped())!r}, '--quiet']) == 0\n"
        "assert not {'jax', 'jaxlib', 'equinox', 'sympy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
