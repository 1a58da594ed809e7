"""A checkpoint against the manifest: exact, explained or open, each shown to turn."""

import functools
import json
import math
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
from jaxcost.observation.checkpoint.stored import Checkpoint, StoredFile, StoredTensor
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import program
from jaxcost.reconciliation.checkpoint import reconcile_checkpoint
from jaxcost.reconciliation.checkpoint_names import choose_layout, held_tensors
from jaxcost.reconciliation.layouts import LAYOUTS, expected_tensors, layout_name
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


# In memory, counted by hand: hidden 8, vocabulary 16, two layers of 4 query and 2 key heads of 2, an inner width of 12.
# One layer has 8 + 8 + 64 + 32 + 32 + 64 + 3 x 96 = 496 scalars; with the table and the last norm 1,128, untied 1,256.

LAYER = {
    "input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,), "self_attn.q_proj.weight": (8, 8),
    "self_attn.k_proj.weight": (4, 8), "self_attn.v_proj.weight": (4, 8), "self_attn.o_proj.weight": (8, 8),
    "mlp.gate_proj.weight": (12, 8), "mlp.up_proj.weight": (12, 8), "mlp.down_proj.weight": (8, 12),
}  # fmt: skip
LLAMA = {
    "model.embed_tokens.weight": (16, 8),
    **{f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in LAYER.items()},
    "model.norm.weight": (8,), "lm_head.weight": (16, 8),
}  # fmt: skip
TIED = {name: shape for name, shape in LLAMA.items() if name != "lm_head.weight"}
TREE = {
    "embed.tokens.weight": (16, 8), "groups.0.attn_norm.scale": (2, 8), "groups.0.attn.q_proj.weight": (2, 8, 4, 2),
    "groups.0.attn.k_proj.weight": (2, 8, 2, 2), "groups.0.attn.v_proj.weight": (2, 8, 2, 2),
    "groups.0.attn.o_proj.weight": (2, 4, 2, 8), "groups.0.mlp_norm.scale": (2, 8),
    "groups.0.mlp.gate.weight": (2, 8, 12), "groups.0.mlp.up.weight": (2, 8, 12),
    "groups.0.mlp.down.weight": (2, 12, 8), "final_norm.scale": (8,),
}  # fmt: skip
WIDTH = {"bf16": 2, "fp32": 4, "int32": 4, "uint8": 1, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
UP = "model.layers.1.mlp.up_proj.weight"


def in_memory(shapes, dtype="bf16", **more):
    """A checkpoint of arrays by name; a shape may bring a type of its own."""
    tensors = []
    for name, shape in shapes.items():
        own, dims = shape if shape and isinstance(shape[0], str) else (dtype, shape)
        tensors.append(StoredTensor(name, tuple(dims), own, math.prod(dims) * WIDTH[own], "one", name))
    size = sum(item.bytes for item in tensors)
    made = {"format": "safetensors", "name": "by hand", "files": (StoredFile("one", size + 100),)}
    return Checkpoint(**{**made, "tensors": tuple(tensors), **more})


@functools.cache
def toy(name="toy-untied", frozen=(), **options):
    """Predicted: a prefill where no option is given, else a training step."""
    build = functools.partial(jaxcost.training, frozen=list(frozen), **options) if options else jaxcost.prefill
    return predict(build(jaxcost.load(name), seq=1))


def against(prediction, shapes, layout="huggingface-llama", typed=False, **more):
    return reconcile_checkpoint(prediction, in_memory(shapes, **more), layout, typed=typed)


def shown(found, key):
    """A row as its document, without what is empty in every row here."""
    row = found.report.row(key).to_dict()
    assert row.pop("phase") == "" and f"{row['counter']}:{row['scope']}".rstrip(":") == key
    del row["counter"], row["scope"]
    row["explanations"] = [tuple(item.values()) for item in row["explanations"]]
    return row


def compared(unit, prediction, observation, status, *explanations, **rest):
    residual = observation - prediction
    return {"unit": unit, "prediction": prediction, "observation": observation, "residual": residual,
            "explanations": list(explanations), "status": status, **rest}  # fmt: skip


def test_the_document_of_an_exact_checkpoint():
    found = reconcile_checkpoint(toy(), in_memory(LLAMA, notes=("an index is not needed",)))
    document = found.to_dict()
    (report,) = document.pop("reports")
    assert document == {
        "checkpoint": {
            "format": "safetensors", "name": "by hand", "tensors": 21, "scalars": 1256, "payload_bytes": 2512,
            "file_bytes": 2612, "claims": {}, "quantisation": None, "notes": ["an index is not needed"],
            "files": [{"name": "one", "file_bytes": 2612, "header_bytes": None, "payload_bytes": None}],
            "layout": "huggingface-llama", "layout_exact": True, "layout_basis": "all 21 names agree exactly",
        },
        "answers": {
            "resident": {"bytes": 2512, "basis": "parameters as bf16, each storage once"},
            "optimizer": {"bytes": None, "reason": "no optimizer is declared", "stored_bytes": None,
                          "stored_reason": "the checkpoint holds no optimizer state"},
            "checkpoint": {"bytes": 2512, "file_bytes": 2612, "basis": "arrays as their headers say"},
        },
        "totals": dict.fromkeys(("declared_unique", "declared_named", "logical_scalars", "stored_scalars"), 1256),
        "status": "exact",
    }  # fmt: skip
    assert report["findings"] == [
        {"kind": "layout", "text": "names read as huggingface-llama: all 21 names agree exactly", "evidence": []},
        {"kind": "assumption", "text": "an index is not needed", "evidence": []},
    ]
    assert report["environment"] == {"family": "checkpoint", "origin": "headers", "layout": "huggingface-llama"}
    assert (report["name"], report["target"]) == ("toy-untied", "safetensors")
    assert report["case"]["digest"] == toy().case.digest
    for name, shape in LLAMA.items():
        assert shown(found, f"tensor:{name}") == compared("scalars", math.prod(shape), math.prod(shape), "exact")
    assert shown(found, "parameters.unique") == compared("scalars", 1256, 1256, "exact")
    assert shown(found, "parameters.storages") == compared("storages", 21, 21, "exact")
    assert shown(found, "checkpoint.scalars") == compared("scalars", 1256, 1256, "exact")
    assert shown(found, "checkpoint.parameter_bytes") == compared("bytes", 2512, 2512, "exact")
    assert len(found.report.rows) == 25


def test_what_is_stored_otherwise_is_open_in_its_row():
    found = against(toy(), {**LLAMA, UP: (8, 11), "extra": ("fp32", (3, 5))}, typed=True)
    said = "stored as [8, 11], declared [12, 8]"
    assert shown(found, f"tensor:{UP}") == compared("scalars", 96, 88, "open", reason=said)
    said = "no declared parameter is stored under this name (fp32[3, 5])"
    assert shown(found, "tensor:extra") == compared("scalars", 0, 15, "open", reason=said)
    assert shown(found, "parameters.unique") == compared("scalars", 1256, 1263, "open")
    assert shown(found, "parameters.storages") == compared("storages", 21, 22, "open")
    assert shown(found, "checkpoint.parameter_bytes") == compared("bytes", 2512, 2512 - 16 + 60, "open")
    found = against(toy(), {name: shape for name, shape in LLAMA.items() if name != UP})
    said = "declared, and no array is stored under this name"
    assert shown(found, f"tensor:{UP}") == compared("scalars", 96, 0, "open", reason=said)
    assert found.totals == {
        "declared_unique": 1256, "declared_named": 1256, "logical_scalars": 1160, "stored_scalars": 1160,
    }  # fmt: skip
    # A square turned over is no difference that a header could show.
    assert against(toy(), {**LLAMA, "model.layers.0.self_attn.q_proj.weight": (8, 8)}).status == "exact"


def test_two_differences_of_one_array_are_both_said():
    found = against(toy(), {**LLAMA, UP: ("fp32", (8, 12))}, typed=True)
    said = "stored as [8, 12], declared [12, 8], which is the declared shape transposed; type fp32, declared bf16"
    assert found.report.row(f"tensor:{UP}").reason == said
    said = "stored as [96], declared [12, 8], the same 96 scalars in another shape; type fp32, where most parameters "
    assert found.report.row("tensor:model.norm.weight").status == "exact"
    found = against(toy(), {**LLAMA, UP: ("fp32", (96,))})
    assert found.report.row(f"tensor:{UP}").reason == said + "here are bf16"


def test_codes_of_four_bits_and_what_lies_beside_them():
    beside = {
        "absmax": (("fp32", (2,)), "largest magnitude of each block of codes"),
        "quant_map": (("fp32", (16,)), "the values of the codes"),
        "nested_absmax": (("fp32", (1,)), "largest magnitude of each block of block scales"),
        "nested_quant_map": (("fp32", (256,)), "the values of the codes of block scales"),
        "quant_state.bitsandbytes__nf4": (("uint8", (93,)), "how the codes were made"),
    }
    extra = {f"{UP}.{suffix}": shape for suffix, (shape, _) in beside.items()}
    found = against(toy(), {**LLAMA, UP: ("uint8", (48, 1)), **extra})
    why = (-48, "two 4-bit codes share each stored byte",
           f"uint8[48, 1]; {UP}.absmax, {UP}.nested_absmax, {UP}.nested_quant_map")  # fmt: skip
    assert shown(found, f"tensor:{UP}") == compared("scalars", 96, 48, "explained", why)
    for suffix, ((_, (count,)), what) in beside.items():
        of = (count, what, f"lies beside {UP}")
        assert shown(found, f"tensor:{UP}.{suffix}") == compared("scalars", 0, count, "explained", of)
    whole = shown(found, "checkpoint.scalars")
    assert (whole["observation"], whole["status"]) == (1256 - 48 + 2 + 16 + 1 + 256 + 93, "explained")
    assert whole["explanations"][:2] == [why, (2, beside["absmax"][1], f"{UP}.absmax beside {UP}")]
    sizes = shown(found, "checkpoint.parameter_bytes")
    assert [amount for amount, *_ in sizes["explanations"]] == [48 - 192, 8, 64, 4, 1024, 93]
    assert (sizes["residual"], sizes["status"]) == (48 - 192 + 8 + 64 + 4 + 1024 + 93, "explained")
    assert shown(found, "parameters.unique") == compared("scalars", 1256, 1256, "exact")
    assert shown(found, "parameters.storages") == compared("storages", 21, 21, "exact")
    assert (found.status, found.totals["logical_scalars"]) == ("explained", 1256)
    # Beside an array that is not packed, they belong to nothing.
    found = against(toy(), {**LLAMA, f"{UP}.absmax": ("fp32", (2,))})
    assert found.status == found.report.row(f"tensor:{UP}.absmax").status == "open"


@pytest.mark.parametrize(
    ("stored", "beside", "config", "status"),
    [
        (("uint8", (12, 4)), {}, {"load_in_4bit": True}, "explained"),
        (("uint8", (48,)), {}, {"_load_in_4bit": True}, "explained"),
        (("uint8", (48, 1)), {}, {"bits": 4}, "explained"),
        (("uint8", (48, 1)), {}, {"bits": 8}, "open"),
        (("uint8", (48, 1)), {}, {"load_in_4bit": False}, "open"),
        (("uint8", (48, 1)), {}, None, "open"),
        (("uint8", (6, 8)), {}, {"bits": 4}, "open"),
        (("int8", (12, 4)), {}, {"bits": 4}, "open"),
        (("uint8", (12, 4)), {"_scale": ("fp32", (2,))}, None, "explained"),
        (("uint8", (12, 4)), {".quant_map": ("fp32", (16,))}, None, "open"),
        (("int8", (12, 8)), {".SCB": ("fp32", (12,))}, None, "explained"),
        (("int8", (12, 8)), {"_scale": ("fp32", (12,))}, None, "open"),
        (("int8", (8, 12)), {".SCB": ("fp32", (12,))}, None, "open"),
        (("fp8_e5m2", (12, 8)), {"_scale": ("fp32", (1,))}, None, "explained"),
        (("fp8_e4m3", (12, 8)), {"_scale_inv": ("fp32", (1,))}, None, "explained"),
        (("fp8_e4m3", (12, 8)), {".SCB": ("fp32", (12,))}, None, "open"),
        (("bf16", (12, 8)), {"_scale": ("fp32", (1,))}, None, "open"),
    ],
)
def test_codes_are_explained_by_their_scales_or_by_the_configuration(stored, beside, config, status):
    extra = {UP + suffix: shape for suffix, shape in beside.items()}
    found = against(toy(), {**LLAMA, UP: stored, **extra}, quantisation=config)
    assert found.status == status
    row = shown(found, f"tensor:{UP}")
    dtype, dims = stored
    if status == "explained":
        ((amount, reason, evidence),) = row["explanations"]
        assert amount == math.prod(dims) - 96
        assert reason.startswith("two 4-bit codes" if dtype == "uint8" else "8-bit codes, their scales")
        assert evidence == f"{dtype}{list(dims)}; {UP + next(iter(beside)) if beside else 'quantization_config'}"
    assert found.totals["logical_scalars"] == 1256 or status == "open"


def test_only_the_matrices_of_the_layers_are_packed():
    for name, half in (
        ("model.norm.weight", (4, 1)),
        ("lm_head.weight", (64, 1)),
        ("model.embed_tokens.weight", (64,)),
    ):
        found = against(toy(), {**LLAMA, name: ("uint8", half)}, quantisation={"bits": 4})
        assert found.status == found.report.row(f"tensor:{name}").status == "open"
        assert "packed" not in found.report.row(f"tensor:{name}").reason


def test_a_tied_table_under_both_names():
    found = against(toy("toy-tied"), LLAMA)
    reason = "lm_head.weight is declared tied to model.embed_tokens.weight and stored a second time"
    evidence = "bf16[16, 8] in one, apart from model.embed_tokens.weight"
    why = (128, reason, evidence)
    assert shown(found, "tensor:lm_head.weight") == compared("scalars", 0, 128, "explained", why)
    assert shown(found, "parameters.unique") == compared("scalars", 1128, 1256, "explained", why)
    assert shown(found, "parameters.storages") == compared("storages", 20, 21, "explained", (1, reason, evidence))
    assert shown(found, "checkpoint.scalars") == compared("scalars", 1128, 1256, "explained", why)
    assert shown(found, "checkpoint.parameter_bytes") == compared("bytes", 2256, 2512, "explained", (256, *why[1:]))
    finding = found.report.findings[-1]
    assert (finding.kind, finding.evidence) == ("stored_twice", (evidence,))
    assert finding.text.startswith(f"{reason}. Two storages are no tie")
    assert (found.totals["declared_unique"], found.totals["declared_named"]) == (1128, 1256)
    turned = against(toy("toy-tied"), {**LLAMA, "lm_head.weight": (8, 16)})
    assert turned.report.row("tensor:lm_head.weight").status == "open"
    finding = turned.report.findings[-1]
    assert finding.text.startswith(f"{reason}. Two storages") and finding.evidence == (
        evidence.replace("16, 8", "8, 16"),
    )
    # Under the second name alone, the first is missing.
    only = against(toy("toy-tied"), {name: shape for name, shape in LLAMA.items() if "embed" not in name})
    assert only.report.row("tensor:model.embed_tokens.weight").status == "open"


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (1,), "rotary frequencies, rebuilt from the configuration"),
        ("rotary_emb.inv_freq", (1,), "rotary frequencies, rebuilt from the configuration"),
        ("transformer.h.0.attn.bias", (1, 1, 0, 0), "the causal mask of GPT-2, rebuilt from its positions"),
        ("h.11.attn.bias", (1, 1, 0, 0), "the causal mask of GPT-2, rebuilt from its positions"),
        ("h.0.attn.masked_bias", (), "the score of a masked pair, a constant"),
        ("gpt_neox.layers.0.attention.masked_bias", (), "the score of a masked pair, a constant"),
        ("gpt_neox.layers.0.attention.bias", (1, 1, 9, 9), "the causal mask of GPT-NeoX, rebuilt from its positions"),
        ("model.embeddings.position_ids", (1, 7), "the numbers of the positions"),
        ("h.x.attn.bias", (1, 1, 0, 0), ""),
        ("model.inv_freq", (1,), ""),
        ("my_position_ids", (1,), ""),
        ("h.0.attn.bias", (1, 1, 4, 4), ""),
        ("h.0.attn.masked_bias", (1,), ""),
    ],
)
def test_each_known_buffer_has_its_name_its_shape_and_its_reason(name, shape, text):
    found = against(toy(), {**LLAMA, name: ("fp32", shape)})
    if not text:
        assert found.status == found.report.row(f"tensor:{name}").status == "open"
        return
    count = math.prod(shape)
    assert found.status == "explained" and found.report.row(f"tensor:{name}") is None
    finding = found.report.findings[-1]
    assert (finding.kind, finding.evidence) == ("buffer", (f"fp32{list(shape)}",))
    assert finding.text == f"{name} is a buffer of {count} scalars: {text}"
    why = (f"a buffer: {text}", f"{name}: fp32{list(shape)}")
    assert shown(found, "checkpoint.scalars") == compared("scalars", 1256, 1256 + count, "explained", (count, *why))
    assert shown(found, "checkpoint.parameter_bytes") == compared(
        "bytes", 2512, 2512 + 4 * count, "explained", (4 * count, *why)
    )
    assert shown(found, "parameters.unique") == compared("scalars", 1256, 1256, "exact")
    assert shown(found, "parameters.storages") == compared("storages", 21, 21, "exact")


