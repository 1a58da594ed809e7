"""Malformed inputs: each ends with exit code 2, a rule and a remedy, no traceback, and nothing written.

The corpus is made here, from good inputs and one fault each. Most run in this process; a few run as a user would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import load_architecture, manifest_toml
from jaxcost.cli import main

GOOD = manifest_toml(load_architecture("toy-tied"))
CASE = ("--phase", "prefill", "--seq", "4")
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


GEMMA2: dict[str, Any] = CONFIG | {"model_type": "gemma2", "head_dim": 16}


def swap(old: str, new: str) -> str:
    """The good manifest with one piece of text replaced."""
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


def without(start: str) -> str:
    """The good manifest without the line that begins with `start`."""
    lines = GOOD.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(start)]
    assert len(kept) < len(lines)
    return "".join(kept)


MANIFESTS: dict[str, str | bytes] = {
    "empty file": "",
    "blank file": "\n\n   \n",
    "truncated": GOOD[: len(GOOD) // 2].rsplit("\n", 1)[0] + "\nhidden",
    "not toml": "hello, this is not a manifest",
    "json in a toml file": json.dumps(CONFIG),
    "not utf-8": GOOD.encode() + b'notes = "\xff\xfe"\n',
    "utf-16": GOOD.encode("utf-16"),
    "binary": bytes(range(256)) * 16,
    "null bytes": "\0" * 64,
    "null byte in text": GOOD.replace('"toy-tied"', '"toy\0tied"'),
    "size as float": swap("hidden_size = 8", "hidden_size = 8.0"),
    "size as text": swap("hidden_size = 8", 'hidden_size = "8"'),
    "size as boolean": swap("hidden_size = 8", "hidden_size = true"),
    "size as list": swap("hidden_size = 8", "hidden_size = [8]"),
    "size as date": swap("hidden_size = 8", "hidden_size = 2024-01-01"),
    "size negative": swap("hidden_size = 8", "hidden_size = -8"),
    "size zero": swap("repeat = 2", "repeat = 0"),
    "size huge": swap("hidden_size = 8", "hidden_size = 1" + "0" * 40),
    "size of 5,000 digits": swap("hidden_size = 8", "hidden_size = 1" + "0" * 5000),
    "flag as integer": swap("tied = true", "tied = 1"),
    "flag as text": swap("tied = true", 'tied = "true"'),
    "number nan": swap("epsilon = 1e-05", "epsilon = nan"),
    "number infinite": swap("epsilon = 1e-05", "epsilon = inf"),
    "number negative": swap("epsilon = 1e-05", "epsilon = -1e-05"),
    "number zero": swap("epsilon = 1e-05", "epsilon = 0.0"),
    "base zero": swap("theta = 10000.0", "theta = 0.0"),
    "base negative": swap("theta = 10000.0", "theta = -10000.0"),
    "key missing": without("hidden_size"),
    "key unknown": "hiden_size = 8\n" + GOOD,
    "key twice": GOOD.replace("hidden_size = 8", "hidden_size = 8\nhidden_size = 8"),
    "table twice": GOOD + "\n[groups.layer]\n",
    "no groups": GOOD.split("\n[[groups]]")[0],
    "groups as table": GOOD.replace("[[groups]]", "[groups]"),
    "groups empty": GOOD.split("\n[[groups]]")[0] + "groups = []\n",
    "heads do not divide": swap("kv_heads = 2", "kv_heads = 3"),
    "heads times width differ": swap("head_dim = 2", "head_dim = 4"),
    "decoupled although equal": swap("query_bias = false", "decoupled_width = true\nquery_bias = false"),
    "rotary wider than a head": swap("dimensions = 2", "dimensions = 4"),
    "rotary odd": swap("dimensions = 2", "dimensions = 1"),
    "absent and present": swap('"adapters",', '"adapters", "rotary_positions",'),
    "neither absent nor present": swap('"adapters",', ""),
    "absent twice": swap('"adapters",', '"adapters", "adapters",'),
    "absent unknown": swap('"adapters",', '"adapters", "aerials",'),
    "bias without scale": swap("scale = true, bias = false", "scale = false, bias = true"),
    "kind unknown": swap('kind = "rms"', 'kind = "batch"'),
    "activation unknown": swap('activation = "silu"', 'activation = "mish"'),
    "rate of one": swap("embedding = 0.0", "embedding = 1.0"),
    "nested 10,000 deep": GOOD + "\nx = " + "[" * 10_000 + "]" * 10_000 + "\n",
    "dotted 10,000 deep": ".".join(["a"] * 10_000) + " = 1\n" + GOOD,
    "inline 10,000 deep": "x = " + "{ a = " * 10_000 + "1" + " }" * 10_000 + "\n",
    "expected not whole": GOOD + '\n[expected]\n"parameters.unique" = 1128.0\n',
    "expected boolean": GOOD + '\n[expected]\n"parameters.unique" = true\n',
    "expected nested": GOOD + "\n[expected]\nparameters.unique = 1128\n",
    "expected unknown": GOOD + '\n[expected]\n"parameters.unicorn" = 1128\n',
    "expected as list": "expected = [1]\n" + GOOD,
    "event ends first": GOOD + '\n[liveness]\nobjects = [{ name = "a", bytes = 1, birth = 2, death = 1 }]\n',
    "event without bytes": GOOD + '\n[liveness]\nobjects = [{ name = "a", birth = 0, death = 1 }]\n',
    "events negative": GOOD + '\n[liveness]\nobjects = [{ name = "a", bytes = -1, birth = 0, death = 1 }]\n',
    "events share a name": GOOD + "\n[liveness]\nobjects = ["
    + '{ name = "a", bytes = 1, birth = 0, death = 1 }, ' * 2 + "]\n",
    "no events": GOOD + "\n[liveness]\nobjects = []\n",
}  # fmt: skip

JSON: dict[str, str | bytes] = {
    "empty": "",
    "null": "null",
    "list": "[]",
    "number": "3",
    "text": '"llama"',
    "empty object": "{}",
    "truncated": json.dumps(CONFIG)[:-20],
    "trailing comma": '{"model_type": "llama",}',
    "two documents": json.dumps(CONFIG) * 2,
    "key twice": '{"hidden_size": 64, ' + json.dumps(CONFIG)[1:],
    "nan": json.dumps(CONFIG | {"rms_norm_eps": float("nan")}),
    "infinity": json.dumps(CONFIG | {"rope_theta": float("inf")}),
    "number overflows": json.dumps(CONFIG)[:-1] + ', "rope_theta": 1e999}',
    "integral float": json.dumps(CONFIG | {"hidden_size": 64.0}),
    "boolean size": json.dumps(CONFIG | {"num_hidden_layers": True}),
    "null size": json.dumps(CONFIG | {"vocab_size": None}),
    "5,000 digits": json.dumps(CONFIG)[:-1] + ', "intermediate_size": 1' + "0" * 5000 + "}",
    "nested 10,000 deep": '{"model_type": "llama", "id2label": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "lone surrogate": json.dumps(CONFIG | {"_name_or_path": "\ud800"}),
    "not utf-8": json.dumps(CONFIG).encode() + b"\xff",
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(CONFIG).encode(),
    "model type missing": json.dumps({key: value for key, value in CONFIG.items() if key != "model_type"}),
    "model type without a type": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "model type unknown": json.dumps(CONFIG | {"model_type": "perceiver"}),
    "experts": json.dumps(CONFIG | {"num_experts": 8}),
    "heads do not divide": json.dumps(CONFIG | {"num_key_value_heads": 3}),
    "hidden does not divide": json.dumps(CONFIG | {"num_attention_heads": 6}),
    "heads by layer": json.dumps(CONFIG | {"num_key_value_heads": [2, 2]}),
    "heads null": json.dumps(CONFIG | {"num_attention_heads": None}),
    "width an object": json.dumps(CONFIG | {"intermediate_size": {"value": 128}}),
    "layer types too few": json.dumps(GEMMA2 | {"layer_types": ["full_attention"]}),
    "layer types too many": json.dumps(GEMMA2 | {"layer_types": ["full_attention"] * 3}),
    "layer types empty": json.dumps(GEMMA2 | {"layer_types": []}),
    "layer types not text": json.dumps(GEMMA2 | {"layer_types": [None, True]}),
    "layer types unknown": json.dumps(GEMMA2 | {"layer_types": ["full_attention", "chunked_attention"]}),
    "layer types nested": json.dumps(GEMMA2 | {"layer_types": [["full_attention"], ["full_attention"]]}),
    "window a list": json.dumps(GEMMA2 | {"sliding_window": [4096, 0]}),
    "window a float": json.dumps(GEMMA2 | {"sliding_window": 4096.0}),
    "window null with windowed layers": json.dumps(GEMMA2 | {"sliding_window": None}),
    "rotary flags too few": json.dumps(CONFIG | {"model_type": "smollm3", "no_rope_layers": [1]}),
    "rotary scaling a list": json.dumps(CONFIG | {"rope_scaling": [8.0]}),
    "rotary scaling nested": json.dumps(CONFIG | {"rope_scaling": {"rope_type": {"rope_type": "llama3"}}}),
    "rotary scaling twice": json.dumps(
        CONFIG | {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "default"}}
    ),
    "rotary scaling of two types": json.dumps(CONFIG | {"rope_scaling": {"rope_type": "default", "type": "linear"}}),
    "attention config a list": json.dumps({"model_type": "mpt", "attn_config": [True]}),
    "attention config nested": json.dumps({"model_type": "mpt", "attn_config": {"attn_config": {"alibi": True}}}),
    "two names that disagree": json.dumps({"model_type": "gpt2", "n_embd": 64, "hidden_size": 128, "n_head": 2}),
    "text config null": json.dumps(CONFIG | {"text_config": None}),
    "text config a list": json.dumps({"model_type": "llava", "text_config": [CONFIG]}),
    "text config without a type": json.dumps({"model_type": "llava", "text_config": {"hidden_size": 64}}),
    "text config with a tower beside it": json.dumps(
        {"model_type": "llava", "text_config": CONFIG, "vision_config": {"hidden_size": 8}}
    ),
    "text config in a text config": json.dumps(
        {"model_type": "llava", "text_config": CONFIG | {"text_config": CONFIG}}
    ),
    "architectures an object": json.dumps(CONFIG | {"architectures": {"0": "LlamaForCausalLM"}}),
    "architectures of a classifier": json.dumps(CONFIG | {"architectures": ["LlamaForTokenClassification"]}),
    "quantized": json.dumps(CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "latent attention": json.dumps({"model_type": "deepseek_v3", "kv_lora_rank": 512}),
    "an encoder": json.dumps({"model_type": "bert", "hidden_size": 768}),
    "a hybrid": json.dumps({"model_type": "jamba"}),
}

YAML: dict[str, str | bytes] = {
    "empty": "",
    "a list": "- base_emb_dim\n",
    "key twice": "base_emb_dim: 64\nbase_emb_dim: 64\n",
    "alias": "a: &a [1]\nb: *a\n",
    "many aliases": "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50)),
    "tag": "base_emb_dim: !!python/name:os.system\n",
    "truncated": "mlp_activations: ['silu', ",
    "not utf-8": b"run_name: \xff\n",
    "binary": bytes(range(256)),
    "nested 10,000 deep": "x: " + "[" * 10_000 + "]" * 10_000 + "\n",
    "size a float": "base_emb_dim: 64.0\n",
    "size a boolean": "base_emb_dim: yes\n",
    "size a date": "base_emb_dim: 2024-01-01\n",
    "key not text": "3: 4\nnull: 1\n",
    "block unknown": "decoder_block: mamba\n",
    "remat without an equal": "remat_policy: save_qkv_proj\n",
    "axis filled at run time": "ici_fsdp_parallelism: -1\n",
    "axis without a layout": "ici_fsdp_parallelism: 1\nici_expert_parallelism: 8\n",
    "key unknown": "a_new_kind_of_layer: true\n",
}

CASES: dict[str, str] = {
    "no phase": "model = 'toy-tied'\nseq = 4\n",
    "no seq": "model = 'toy-tied'\nphase = 'prefill'\n",
    "no model": "phase = 'prefill'\nseq = 4\n",
    "unknown key": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nsequence = 4\n",
    "key twice": "model = 'toy-tied'\nphase = 'prefill'\nphase = 'prefill'\nseq = 4\n",
    "float seq": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4.0\n",
    "boolean batch": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nbatch = true\n",
    "text batch": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nbatch = '1'\n",
    "unknown model": "model = 'toytied2'\nphase = 'prefill'\nseq = 4\n",
    "model not text": "model = 1\nphase = 'prefill'\nseq = 4\n",
    "mesh not a table": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nmesh = 8\n",
    "mesh axis unknown": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nmesh = { expert = 8 }\n",
    "mesh size negative": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nmesh = { fsdp = -8 }\n",
    "frozen unknown": "model = 'toy-tied'\nphase = 'training'\nseq = 4\nfrozen = ['group7']\n",
    "frozen a number": "model = 'toy-tied'\nphase = 'training'\nseq = 4\nfrozen = 7\n",
    "logits nested": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nlogits = { rows = 1 }\n",
    "lengths too few": "model = 'toy-tied'\nphase = 'prefill'\nbatch = 2\nseq = 4\nlengths = [4]\n",
    "precision a number": "model = 'toy-tied'\nphase = 'prefill'\nseq = 4\nprecision = 16\n",
    "empty case": "",
    "not toml": "phase: prefill",
}

TOY = ("estimate", "toy-tied")
OPTIONS: dict[str, tuple[str, ...]] = {
    "no arguments": ("estimate",),
    "no phase": (*TOY, "--seq", "4"),
    "no seq": (*TOY, "--phase", "prefill"),
    "unknown phase": (*TOY, "--phase", "serving", "--seq", "4"),
    "unknown option": (*TOY, *CASE, "--colour", "red"),
    "unknown command": ("estimat", "toy-tied"),
    "option of another issue": ("plan", "run"),
    "value missing": (*TOY, "--phase"),
    "too many models": ("estimate", "toy-tied", "gpt2", *CASE),
    "batch text": (*TOY, *CASE, "--batch", "two"),
    "batch float": (*TOY, *CASE, "--batch", "2.0"),
    "batch negative": (*TOY, *CASE, "--batch", "-2"),
    "batch huge": (*TOY, *CASE, "--batch", "9" * 30),
    "batch of 5,000 digits": (*TOY, *CASE, "--batch", "9" * 5000),
    "batch nan": (*TOY, *CASE, "--batch", "nan"),
    "batch empty": (*TOY, *CASE, "--batch", ""),
    "past in prefill": (*TOY, *CASE, "--past", "4"),
    "two new tokens in decode": (*TOY, "--phase", "decode", "--seq", "2"),
    "optimizer unknown": (*TOY, "--phase", "training", "--seq", "4", "--optimizer", "shampoo"),
    "precision of inference in training": (*TOY, "--phase", "training", "--seq", "4", "--precision", "bf16_inference"),
    "mesh text": (*TOY, *CASE, "--mesh", "8"),
    "mesh twice": (*TOY, *CASE, "--mesh", "fsdp=2,fsdp=2"),
    "mesh zero": (*TOY, *CASE, "--mesh", "fsdp=0"),
    "mesh with a hole": (*TOY, *CASE, "--mesh", "fsdp=2,,tensor=2"),
    "mesh does not divide": (*TOY, *CASE, "--mesh", "tensor=3"),
    "mesh beyond the batch": (*TOY, *CASE, "--mesh", "data=2"),
    "zero without data": (*TOY, "--phase", "training", "--seq", "4", "--zero", "3"),
    "zero unknown": (*TOY, "--phase", "training", "--seq", "4", "--zero", "4"),
    "accumulate does not divide": (*TOY, "--phase", "training", "--seq", "4", "--batch", "3", "--accumulate", "2"),
    "logits beyond": (*TOY, *CASE, "--logits", "5"),
    "logits text": (*TOY, *CASE, "--logits", "most"),
    "final logits in training": (*TOY, "--phase", "training", "--seq", "4", "--logits", "final"),
    "dropout in prefill": (*TOY, *CASE, "--dropout"),
    "freeze unknown": (*TOY, "--phase", "training", "--seq", "4", "--freeze", "attention"),
    "freeze everything": (
        *TOY,
        "--phase",
        "training",
        "--seq",
        "4",
        *"--freeze embed --freeze group0 --freeze final_norm".split(),
    ),
    "positions beyond the table": ("estimate", "gpt2", "--phase", "prefill", "--seq", "1025"),
    "remat unknown": (*TOY, "--phase", "training", "--seq", "4", "--remat", "most"),
    "pairs unknown": (*TOY, *CASE, "--pairs", "some"),
    "case file missing": ("estimate", "--case", "no-such-case.toml"),
    "case file a folder": ("estimate", "--case", "."),
    "model a folder": ("estimate", ".", *CASE),
    "model missing": ("estimate", "missing.toml", *CASE),
    "model empty": ("estimate", "", *CASE),
    "model with a null byte": ("estimate", "toy\0tied", *CASE),
    "model endless": ("estimate", "a" * 5000, *CASE),
    "model a device": ("estimate", "/dev/zero", *CASE),
    "html into nowhere": (*TOY, *CASE, "--html", "no/such/folder/page.html"),
    "html a folder": (*TOY, *CASE, "--html", "."),
    "import of a name": ("import", "gpt2"),
    "import into another format": ("import", "config.json", "-o", "out.yaml"),
    "case file without a model file": ("import", "config.json", "--case-file", "case.toml"),
    "show without a model": ("show",),
    "show of nothing": ("show", "none-such"),
    "fuzz text": ("verify", "--fuzz", "many"),
    "fuzz negative": ("verify", "--fuzz", "-1"),
    "seed negative": ("verify", "--fuzz", "1", "--seed", "-1"),
    "record and replay": ("verify", "--record", "a", "--replay", "b"),
}

Run = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run in an empty folder, check the manner of the refusal and return its message; `files` are put there first."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **files: str | bytes) -> str:
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        for extra in ((), ("--json",)):
            code = main([*arguments, *extra])
            out, err = capsys.readouterr()
            text = out + err
            assert code == 2, f"exit code {code}\n{text}"
            assert "Traceback" not in text and "internal fault" not in text
            if extra:
                assert not err
                document = json.loads(out)
                assert document["schema"] == "jaxcost.rejected.v1"
                assert all(error["rule"] and error["remedy"] for error in document["errors"])
            else:
                assert not out and err.startswith("rejected: ")
                message = err
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
        return message

    return run


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest(refuse: Run, name: str) -> None:
    refuse("estimate", "m.toml", *CASE, m__toml=MANIFESTS[name])


@pytest.mark.parametrize("name", JSON)
def test_json(refuse: Run, name: str) -> None:
    refuse("estimate", "config.json", *CASE, config__json=JSON[name])


@pytest.mark.parametrize("name", JSON)
def test_import_writes_nothing(refuse: Run, name: str) -> None:
    refuse("import", "config.json", "-o", "out.toml", config__json=JSON[name])


@pytest.mark.parametrize("name", YAML)
def test_maxtext(refuse: Run, name: str) -> None:
    refuse("estimate", "--case", "run.yml", run__yml=YAML[name])
    refuse("import", "run.yml", "-o", "out.toml", "--case-file", "case.toml", run__yml=YAML[name])


@pytest.mark.parametrize("name", CASES)
def test_case_file(refuse: Run, name: str) -> None:
    refuse("estimate", "--case", "case.toml", case__toml=CASES[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_options(refuse: Run, name: str) -> None:
    refuse(*OPTIONS[name])


def test_the_corpus_is_large_and_its_bases_are_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(map(len, (MANIFESTS, JSON, YAML, CASES, OPTIONS))) >= 200
    (tmp_path / "m.toml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "c.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "case.toml").write_text("model = 'm.toml'\nphase = 'prefill'\nseq = 4\n", encoding="utf-8")
    assert main(["estimate", str(tmp_path / "m.toml"), *CASE, "--quiet"]) == 0
    assert main(["estimate", str(tmp_path / "c.json"), *CASE, "--quiet"]) == 0
    assert main(["estimate", "--case", str(tmp_path / "case.toml"), "--quiet"]) == 0
    nested = {"model_type": "llava", "text_config": CONFIG}
    for good in (GEMMA2, CONFIG | {"model_type": "smollm3"}, {"model_type": "mpt"}, {"model_type": "gpt2"}, nested):
        (tmp_path / "good.json").write_text(json.dumps(good), encoding="utf-8")
        assert main(["import", str(tmp_path / "good.json"), "--quiet"]) == 0
    (tmp_path / "run.yml").write_text("base_emb_dim: 64\n", encoding="utf-8")
    assert main(["import", str(tmp_path / "run.yml"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_all_problems_come_together(refuse: Run) -> None:
    message = refuse(
        "estimate", "toy-tied", "--phase", "serving", "--batch", "x", "--mesh", "rank=2", "--remat", "most"
    )
    assert message.startswith("rejected: 5 problems")
    for part in ("workload.phase", "workload.batch", "execution.mesh.0.name", "execution.remat", "seq"):
        assert part in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_unreadable_and_unwritable(refuse: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text(GOOD, encoding="utf-8")
    secret.chmod(0)
    assert main(["estimate", str(secret), *CASE]) == 2
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    refuse(*TOY, *CASE, "--html", str(folder / "page.html"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.toml", MANIFESTS["nested 10,000 deep"]),
        ("binary.toml", MANIFESTS["binary"]),
        ("deep.json", JSON["nested 10,000 deep"]),
        ("wide.json", '{"model_type": "llama", ' + ", ".join(f'"k{i}": {i}' for i in range(5000)) + "}"),
    ],
)
def test_as_a_user_would_see_it(
    run_jaxcost: Callable[..., Any], tmp_path: Path, name: str, content: str | bytes
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run_jaxcost("estimate", name, *CASE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rejected: ") and "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("words", [("--remat", "block"), ("--remat-names", "up")])
def test_a_plan_of_recomputation_takes_no_policy(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "recompute", "toy-tied", "--phase", "training", "--seq", "8", "--budget", "4096"]
    assert main([*asked, *words]) == 2
    assert words[0] in (said := capsys.readouterr().err) and "the search chooses what is recomputed" in said


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "run", "--plan", "LONG"),
        ("estimate", "--case", "LONG"),
        ("estimate", "toy-tied", *CASE, "--html", "LONG"),
        ("measure", "toy-tied", *CASE, "--record", "LONG"),
        ("verify", "toy-tied", *CASE, "--observation", "LONG"),
    ],
)
def test_a_path_longer_than_any_name(words: tuple[str, ...], refuse: Run) -> None:
    assert "no name that long" in refuse(*(word.replace("LONG", "x" * 5000 + ".toml") for word in words))
