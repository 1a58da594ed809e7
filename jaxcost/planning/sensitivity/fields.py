"""The fields of a case that may be varied, by record path or by a short name, and what moves together as one.

A field owns leaves of the records. Most own one (`kv_heads` is architecture.groups.0.layer.attention.kv_heads). An
object owns several that have no meaning apart and move as one: a parameter dtype with the objects stored in it, a mesh
with its ZeRO stage, a precision with all it lists, visible rows. What moved is read off the two records afterwards, so
a field that moved more than it owns is found out.

Every other path of a record is a field by itself, `architecture.groups.0.layer.mlp.bias`, also one that holds an
object (`...attention.rotary={"theta": 10000.0, "dimensions": 64}`). Outside are the phase, of which everything else
follows, and what no number depends on.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.execution import MESH_AXES
from jaxcost.contracts.record import parse_json
from jaxcost.contracts.state import state_policy

ROOTS = ("architecture", "workload", "state", "execution", "convention")
# Leaves that name or restate, and no number depends on; `absent` follows the branches by itself.
OUTSIDE = ("name", "family", "huggingface_id", "source", "notes", "absent")
_GROUP = "architecture.groups.{group}"
# short name: (record path, what it says)
LEAVES: dict[str, tuple[str, str]] = {
    "kv_heads": (f"{_GROUP}.layer.attention.kv_heads", "key/value heads; a divisor of the query heads"),
    "query_heads": (f"{_GROUP}.layer.attention.query_heads", "query heads"),
    "head_dim": (f"{_GROUP}.layer.attention.head_dim", "width of a head"),
    "mlp_width": (f"{_GROUP}.layer.mlp.width", "inner width of the MLP"),
    "layer_count": (f"{_GROUP}.repeat", "layers of the group"),
    "windows": (f"{_GROUP}.windows", "cycle of sliding windows, 0 for full attention"),
    "hidden_size": ("architecture.hidden_size", "hidden width"),
    "vocabulary_size": ("architecture.vocabulary_size", "rows of the token table"),
    "tied": ("architecture.tied", "one array for token table and head"),
    "batch": ("workload.batch", "global sequences per step"),
    "seq": ("workload.new_tokens", "new tokens per sequence"),
    "logits": ("workload.logits", "rows projected onto the vocabulary: all, final, N"),
    "accumulate": ("workload.accumulate", "microbatches per step"),
    "attention": ("workload.attention", "attention schedule"),
    "attention_block": ("workload.attention_block", "rows per block of the blockwise schedule"),
    "dropout": ("workload.dropout", "apply the model's dropout rates"),
    "lengths": ("workload.lengths", "lengths of ragged sequences"),
    "kv_dtype": ("state.kv_dtype", "dtype of keys and values in the cache"),
    "compute_dtype": ("state.compute_dtype", "dtype of operands of matrix products"),
    "score_dtype": ("state.score_dtype", "dtype of stored scores and probabilities"),
    "logits_dtype": ("state.logits_dtype", "dtype of the logits"),
    "frozen": ("state.frozen", "components loaded and not trained"),
    "zero": ("execution.zero", "ZeRO stage over the data axis the mesh has"),
    "layers": ("execution.layers", "scan or unrolled"),
    "sharding": ("execution.sharding", "explicit or auto"),
    "fsdp_group": ("execution.fsdp.group", "what is gathered over fsdp at a time"),
    "reshard": ("execution.fsdp.reshard", "gather weights again for the backward pass"),
    "prefetch": ("execution.fsdp.prefetch", "groups gathered ahead of their use"),
    "sequence_parallel": ("execution.sequence_parallel", "split rows between tensor-parallel regions"),
    "context_method": ("execution.context_method", "how keys and values of other rows arrive"),
    "pipeline_schedule": ("execution.pipeline.schedule", "how stages take turns"),
    "pipeline_layers": ("execution.pipeline.layers", "layers of each stage"),
    "pipeline_virtual": ("execution.pipeline.virtual", "virtual stages per rank"),
    "embedding_stage": ("execution.pipeline.embedding_stage", "stage of the embedding"),
    "head_stage": ("execution.pipeline.head_stage", "stage of final norm and head"),
    "gradient_sync": ("execution.gradient_sync", "when gradients are reduced"),
    "offload": ("execution.offload", "state that rests in host memory"),
    "remat_names": ("execution.remat_names", "what the policies that go by name keep"),
    "head_multiple": ("execution.head_multiple", "pad the query heads to a multiple"),
    "vocabulary_multiple": ("execution.vocabulary_multiple", "pad the vocabulary rows to a multiple"),
    "pairs": ("convention.attention_pairs", "which (query, key) pairs are counted"),
}
# The keys of a Hugging Face config that say the same.
ALIASES = {
    "num_key_value_heads": "kv_heads", "num_attention_heads": "query_heads", "num_hidden_layers": "layer_count",
    "intermediate_size": "mlp_width", "vocab_size": "vocabulary_size", "tie_word_embeddings": "tied",
    "freeze": "frozen", "window": "windows", "sliding_window": "windows", "dtype": "parameter_dtype",
    "past_tokens": "past", "new_tokens": "seq",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One declared field. `owns` are the record paths it may move; `changes` are the values they take for its value."""

    name: str
    what: str
    owns: tuple[str, ...]
    read: Callable[[Case], Any]
    changes: Callable[[Case, Any], Mapping[str, Any]]

    def is_owner(self, leaf: str) -> bool:
        """Return whether the field owns a leaf."""
        return any(leaf == path or leaf.startswith(path + ".") for path in self.owns)