def test_a_total_has_one_line_for_each_rule():
    names = [f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(2)]
    found = against(toy(), {**LLAMA, **dict.fromkeys(names, ("fp32", (1,)))})
    text = "a buffer: rotary frequencies, rebuilt from the configuration"
    why = (2, text, f"2 arrays, the first: {names[0]}: fp32[1]")
    assert shown(found, "checkpoint.scalars") == compared("scalars", 1256, 1258, "explained", why)


def test_a_checkpoint_in_one_other_type_has_twice_the_bytes():
    found = against(toy(), LLAMA, dtype="fp32")
    why = (2512, "1,256 scalars are stored as fp32; the case keeps them as bf16",
           "dtype fp32 in the headers of 21 arrays")  # fmt: skip
    assert shown(found, "checkpoint.parameter_bytes") == compared("bytes", 2512, 5024, "explained", why)
    assert shown(found, "checkpoint.scalars") == compared("scalars", 1256, 1256, "exact")
    typed = against(toy(), LLAMA, dtype="fp32", typed=True)
    assert shown(typed, "checkpoint.parameter_bytes") == compared("bytes", 2512, 5024, "open")


@pytest.mark.parametrize(
    ("size", "count", "status", "verdict"),
    [
        (2512, 1256, "exact", "exact"),
        (2511, 1256, "open", "exact"),
        (2513, 1255, "open", "counts something other than the stored scalars"),
    ],
)
def test_what_an_index_states(size, count, status, verdict):
    found = against(toy(), LLAMA, claims={"total_size": size, "total_parameters": count})
    said = {} if status == "exact" else {"reason": "the index states another total than its shards hold"}
    assert shown(found, "index.total_size") == compared("bytes", size, 2512, status, **said)
    own = "exact" if verdict == "exact" else "unmeasured"
    assert shown(found, "index.total_parameters") == compared("scalars", count, 1256, own, verdict=verdict)
    assert found.status == status  # another tool's counter decides nothing
    only = against(toy(), LLAMA, claims={"total_parameters": 1256}).report
    assert only.row("index.total_size") is None and only.row("index.total_parameters").status == "exact"


