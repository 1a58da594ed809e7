"""A checkpoint against the manifest: exact, explained or open, each shown to turn."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

import jaxcost
from jaxcost.catalog import from_huggingface
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.checkpoint import read_checkpoint
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import program
from jaxcost.reconciliation.checkpoint import reconcile_checkpoint
from jaxcost.reconciliation.checkpoint_names import choose_layout
from jaxcost.reconciliation.layouts import LAYOUTS, expected_tensors
from jaxcost.schema import schema
from tests.observation.checkpoint.writing import write_safetensors, write_sharded

MAPPINGS = json.loads((Path(__file__).parents[1] / "data" / "state_mappings.json").read_text())["models"]


def mapping_of(name):
    """The stored names and shapes of a released model, as transformers builds it."""
    model = MAPPINGS[name]
    stored = {name: tuple(shape) for name, shape in model["outside"].items()}
    for layer in range(model["layers"]):
        for name, shape in model["parameters"].items():
            stored[f"{model['stack']}.{layer}.{name}"] = tuple(shape)
    return stored


def architecture(name):
    return from_huggingface(MAPPINGS[name]["config"], name=name)


def tensors_of(name, dtype="BF16", layout=None, tied=False):
    """Stored tensors of a model, without the second name of a tied table unless asked for."""
    built = program(jaxcost.prefill(jaxcost.load(name), seq=1))
    expected = expected_tensors(built, layout or "huggingface-llama")
    return {item.name: (dtype, item.shape) for item in expected if tied or item.alias == item.name}


def run(name, tensors, tmp_path, typed=False, precision=None, layout=None, config=None):
    arch = jaxcost.load(name) if isinstance(name, str) else name
    folder = tmp_path / "checkpoint"
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    case = jaxcost.prefill(arch, seq=1, **({"precision": precision} if precision else {}))
    training = predict(jaxcost.training(arch, seq=1))
    return reconcile_checkpoint(predict(case), read_checkpoint(folder), layout, typed=typed, training=training)


def status(found, key):
    row = found.report.row(key)
    return row.status if row else None


@pytest.mark.parametrize("name", sorted(MAPPINGS))
def test_every_family_has_the_names_and_shapes_of_its_class(name):
    stored, model = mapping_of(name), MAPPINGS[name]
    built = program(jaxcost.prefill(architecture(name), seq=1))
    choice = choose_layout(built, list(stored), None)
    assert choice.exact, choice.basis
    assert {item.name: item.shape for item in choice.expected} == stored
    unique = [item for item in choice.expected if item.alias == item.name]
    assert sum(item.scalars for item in unique) == model["unique"]
    assert sum(item.scalars for item in choice.expected) == model["named"]
    ties = [sorted([item.alias, item.name]) for item in choice.expected if item.alias != item.name]
    assert ties == [sorted(group) for group in model["tied"]]
    # and it can fail: one name less, one name more, one other name
    names = sorted(stored)
    other = next(item for item in names if "norm" in item or "ln" in item)
    for wrong in ([n for n in names if n != other], [*names, "x.weight"], [*(n for n in names if n != other), "x"]):
        assert not choose_layout(built, wrong, None).exact


def test_a_layout_holds_every_declared_scalar_or_says_that_it_has_no_name():
    built = program(jaxcost.prefill(jaxcost.load("qwen2.5-0.5b"), seq=1))
    unique = dict.fromkeys(LAYOUTS, 0)
    for name in LAYOUTS:
        unique[name] = sum(item.scalars for item in expected_tensors(built, name) if item.alias == item.name)
    assert set(unique.values()) == {494032768}
    missing = [item.name for item in expected_tensors(built, "huggingface-gpt2") if "no name" in item.name]
    assert any("mlp/gate" in name for name in missing)


def test_an_exact_checkpoint_and_each_way_to_leave_it(tmp_path):
    tensors = tensors_of("toy-untied")
    found = run("toy-untied", tensors, tmp_path, typed=True)
    assert (found.status, found.layout.name, found.layout.exact) == ("exact", "huggingface-llama", True)
    assert {row.status for row in found.report.rows} == {"exact"}
    name = "model.layers.1.mlp.down_proj.weight"
    for change, said in (
        ({name: ("BF16", (12, 8))}, "transposed"),
        ({name: ("BF16", (96,))}, "the same 96 scalars in another shape"),
        ({name: ("BF16", (4, 24))}, "the same 96 scalars in another shape"),
        ({name: ("BF16", (8, 11))}, "declared [8, 12]"),
        ({name: ("F32", (8, 12))}, "type fp32, declared bf16"),
        ({name: None}, "no array is stored"),
        ({name: None, "model.layers.1.mlp.w2.weight": ("BF16", (8, 12))}, "no array is stored"),
    ):
        changed = {key: value for key, value in {**tensors, **change}.items() if value is not None}
        found = run("toy-untied", changed, tmp_path, typed=True)
        assert found.status == "open"
        assert said in found.report.row(f"tensor:{name}").reason
    assert "no declared parameter" in found.report.row("tensor:model.layers.1.mlp.w2.weight").reason
    assert status(found, "parameters.unique") == "exact"  # the totals agree; only the names show the difference


def test_ties_are_storages_and_the_manifest_decides(tmp_path):
    """H29, cases a to c: vocabulary 1000, width 64."""

    def model(tied):
        data = jaxcost.load("toy-tied").to_data()
        data = {**data, "vocabulary_size": 1000, "hidden_size": 64, "tied": tied}
        data["groups"][0]["layer"]["attention"]["decoupled_width"] = True
        return jaxcost.Architecture.from_data(data)

    tied, untied = model(True), model(False)
    both = {
        item.name: ("BF16", item.shape)
        for item in expected_tensors(program(jaxcost.prefill(untied, seq=1)), "huggingface-llama")
    }
    one = {name: value for name, value in both.items() if name != "lm_head.weight"}
    rest = sum(a * (b[0] if b else 1) for a, *b in (shape for _, shape in both.values())) - 128_000

    found = run(untied, one, tmp_path)  # (a) tie = false, one table: a contradiction
    assert found.status == "open" and status(found, "tensor:lm_head.weight") == "open"
    row = found.report.row("parameters.unique")
    assert (row.prediction - rest, row.observation - rest) == (128_000, 64_000)

    found = run(tied, both, tmp_path)  # (b) tie = true, two tables: one unique, two stored, said so
    assert found.status == "explained"
    assert found.totals["declared_unique"] - rest == 64_000 and found.totals["stored_scalars"] - rest == 128_000
    row = found.report.row("parameters.storages")
    assert (row.residual, row.explanations[0].amount) == (1, 1)
    assert "no tie, whatever their values" in next(f.text for f in found.report.findings if f.kind == "stored_twice")
    both["lm_head.weight"] = ("BF16", (64, 1000))
    assert run(tied, both, tmp_path).status == "open"  # a second table of another shape is no copy of the first

    found = run(tied, one, tmp_path)  # (c) tie = true, one table
    assert found.status == "exact"
    assert found.totals["declared_unique"] - rest == found.totals["stored_scalars"] - rest == 64_000


SMALL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
         "intermediate_size": 128, "vocab_size": 1000, "head_dim": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "stored_head", "expected", "unique"),
    [
        ({"model_type": "llama", **SMALL}, False, "open", 128_000),  # no flag: the class does not tie
        ({"model_type": "llama", **SMALL}, True, "exact", 128_000),
        ({"model_type": "gemma", **SMALL}, False, "exact", 64_000),  # no flag: the class ties
        ({"model_type": "mistral3", "tie_word_embeddings": True,
          "text_config": {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": None, **SMALL}},
         True, "exact", 128_000),
    ],
)  # fmt: skip
def test_the_configuration_of_the_decoder_decides_on_ties(tmp_path, config, stored_head, expected, unique):
    """H29, cases d and e: the nested flag, and the class's default where no flag is given."""
    arch = from_huggingface(config)
    named = expected_tensors(program(jaxcost.prefill(arch, seq=1)), "huggingface-llama")
    tensors = {t.name: ("BF16", t.shape) for t in named if stored_head or t.name != "lm_head.weight"}
    tables = sum(
        t.scalars for t in named if t.alias == t.name and t.name.endswith(("embed_tokens.weight", "head.weight"))
    )
    assert (run(arch, tensors, tmp_path).status, tables) == (expected, unique)