def _leaf(name: str, path: str, what: str) -> Field:
    def changes(case: Case, value: Any) -> Mapping[str, Any]:
        before = value_at(case.to_data(), path)
        if path == "state.frozen":
            return {path: sorted(set(map(str, _as_list(value))))}
        listed = isinstance(before, list) or (path == "workload.lengths" and value is not None)
        return {path: _as_list(value) if listed else value}

    return Field(name, what, (path,), lambda case: value_at(case.to_data(), path), changes)


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [parse_value(part) for part in value.split(",") if part.strip()]
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _visible(case: Case, value: Any) -> Mapping[str, Any]:
    work = case.workload
    if work.phase == "training":
        rule = "a training step sees its own rows: they are not visible rows of a cache"
        raise reject("visible", value, rule, "vary seq")
    if isinstance(value, bool) or not isinstance(value, int):
        raise reject("visible", value, "must be a whole number of rows", f"write for example {2 * work.visible_tokens}")
    if value < work.new_tokens:
        rule = f"the {work.new_tokens} new rows of a sequence see themselves"
        raise reject("visible", value, rule, f"write {work.new_tokens} or more, or vary seq")
    return {"workload.past_tokens": value - work.new_tokens}


def _past(case: Case, value: Any) -> Mapping[str, Any]:
    if case.workload.phase == "training":
        raise reject("past", value, "training keeps no cache", "vary seq")
    return {"workload.past_tokens": value}


def _parameter_dtype(case: Case, value: Any) -> Mapping[str, Any]:
    """The objects that hold parameters; under the presets whose optimizer state is optax's, all that takes its type."""
    follow = case.state.name in ("fp32", "bf16", "mixed")
    own = (
        index
        for index, item in enumerate(case.state.objects)
        if item.role == "parameter" or (follow and item.count != "scalar")
    )
    return {"state.parameter_dtype": value, **{f"state.objects.{index}.dtype": value for index in own}}


def _precision(case: Case, value: Any) -> Mapping[str, Any]:
    training = case.workload.phase == "training"
    optimizer = case.state.optimizer if training else "adam"
    return {"state": state_policy(value, optimizer, training, case.state.frozen).to_data()}


def _optimizer(case: Case, value: Any) -> Mapping[str, Any]:
    if case.workload.phase != "training":
        raise reject("optimizer", value, f"phase {case.workload.phase} updates nothing", "vary it in training")
    return {"state": state_policy(case.state.name, value, True, case.state.frozen).to_data()}


def _mesh(case: Case, value: Any) -> Mapping[str, Any]:
    """`data=2,fsdp=4`, with `zero=N` among them; empty or `none` for one device. The ZeRO stage goes with the axes."""
    given = mesh_sizes(value)
    zero = given.pop("zero", 0 if "data" not in given else case.execution.zero)
    return {"execution.mesh": [{"name": axis, "size": size} for axis, size in given.items()], "execution.zero": zero}