def test_the_nearest_layout_is_said_and_stays_open():
    found = reconcile_checkpoint(
        toy(), in_memory({**{k: v for k, v in LLAMA.items() if k != UP}, "a": (1,), "b": (1,)})
    )
    basis = (
        "no layout's names agree exactly; nearest is huggingface-llama: 20 of the 22 stored names are its own, 1 of "
        "its names are not stored"
    )
    assert found.layout.basis == basis and not found.layout.exact
    assert shown(found, "layout:huggingface-llama") == compared("names", 21, 20, "open", reason=basis)
    assert found.report.rows[0].counter == "layout"


# The rest of a train state, in memory

ADAM = {
    **{f"parameters.{name}": shape for name, shape in TREE.items()},
    **{f"optimizer.0.{field}.{name}": shape for field in ("mu", "nu") for name, shape in TREE.items()},
    "optimizer.0.count": ("int32", ()),
}  # fmt: skip


def state(prediction, shapes, **more):
    return against(prediction, shapes, "equinox", typed=True, format="orbax", dtype="fp32", **more)


@pytest.mark.parametrize(
    ("name", "role", "path"),
    [
        ("parameters.embed.tokens.weight", "parameter", "embed.tokens.weight"),
        ("params.head.weight", "parameter", "head.weight"),
        ("master.head.weight", "master", "head.weight"),
        ("optimizer.0.mu.head.weight", "first_moment", "head.weight"),
        ("opt_state.inner.0.mu.head.weight", "first_moment", "head.weight"),
        ("optimizer.trace.head.weight", "first_moment", "head.weight"),
        ("optimizer.0.nu.head.weight", "second_moment", "head.weight"),
        ("optimizer.0.v.head.weight", "second_moment", "head.weight"),
        ("optimizer.0.v_row.head.weight", "second_moment_row", "head.weight"),
        ("optimizer.0.v_col.head.weight", "second_moment_column", "head.weight"),
        ("optimizer.0.count", "step", ""),
        ("optimizer.mini_step", "step", ""),
        ("optimizer.gradient_step", "step", ""),
        ("optimizer.acc_grads.head.weight", "gradient_accumulator", "head.weight"),
        ("optimizer.loss_scale", "scale", ""),
        ("optimizer.0.unheard.head.weight", "other", "optimizer.0.unheard.head.weight"),
        ("random.key", "other", "random.key"),
    ],
)
def test_each_place_of_a_tree_has_its_role(name, role, path):
    beside = {"parameters.final_norm.scale": (8,), name: (8,)}
    held = {item.tensor.name: (item.role, item.path) for item in held_tensors(in_memory(beside, format="orbax"))}
    assert held == {"parameters.final_norm.scale": ("parameter", "final_norm.scale"), name: (role, path)}
    # Only Orbax keeps a state in parts; a tree without parameters as a part is one of parameters.
    for alone in (in_memory(beside), in_memory({"optimizer.x": (8,), "head.weight": (8,)}, format="orbax")):
        assert all((item.role, item.path) == ("parameter", item.tensor.name) for item in held_tensors(alone))