def test_buffers_are_no_parameters_and_only_known_ones_are_let_through(tmp_path):
    tensors = tensors_of("toy-untied")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (1,))
    found = run("toy-untied", tensors, tmp_path)
    assert found.status == "explained"
    assert status(found, "parameters.unique") == "exact" and status(found, "checkpoint.scalars") == "explained"
    assert "rotary frequencies" in next(f.text for f in found.report.findings if f.kind == "buffer")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (2,))
    found = run("toy-untied", tensors, tmp_path)
    assert found.status == "open"
    assert (
        "the configuration gives [1]" in found.report.row("tensor:model.layers.0.self_attn.rotary_emb.inv_freq").reason
    )
    tensors = {**tensors_of("toy-untied"), "model.layers.0.self_attn.rotary_emb.cache": ("F32", (1,))}
    assert run("toy-untied", tensors, tmp_path).status == "open"


def test_released_gpt2_has_masks_and_no_prefix(tmp_path):
    tensors = tensors_of("gpt2", "F32", "huggingface-gpt2-base")
    tensors.update({f"h.{layer}.attn.bias": ("F32", (1, 1, 1024, 1024)) for layer in range(12)})
    found = run("gpt2", tensors, tmp_path)
    assert (found.status, found.layout.name) == ("explained", "huggingface-gpt2-base")
    assert found.totals["logical_scalars"] == 124_439_808
    assert found.totals["stored_scalars"] == 124_439_808 + 12 * 1024 * 1024
    tensors["h.3.attn.bias"] = ("F32", (1, 1, 512, 1024))
    assert run("gpt2", tensors, tmp_path).status == "open"