def _shard(case: Case, value: Any) -> Mapping[str, Any]:
    """Shard parameters over N of the devices there are, which replicate them now: data gives, fsdp takes."""
    sizes = case.execution.mesh_sizes
    world = sizes.get("data", 1) * sizes.get("fsdp", 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise reject("shard", value, "must be a whole number of devices, 1 or more", "write for example 2")
    if world % value:
        rule = f"a shard degree divides the devices it shares state over: data x fsdp is {world}"
        remedy = "use a divisor" if world > 1 else "vary mesh, which also says how many devices there are"
        raise reject("shard", value, rule, remedy)
    found: dict[str, int] = {}
    for axis in MESH_AXES:
        size = {"data": world // value, "fsdp": value}.get(axis, sizes.get(axis, 1))
        if size > 1:
            found[axis] = size
    return {"execution.mesh": [{"name": axis, "size": size} for axis, size in found.items()]}


def _remat(case: Case, value: Any) -> Mapping[str, Any]:
    """A policy, and behind a comma the names that go with it."""
    policy, *names = value.split(",") if isinstance(value, str) else ("none" if value is None else value,)
    return {"execution.remat": policy, "execution.remat_names": [name.strip() for name in names]}


def _remat_text(case: Case) -> str:
    return ",".join((case.execution.remat, *case.execution.remat_names))


def _mesh_text(case: Case) -> str:
    run = case.execution
    text = ",".join(f"{axis}={size}" for axis, size in run.mesh_sizes.items()) or "none"
    return f"{text},zero={run.zero}" if run.zero else text


_STATE = ("state",)
OBJECTS: dict[str, Field] = {
    found.name: found
    for found in (
        Field("visible", "key/value rows a query sees: new rows and cached ones", ("workload.past_tokens",),
              lambda case: case.workload.visible_tokens, _visible),
        Field("past", "cached rows; visible rows follow", ("workload.past_tokens",),
              lambda case: case.workload.past_tokens, _past),
        Field("parameter_dtype", "dtype of the stored parameters, with the objects that hold them",
              ("state.parameter_dtype", "state.objects"), lambda case: case.state.parameter_dtype, _parameter_dtype),
        Field("precision", "which objects the state holds, in which types", _STATE,
              lambda case: case.state.name, _precision),
        Field("optimizer", "optimizer state and update", _STATE, lambda case: case.state.optimizer, _optimizer),
        Field("mesh", "mesh axes, with the ZeRO stage: tensor=8, or data=8,zero=3; none for one device",
              ("execution.mesh", "execution.zero"), _mesh_text, _mesh),
        Field("shard", "FSDP degree among the devices of data and fsdp that there are", ("execution.mesh",),
              lambda case: case.execution.degree("fsdp"), _shard),
        Field("remat", "what is recomputed, with the names that go with a policy", ("execution.remat",
              "execution.remat_names"), _remat_text, _remat),
    )
}  # fmt: skip
NAMES: tuple[str, ...] = (*LEAVES, *OBJECTS)
# Record paths that stand for an object.
_OBJECT_PATHS = {
    "workload.past_tokens": "past", "state.parameter_dtype": "parameter_dtype", "state.optimizer": "optimizer",
    "execution.mesh": "mesh", "execution.remat": "remat",
}  # fmt: skip


def field(name: str, case: Case, value: Any = None) -> Field:
    """Return the field of a short name, of `groupN.name` or of a record path, for a case; `value` is for the refusal.

    Raises:
        RejectedError: there is no such field, or several groups of layers have it.
    """
    given = name.strip()
    if given.split(".", 1)[0] in ROOTS:
        return _by_path(given, case, value)
    match = re.fullmatch(r"group([0-9]{1,6})[./](.+)", given)
    short = (match[2] if match else given).replace("-", "_")
    short = ALIASES.get(short, short)
    if short in OBJECTS and not match:
        return OBJECTS[short]
    if short not in LEAVES or (match and "{group}" not in LEAVES[short][0]):
        raise _unsupported(given, value)
    path, what = LEAVES[short]
    if "{group}" not in path:
        return _leaf(short, path, what)
    count = len(case.architecture.groups)
    if match and int(match[1]) >= count:
        rule = f"the layers stand in {count} group{'s' if count > 1 else ''}, counted from 0"
        raise reject(given, value, rule, "use group0" + (f" to group{count - 1}" if count > 1 else ""))
    if not match and count > 1:
        rule = f"{count} groups of layers each have it, and one field moves at a time"
        raise reject(given, value, rule, f"write group0.{short}, or a vector over all of them")
    index = int(match[1]) if match else 0
    return _leaf(f"group{index}.{short}" if count > 1 else short, path.format(group=index), what)


def _by_path(path: str, case: Case, value: Any) -> Field:
    parts = path.split(".")
    problems = not_a_field(path, value)
    if problems:
        raise RejectedError(problems)
    if path in _OBJECT_PATHS:
        return OBJECTS[_OBJECT_PATHS[path]]
    part_of_mesh = path.startswith("execution.mesh.")
    if len(parts) < 2 or parts[-1] in OUTSIDE or part_of_mesh or _missing(case.to_data(), parts):
        raise _unsupported(path, value, case)
    short = next((name for name, (known, _) in LEAVES.items() if known.replace("{group}", "0") == path), path)
    return _leaf(short if len(case.architecture.groups) == 1 else path, path, "")


def not_a_field(path: str, value: Any) -> tuple[Problem, ...]:
    """Return the problem of a record path from which the rest of a case follows."""
    if path != "workload.phase":
        return ()
    rule = "not a field of a sensitivity: state, logits and cache all follow from it"
    return (Problem(path, value, rule, "run the command once for each phase"),)


def _unsupported(name: str, value: Any, case: Case | None = None) -> RejectedError:
    known = [*NAMES, *ALIASES, *(paths(case) if case else ())]
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=3, cutoff=0.6)
    remedy = f"did you mean {' or '.join(near)}? " if near else ""
    name = name if name.isprintable() else ascii(name)
    return reject(name, value, "not a field that can be varied", f"{remedy}`jaxcost sensitivity --fields` lists them")


def paths(case: Case) -> Iterator[str]:
    """Yield the record path of every leaf of a case that can be varied."""
    for path in leaves(case):
        if path != "workload.phase" and not path.endswith(".name"):
            yield path


def leaves(case: Case) -> dict[str, Any]:
    """Return every leaf that a number may depend on, by record path. A mesh, and a list of plain values, is a leaf."""
    found: dict[str, Any] = {}
    data = case.to_data()
    for root in ROOTS:
        _walk(data[root], root, found)
    return found


def _walk(node: Any, path: str, found: dict[str, Any]) -> None:
    if path == "execution.mesh":
        found[path] = ",".join(f"{axis['name']}={axis['size']}" for axis in node) or "none"
    elif isinstance(node, dict):
        for name, value in node.items():
            if name not in OUTSIDE or (name == "name" and path.startswith("state.objects")):
                _walk(value, f"{path}.{name}", found)
    elif isinstance(node, list) and node and all(isinstance(item, dict) for item in node):
        for index, item in enumerate(node):
            _walk(item, f"{path}.{index}", found)
    else:
        found[path] = node


def _missing(data: Any, parts: Sequence[str]) -> bool:
    for part in parts:
        if isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        elif isinstance(data, dict) and part in data:
            data = data[part]
        else:
            return True
    return False


def value_at(data: Any, path: str) -> Any:
    """Return the value at a record path that exists."""
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def set_at(data: Any, path: str, value: Any) -> None:
    """Put a value at a record path that exists."""
    *above, last = path.split(".")
    for part in above:
        data = data[int(part)] if isinstance(data, list) else data[part]
    data[int(last) if isinstance(data, list) else last] = value


def mesh_sizes(value: Any) -> dict[str, int]:
    """Return axis to size, and `zero` where it is among them, of `data=8,zero=3` or of a mapping.

    Raises:
        RejectedError: it is neither, or an axis appears twice.
    """
    if isinstance(value, Mapping):
        return dict(value)
    found: dict[str, int] = {}
    text = "" if value is None or value == "none" else value
    if not isinstance(text, str):
        raise reject("mesh", value, "must be axes and their sizes", "write for example mesh=tensor=8")
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*(-?[0-9]{1,18})\s*", part)
        if match is None:
            raise reject("mesh", part, "not of the form AXIS=N", "write for example mesh=tensor=8")
        if match[1] in found:
            raise reject("mesh", match[1], "the axis appears twice", "give each axis one size")
        found[match[1]] = int(match[2])
    return found


def parse_value(text: str) -> Any:
    """Return the value that a text spells: a number, yes or no, none, JSON behind a bracket, else the text."""
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,40}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?", text):
        return float(text)
    if text.lower() in ("yes", "true", "no", "false"):
        return text.lower() in ("yes", "true")
    if text.lower() in ("none", "null"):
        return None
    return parse_json(text, "value") if text[:1] in ("[", "{", '"') else text


def described(case: Case | None = None) -> list[dict[str, Any]]:
    """Return every field: its name, the record paths it owns, what it says; of a case also its value.

    With a case the record paths that have no short name follow.
    """
    named = {**{name: known for name, (known, _) in LEAVES.items()}, **{n: f.owns[0] for n, f in OBJECTS.items()}}
    entries = []
    for name in sorted(named):
        what = LEAVES[name][1] if name in LEAVES else OBJECTS[name].what
        owns = [LEAVES[name][0].replace("{group}", "N")] if name in LEAVES else list(OBJECTS[name].owns)
        entry: dict[str, Any] = {"field": name, "owns": owns, "what": what}
        if case is not None:
            try:
                entry["value"] = shown_value(field(name, case).read(case))
            except RejectedError:
                entry["value"] = None  # several groups of layers each have one
        entries.append(entry)
    if case is not None:
        known = {path for entry in entries for path in (item.replace(".N.", ".0.") for item in entry["owns"])}
        values = leaves(case)
        entries += [
            {"field": path, "owns": [path], "what": "", "value": shown_value(values[path])}
            for path in paths(case)
            if path not in known
        ]
    return entries


def shown_value(value: Any) -> Any:
    """Return a value as JSON carries it; a list as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