def test_a_state_of_adam_is_exact():
    found = state(toy("toy-tied", precision="fp32"), ADAM)
    assert found.status == "exact"
    assert shown(found, "state.step") == compared("scalars", 1, 1, "exact")
    assert shown(found, "state.first_moment:embed.tokens.weight") == compared("scalars", 128, 128, "exact")
    assert shown(found, "state.second_moment:groups.0.mlp.up.weight") == compared("scalars", 192, 192, "exact")
    assert shown(found, "checkpoint.state_bytes") == compared("bytes", 8 * 1128 + 4, 8 * 1128 + 4, "exact")
    assert found.answers["optimizer"] == {
        "bytes": 9028, "stored_bytes": 9028, "basis": "declared: precision fp32, optimizer adam",
    }  # fmt: skip
    assert found.totals["stored_scalars"] == 1128 and found.checkpoint.payload_bytes == 3 * 4 * 1128 + 4


def test_moments_that_are_missing_or_too_many():
    norm = "final_norm.scale"
    without = {name: shape for name, shape in ADAM.items() if not name.startswith("optimizer") or norm not in name}
    found = state(toy("toy-tied", precision="fp32"), without)
    said = "no moments are stored for it, though it is declared trainable"
    assert shown(found, f"tensor:{norm}") == compared("scalars", 8, 8, "open", reason=said)
    for role in ("first_moment", "second_moment"):
        said = "declared by the policy, and not stored"
        assert shown(found, f"state.{role}:{norm}") == compared("scalars", 8, 0, "open", reason=said)
    assert shown(found, "checkpoint.state_bytes") == compared("bytes", 9028, 9028 - 64, "open")

    frozen = toy("toy-tied", precision="fp32", frozen=("final_norm",))
    assert state(frozen, without).status == "exact"
    found = state(frozen, ADAM)
    said = "moments are stored for it, though it is declared frozen"
    assert shown(found, f"tensor:{norm}") == compared("scalars", 8, 8, "open", reason=said)
    said = "stored (fp32[8]), and declared by no object of the policy"
    assert shown(found, f"state.first_moment:{norm}") == compared("scalars", 0, 8, "open", reason=said)