def test_one_other_type_is_explained_unless_a_type_was_asked_for(tmp_path):
    tensors = tensors_of("toy-untied", "F32")
    found = run("toy-untied", tensors, tmp_path)
    row = found.report.row("checkpoint.parameter_bytes")
    assert (found.status, row.residual, row.status) == ("explained", 2 * 1256, "explained")
    assert run("toy-untied", tensors, tmp_path, typed=True).status == "open"
    assert run("toy-untied", tensors, tmp_path, typed=True, precision="fp32_inference").status == "exact"
    tensors["model.norm.weight"] = ("BF16", (8,))  # one array unlike the rest
    found = run("toy-untied", tensors, tmp_path)
    assert found.status == "open"
    assert "most parameters here are fp32" in found.report.row("tensor:model.norm.weight").reason


def test_three_answers_about_bytes(tmp_path):
    answers = run("toy-tied", tensors_of("toy-tied", "F32"), tmp_path).answers
    assert answers["resident"]["bytes"] == 2 * 1128
    assert answers["optimizer"]["bytes"] == 2 * 4 * 1128 + 4 and answers["optimizer"]["stored_bytes"] is None
    assert answers["checkpoint"]["bytes"] == 4 * 1128 < answers["checkpoint"]["file_bytes"]


def packed(name, scales=True, shape=lambda a, b: (a * b // 2, 1)):
    """H28: every projection inside the layers two codes a byte, with block scales of 64."""
    tensors = {}
    for key, (_, dims) in tensors_of(name).items() if isinstance(name, str) else name.items():
        if ".layers." in key and len(dims) == 2:
            tensors[key] = ("U8", shape(*dims))
            if scales:
                tensors[f"{key}.absmax"] = ("F32", (-(-dims[0] * dims[1] // 64),))
                tensors[f"{key}.quant_map"] = ("F32", (16,))
        else:
            tensors[key] = ("BF16", dims)
    return tensors


def test_packed_codes_stand_for_the_declared_scalars(tmp_path):
    """H28: 6,738,415,616 logical scalars, 3,500,412,928 counted naively."""
    arch = architecture("llama2-7b")
    plain = {key: ("BF16", shape) for key, shape in mapping_of("llama2-7b").items()}
    found = run(arch, packed(plain), tmp_path)
    assert found.status == "explained"
    assert found.totals["logical_scalars"] == found.totals["declared_unique"] == 6_738_415_616
    naive = sum(a * (b[0] if b else 1) for key, (_, (a, *b)) in packed(plain, scales=False).items())
    assert naive == 3_500_412_928
    bare = run(arch, packed(plain, scales=False), tmp_path)  # nothing says that the bytes are packed
    assert bare.status == "open" and bare.totals["logical_scalars"] == naive
    assert "packed, if two codes share a byte" in bare.report.row("tensor:model.layers.0.mlp.up_proj.weight").reason
    config = {"quantization_config": {"load_in_4bit": True}}
    said = run(arch, packed(plain, scales=False, shape=lambda a, b: (a, b // 2)), tmp_path, config=config)
    assert said.status == "explained" and said.totals["logical_scalars"] == 6_738_415_616
    wrong = packed(plain)
    wrong["model.layers.0.mlp.up_proj.weight"] = ("U8", (11008 * 4096 // 4, 1))
    assert run(arch, wrong, tmp_path).status == "open"


def test_eight_bit_codes_need_their_scales(tmp_path):
    tensors = tensors_of("toy-untied")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = ("F8_E4M3", tensors[name][1])
    assert run("toy-untied", tensors, tmp_path).status == "open"
    tensors[f"{name}_scale_inv"] = ("F32", (1, 1))
    assert run("toy-untied", tensors, tmp_path).status == "explained"


def test_an_index_is_held_against_its_shards(tmp_path):
    index = write_sharded(tmp_path / "m", tensors_of("toy-untied"), 3)
    prediction = predict(jaxcost.prefill(jaxcost.load("toy-untied"), seq=1))
    assert reconcile_checkpoint(prediction, read_checkpoint(tmp_path / "m")).status == "exact"
    data = json.loads(index.read_text())
    data["metadata"] = {"total_size": 2511, "total_parameters": 1}
    index.write_text(json.dumps(data))
    found = reconcile_checkpoint(prediction, read_checkpoint(tmp_path / "m"))
    assert status(found, "index.total_size") == "open"
    assert "other than" in found.report.row("index.total_parameters").verdict


def test_two_layouts_of_one_set_of_names_are_told_apart_by_the_family_or_not_at_all(tmp_path):
    arch = jaxcost.load("gpt2")
    other = arch.replaced(family="gpt_bigcode")
    unknown = arch.replaced(family="mine")
    conv = tensors_of("gpt2", "BF16", "huggingface-gpt2")
    linear = tensors_of("gpt2", "BF16", "huggingface-gpt_bigcode")
    assert set(conv) == set(linear) and conv != linear
    assert run(arch, conv, tmp_path).status == run(other, linear, tmp_path).status == "exact"
    assert run(arch, linear, tmp_path).status == run(other, conv, tmp_path).status == "open"
    found = run(unknown, conv, tmp_path)
    assert found.status == "open" and "several layouts" in found.layout.basis
    assert run(unknown, conv, tmp_path, layout="huggingface-gpt2").status == "exact"


def test_layouts_are_named_or_agree_exactly(tmp_path):
    tensors = tensors_of("toy-untied")
    assert run("toy-untied", tensors, tmp_path, layout="huggingface-mistral").status == "exact"
    found = run("toy-untied", tensors, tmp_path, layout="jaxcost")
    assert found.status == "open" and found.layout.basis == "named by the user"
    own = {
        item.name: ("BF16", item.shape)
        for item in expected_tensors(program(jaxcost.prefill(jaxcost.load("toy-untied"), seq=1)), "jaxcost")
    }
    assert run("toy-untied", own, tmp_path).layout.name == "jaxcost"
    with pytest.raises(RejectedError):
        run("toy-untied", tensors, tmp_path, layout="huggingface-unheard-of")
    renamed = {key.replace("model.", "net."): value for key, value in tensors.items()}
    found = run("toy-untied", renamed, tmp_path)
    assert found.status == "open" and not found.layout.exact and status(found, f"layout:{found.layout.name}") == "open"


def test_a_405b_sharded_folder_takes_seconds_and_little_memory(tmp_path, fresh_environment, root):
    stored = {name: ("BF16", shape) for name, shape in mapping_of("llama3.1-405b").items()}
    folder = tmp_path / "m"
    write_sharded(folder, stored, 191)
    (folder / "config.json").write_text(json.dumps(MAPPINGS["llama3.1-405b"]["config"]))
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > 800e9
    code = (
        "import sys; from jaxcost.cli.program import main; code = main(sys.argv[1:]); sys.stdout.flush();"
        # The mark of this program alone: ru_maxrss would keep that of the process that started it.
        "peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(peak[0], file=sys.stderr); sys.exit(code)"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "reconcile", str(folder), str(folder), "--json"], cwd=root,
        env=fresh_environment | {"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["schema"], data["status"]) == ("jaxcost.reconcile.v1", "exact")
    assert data["totals"]["stored_scalars"] == MAPPINGS["llama3.1-405b"]["unique"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert int(done.stderr.split()[-1]) * 1024 < 500e6
    assert seconds < 5 or used.ru_utime < 5, (seconds, used)


def test_the_command_ends_as_it_should(run_jaxcost, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    tensors = tensors_of("toy-untied")
    write_safetensors(folder / "model.safetensors", tensors)
    done = run_jaxcost("reconcile", "toy-untied", str(folder), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 0 and "huggingface-llama" in done.stdout, done.stderr
    assert "<html" in (tmp_path / "page.html").read_text()
    write_safetensors(folder / "model.safetensors", {**tensors, "model.norm.weight": ("BF16", (4, 2))})
    done = run_jaxcost("reconcile", "toy-untied", str(folder), "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1 and data["status"] == "open"
    jsonschema.validate(data, schema("jaxcost.reconcile.v1"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "totals": {}}, schema("jaxcost.reconcile.v1"))
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    done = run_jaxcost("reconcile", "toy-untied", str(folder), "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["schema"] == "jaxcost.rejected.v1"
    assert run_jaxcost("reconcile", "toy-untied", str(tmp_path / "none")).returncode == 3
    assert run_jaxcost("reconcile", "toy-untied", str(folder), "--layout", "x").returncode == 2