def test_moments_of_another_shape_or_type():
    name = "optimizer.0.mu.groups.0.mlp.up.weight"
    found = state(toy("toy-tied", precision="fp32"), {**ADAM, name: ("bf16", (2, 12, 8))})
    said = "stored as [2, 12, 8], declared [2, 8, 12]; type bf16, declared fp32"
    key = "state.first_moment:groups.0.mlp.up.weight"
    assert shown(found, key) == compared("scalars", 192, 192, "open", reason=said)
    assert found.report.row("checkpoint.state_bytes").residual == -2 * 192


def test_counters_that_the_policy_does_not_list_are_explained():
    why = "step counters the policy does not list"
    found = state(toy("toy-tied", precision="fp32"), {**ADAM, "optimizer.1.count": ("int32", ())})
    row = compared("bytes", 9028, 9032, "explained", (4, why, "2 counters"))
    assert shown(found, "checkpoint.state_bytes") == row

    momentum = {name.replace(".mu.", ".trace."): shape for name, shape in ADAM.items() if ".nu." not in name}
    found = state(toy("toy-tied", precision="fp32", optimizer="momentum"), momentum)
    one = (1, "a step counter the policy does not list", "optimizer.0.count")
    assert shown(found, "state.step:optimizer.0.count") == compared("scalars", 0, 1, "explained", one)
    row = compared("bytes", 4 * 1128, 4 * 1128 + 4, "explained", (4, why, "1 counters"))
    assert shown(found, "checkpoint.state_bytes") == row
    assert found.status == "explained"
    found = state(
        toy("toy-tied", precision="fp32", optimizer="momentum"), {**momentum, "optimizer.0.count": ("int32", (2,))}
    )
    said = "stored (int32[2]), and declared by no object of the policy"
    assert shown(found, "state.step") == compared("scalars", 0, 2, "open", reason=said)


def test_what_adafactor_keeps_of_small_arrays():
    """None has two axes of 128 or more: rows and columns are placeholders of one scalar."""
    kept = {
        **{f"parameters.{name}": shape for name, shape in TREE.items()},
        **{f"optimizer.0.{field}.{name}": (1,) for field in ("v_row", "v_col") for name in TREE},
        **{f"optimizer.0.v.{name}": shape for name, shape in TREE.items()},
        "optimizer.0.count": ("int32", ()),
    }  # fmt: skip
    found = state(toy("toy-tied", precision="fp32", optimizer="adafactor"), kept)
    assert found.status == "exact"
    size = 4 * (11 + 11 + 1128) + 4
    assert shown(found, "checkpoint.state_bytes") == compared("bytes", size, size, "exact")
    assert shown(found, "state.second_moment_row:embed.tokens.weight") == compared("scalars", 1, 1, "exact")


def leaves(shapes):
    """The same arrays without their names."""
    return {f"leaf {n}": shape for n, shape in enumerate(shapes)}


def by_position(shapes, layout=None, **options):
    prediction = toy("toy-tied", precision="fp32", **options)
    return against(prediction, leaves(shapes), layout, typed=True, dtype="fp32", format="equinox_leaves", named=False)


UNROLLED = [
    (16, 8), *2 * [(8,), (8, 4, 2), (8, 2, 2), (8, 2, 2), (4, 2, 8), (8,), (8, 12), (8, 12), (12, 8)], (8,),
]  # fmt: skip


def test_leaves_without_names_are_known_by_their_place():
    tree, count = list(TREE.values()), ("int32", ())
    found = by_position(tree)
    basis = "11 arrays without names, by position: their shapes are those of the tree, in order"
    assert (found.status, found.layout.name, found.layout.basis, found.layout.exact) == (
        "exact",
        "equinox",
        basis,
        True,
    )
    assert found.answers["optimizer"]["stored_bytes"] is None
    found = by_position([*tree, count, *tree, *tree])
    assert (found.status, found.layout.basis) == ("exact", basis.replace("11 ", "34 "))
    assert found.answers["optimizer"]["stored_bytes"] == 9028
    assert shown(found, "state.second_moment:final_norm.scale") == compared("scalars", 8, 8, "exact")
    found = by_position(UNROLLED)
    assert (found.status, found.layout.name) == ("exact", "equinox-unrolled")
    assert by_position(UNROLLED, layers="unrolled").layout.name == "equinox-unrolled"
    assert by_position(tree, layers="unrolled").layout.name == "equinox"
    assert by_position(UNROLLED, "equinox").status == by_position(tree, "equinox-unrolled").status == "open"


def test_leaves_that_are_too_few_or_too_many():
    tree, count = list(TREE.values()), ("int32", ())
    found = by_position(tree[:-1])
    basis = "10 arrays without names; the tree has 11, or 34 with state"
    assert (found.layout.name, found.layout.exact, found.layout.basis) == ("equinox", False, basis)
    assert found.report.row("tensor:final_norm.scale").observation == 0
    assert found.report.row("tensor:embed.tokens.weight").status == "exact"
    found = by_position([*tree, count, *tree, *tree, (3,)])
    assert found.layout.basis == basis.replace("10 ", "35 ")
    said = "no declared parameter is stored under this name (fp32[3])"
    assert shown(found, "tensor:leaf 34") == compared("scalars", 0, 3, "open", reason=said)
    assert shown(found, "state.first_moment:final_norm.scale") == compared("scalars", 8, 8, "exact")
    found = by_position([*tree, (3,)])
    assert found.report.row("state.step").reason == "stored as [3], declared []; type fp32, declared int32"


# Layouts, two layers of each family

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "max_window_layers")

SMALL_FAMILIES = {
    "starcoder2": (
        {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16,
         "intermediate_size": 12, "norm_type": "layer_norm", "norm_epsilon": 1e-5, "use_bias": True, "rope_theta": 1e4,
         "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": False, "sliding_window": None},
        "model.layers.0.", {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,), "model.norm.bias": (8,),
                            "lm_head.weight": (16, 8)},
        {"input_layernorm.weight": (8,), "input_layernorm.bias": (8,), "post_attention_layernorm.weight": (8,),
         "post_attention_layernorm.bias": (8,), "self_attn.q_proj.weight": (8, 8), "self_attn.q_proj.bias": (8,),
         "self_attn.k_proj.weight": (4, 8), "self_attn.k_proj.bias": (4,), "self_attn.v_proj.weight": (4, 8),
         "self_attn.v_proj.bias": (4,), "self_attn.o_proj.weight": (8, 8), "self_attn.o_proj.bias": (8,),
         "mlp.c_fc.weight": (12, 8), "mlp.c_fc.bias": (12,), "mlp.c_proj.weight": (8, 12), "mlp.c_proj.bias": (8,)},
    ),
    "gpt_bigcode": (
        {"n_layer": 1, "n_embd": 8, "n_head": 4, "n_inner": 12, "n_positions": 6, "vocab_size": 16, "multi_query": True,
         "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False},
        "transformer.h.0.", {"transformer.wte.weight": (16, 8), "transformer.wpe.weight": (6, 8),
                             "transformer.ln_f.weight": (8,), "transformer.ln_f.bias": (8,), "lm_head.weight": (16, 8)},
        {"ln_1.weight": (8,), "ln_1.bias": (8,), "ln_2.weight": (8,), "ln_2.bias": (8,),
         "attn.c_attn.weight": (12, 8), "attn.c_attn.bias": (12,), "attn.c_proj.weight": (8, 8),
         "attn.c_proj.bias": (8,), "mlp.c_fc.weight": (12, 8), "mlp.c_fc.bias": (12,), "mlp.c_proj.weight": (8, 12),
         "mlp.c_proj.bias": (8,)},
    ),
    "falcon-new-decoder": (
        {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4, "num_kv_heads": 2, "vocab_size": 16,
         "new_decoder_architecture": True, "parallel_attn": True, "bias": False, "alibi": False,
         "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False, "model_type": "falcon"},
        "transformer.h.0.", {"transformer.word_embeddings.weight": (16, 8), "transformer.ln_f.weight": (8,),
                             "transformer.ln_f.bias": (8,), "lm_head.weight": (16, 8)},
        {"ln_attn.weight": (8,), "ln_attn.bias": (8,), "ln_mlp.weight": (8,), "ln_mlp.bias": (8,),
         "self_attention.query_key_value.weight": (16, 8), "self_attention.dense.weight": (8, 8),
         "mlp.dense_h_to_4h.weight": (32, 8), "mlp.dense_4h_to_h.weight": (8, 32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(SMALL_FAMILIES))
def test_a_small_model_of_the_family_has_these_names(family):
    config, layer, outside, inside = SMALL_FAMILIES[family]
    built = program(jaxcost.prefill(from_huggingface({"model_type": family, **config}), seq=1))
    wanted = {**outside, **{layer + name: shape for name, shape in inside.items()}}
    assert {item.name: item.shape for item in expected_tensors(built, f"huggingface-{family}")} == wanted
    prefix = layer.split(".")[0] + "."
    bare = {name.removeprefix(prefix): shape for name, shape in wanted.items()}
    assert {item.name: item.shape for item in expected_tensors(built, f"huggingface-{family}-base")} == bare


@pytest.mark.parametrize("name", sorted(MAPPINGS))
def test_two_layers_of_every_family_have_the_names_of_its_class(name):
    model = MAPPINGS[name]
    config = {key: 2 if key in LAYERS else value for key, value in model["config"].items()}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2]
    built = program(jaxcost.prefill(from_huggingface(config, name=name), seq=1))
    stored = {key: tuple(shape) for key, shape in model["outside"].items()}
    for layer in range(2):
        stored |= {f"{model['stack']}.{layer}.{key}": tuple(shape) for key, shape in model["parameters"].items()}
    layout = f"huggingface-{config['model_type']}"
    expected = expected_tensors(built, layout)
    assert {item.name: item.shape for item in expected} == stored
    ties = [sorted([item.alias, item.name]) for item in expected if item.alias != item.name]
    assert ties == [sorted(group) for group in model["tied"]]
    assert {item.name for item in expected if item.linear} == {
        key for key, shape in stored.items() if key.startswith(model["stack"]) and len(shape) == 2
    }
    assert layout_name(layout) in LAYOUTS


def test_a_family_of_several_layouts_that_say_the_same_is_exact():
    """Falcon and BLOOM name the arrays of a layer alike; without an embedding's norm nothing tells them apart."""
    names = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4, "vocab_size": 16, "bias": False,
             "multi_query": False, "parallel_attn": False, "alibi": False, "new_decoder_architecture": False,
             "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}  # fmt: skip
    arch = from_huggingface({"model_type": "falcon", **names})
    own, other = (program(jaxcost.prefill(model, seq=1)) for model in (arch, arch.replaced(family="mine")))
    stored = [item.name for item in expected_tensors(own, "huggingface-falcon")]
    assert not any("no name" in name for name in stored)
    assert {item.name for item in expected_tensors(own, "huggingface-bloom")} == set(stored)
    choice = choose_layout(own, stored, None)
    assert (choice.name, choice.exact) == ("huggingface-falcon", True)
    assert (
        choice.basis
        == f"all {len(stored)} names agree exactly; of the layouts with these names, that of the model's family"
    )
    choice = choose_layout(other, stored, None)
    assert (choice.name, choice.exact) == ("huggingface-falcon", True)  # the first of the table
    assert choice.basis == f"all {len(stored)} names agree exactly"


def test_the_tree_stands_in_the_order_of_its_fields():
    """Two groups of one layer, with norms of queries and keys: group by group, field by field."""
    data = jaxcost.load("qwen3-0.6b").to_data()
    group = {**data["groups"][0], "repeat": 1}
    arch = jaxcost.Architecture.from_data({**data, "groups": [group, group]})
    built = program(jaxcost.prefill(arch, seq=1))
    inside = [
        "attn_norm.scale", "attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.q_norm.scale",
        "attn.k_norm.scale", "attn.o_proj.weight", "mlp_norm.scale", "mlp.gate.weight", "mlp.up.weight",
        "mlp.down.weight",
    ]  # fmt: skip
    for layout, layer in (("equinox", ""), ("equinox-unrolled", "0.")):
        names = [f"groups.{n}.{layer}{name}" for n in range(2) for name in inside]
        found = [item.name for item in expected_tensors(built, layout)]
        assert found == ["embed.tokens.weight", *names, "final_norm.scale"]
    shapes = {item.name: item.shape for item in expected_tensors(built, "equinox")}
    assert shapes["groups.1.attn.k_norm.scale"] == (1, 128) and shapes["final_norm.scale"] == (1024,)


def test_a_parameter_without_a_name_in_a_layout_is_no_matrix_of_it():
    built = program(jaxcost.prefill(jaxcost.load("toy-untied"), seq=1))
    (one, two) = (item for item in expected_tensors(built, "huggingface-starcoder2") if "mlp/gate" in item.name)
    assert one.name == "model.layers.0.mlp/gate/weight (no name in this layout)"
    assert (one.shape, one.linear, one.parts, one.alias) == ((96,), False, ("group0/mlp/gate/weight",), one.name)
    assert two.name == one.name.replace("layers.0", "layers.1")
