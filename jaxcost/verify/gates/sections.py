"""Every line of every gate of the cost-model document, with the checks it rests on or why none can be written.

Sections as in the document: a gate closes each of its chapters, and a few stand inside one. Lines are in our words.
"""

from __future__ import annotations

from jaxcost.verify.gates.common import Sentence

ARTICLE = "a rule for the text of the article, of which this package holds no part"
RUNS = "needs the step to be run on a device; what is declared and compiled does not show it"

_Lines = tuple[tuple[str, tuple[str, ...] | str], ...]
_HELD = ("bytes.dtype", "bytes.copies", "bytes.placement", "bytes.lifetime")

SECTIONS: dict[str, tuple[str, _Lines]] = {
    "0x00F": (
        "what a substantial number answers",
        (
            ("it names the object that is counted", ("row.object", "row.apart")),
            (
                "it names the fields that give its shape and multiplicity",
                ("row.fields", "axes.listed", "axes.declared"),
            ),
            ("it has a unit", ("row.unit", "row.exact")),
            ("it names its accounting convention", ("row.convention",)),
            ("it says what is left out", ("row.omitted",)),
            ("it says whether it is analytical, reported or observed", ("row.evidence",)),
        ),
    ),
    "0x01I": (
        "the manifest, before any ledger",
        (
            (
                "architecture: the graph and its stored tensors are given",
                ("case.records", "case.absences", "parameters.axes"),
            ),
            (
                "workload: phase, extents, logits rows and state transition are given",
                ("row.phase", "flops.logits", "kv.extents"),
            ),
            ("representation: each state class has its own type", ("bytes.dtype", "state.declared")),
            ("ownership: an amount is global or of one device, and says which", ("device.scopes", "ownership.divided")),
            (
                "convention: operations, transfer boundary and unit are given",
                ("row.convention", "row.unit", "traffic.boundary"),
            ),
            ("observation: the evidence class is given, with its artefacts", ("row.evidence", "evidence.claims")),
        ),
    ),
    "0x02J": (
        "parameters",
        (
            ("stored axes follow the implementation that is declared", ("parameters.axes", "schema.compared")),
            ("each optional family is counted or declared absent", ("case.absences", "walk.parameters_equal_the_walk")),
            ("tied names are one storage by identity", ("parameters.aliases",)),
            ("the toy's count is that of a network that was built", ("recorded.parameters",)),
            (
                "the analytical total is that of a walk of its own",
                ("walk.parameters_equal_the_walk", "parameters.closure"),
            ),
            (
                "12 L d^2 holds under its conditions, and is no law",
                ("walk.parameters_ignore_the_workload", "proofs.parameters"),
            ),
        ),
    ),
    "0x03J": (
        "state against live objects, schema first",
        (
            ("roles agree at the same point of the run", ("recorded.state", "state.roles")),
            ("shapes agree, as a multiset", ("schema.compared", "recorded.state")),
            ("types agree role by role", ("schema.compared", "state.declared")),
            ("placements agree role by role", "a program recorded without a device keeps no memory kind of its state"),
            ("bytes agree role by role, and not only in the sum", ("recorded.state", "walk.state_equals_the_walk")),
        ),
    ),
    "0x03K": (
        "persistent state",
        (
            (
                "every byte belongs to a named object with count, type, copies, placement and lifetime",
                ("row.object", *_HELD, "state.recount", "device.recount"),
            ),
            ("loaded and trainable parameters are two numbers", ("state.populations",)),
            ("the compute type is no evidence of a copy that stays", ("state.declared",)),
            ("Adam's two moments follow from its recurrences", ("state.moments",)),
            ("twenty bytes a parameter is one policy, the sum of its own objects", ("policies.sums",)),
            ("policies of 12, 16 and 20 bytes show different objects", ("policies.sums",)),
            ("late creation, and when gradients go, are given in time", ("state.lifecycle", "state.roles")),
            ("another shape of state and another type are told apart", ("state.roles", "state.recount")),
            ("the global state is not divided before ownership is declared", ("state.global",)),
            ("checkpoint bytes are not resident bytes", ("state.checkpoint",)),
        ),
    ),
    "0x04I": (
        "a recomputation policy, when it is run",
        (
            ("the loss and the gradients stay within tolerance", RUNS + "; the tests of the network run both ways"),
            ("random numbers are drawn as before", RUNS + "; the tests of the network run both ways"),
            ("the measured peak is lower at the intended size", RUNS),
            ("step time and communication change acceptably", RUNS),
            ("no host memory is used unsaid", ("bytes.placement", "ownership.scopes")),
        ),
    ),
    "0x04J": (
        "activations",
        (
            ("every saved object names the backward formula that needs it", ("saved.needed_by",)),
            ("unique storages are counted, not names", ("saved.unique",)),
            (
                "every object has birth, last use, release, type, placement and bytes",
                ("saved.lifetime", "bytes.dtype", "bytes.placement", "saved.recount"),
            ),
            ("a peak is a largest cut through what is alive at once", ("peak.cut", "peak.not_supplied")),
            ("workspace, allocated, reserved and external memory are separate rows", ("recorded.memory",)),
            ("34 and 5 are made of named objects", ("saved.closure", "proofs.activations")),
            (
                "the comparison in 97, 17 and 1 GiB is named a projection",
                ARTICLE + "; its figures are among the test data",
            ),
            (
                "policies show the work, the transfers and the random numbers they add",
                ("replay.named", "primitives.recount", "traffic.closure"),
            ),
            ("inspection of saved tensors, and snapshots, say what they cannot see", ("counters.visible",)),
            ("ownership and tiled attention are accounts of their own", ("device.scopes", "ownership.scopes")),
        ),
    ),
    "0x05K": (
        "forward FLOPs",
        (
            ("2 m n k counts m n dot products of k multiply-adds", ("flops.recount", "flops.matrix")),
            ("every product names the axes of its input, its sum and its output", ("flops.axes", "flops.matrix")),
            ("fewer key/value heads save no pairwise work", ("flops.heads", "walk.kv_heads_leave_pairwise_work")),
            ("24 and 4 belong to full heads and a classic MLP of four widths", ("proofs.blocks",)),
            ("26 and 4 are made of grouped heads and a gated MLP of 3.5 widths", ("proofs.blocks",)),
            ("legal, scheduled and observed pairs are three numbers", ("flops.pairs",)),
            ("all-row and final-row logits are two contracts", ("flops.logits", "walk.logits_rows_scale_the_head")),
            (
                "what is no product stays visible, without a common coefficient",
                ("primitives.terms", "primitives.families", "primitives.closure"),
            ),
            ("the forward ledger closes on exact integers", ("walk.forward_equals_the_walk", "flops.closure")),
            ("backward, replay, update and communication are accounts of their own", ("flops.closure", "update.apart")),
        ),
    ),
    "0x06J": (
        "training",
        (
            ("dX and dW keep the axes of the chain rule", ("flops.matrix", "flops.gradients")),
            (
                "three times forward names which gradients are needed, and what it excludes",
                ("flops.gradients", "walk.backward_counts_gradients_needed", "row.omitted"),
            ),
            ("pairwise work and the vocabulary stay explicit", ("flops.pairs", "flops.logits")),
            ("every term of replay names its region and how often", ("replay.named", "replay.only_in_training")),
            ("training closes against the forward ledger by integers", ("flops.gradients", "flops.closure")),
            ("6 N D names N, D, the pairwise part and that nothing is replayed", ("walk.training_is_six_n_d",)),
            ("Kaplan, Chinchilla, Megatron and PaLM stay contracts of their own", ("papers.contracts",)),
            ("the extra vocabulary term is held against Megatron's equation 3", ("papers.composite",)),
            ("update and communication are ledgers of their own", ("update.apart", "collectives.recount")),
            ("conclusions of scaling studies are not repeated", ARTICLE),
        ),
    ),
    "0x07K": (
        "ownership",
        (
            ("global, cluster, persistent and peak are four numbers", ("ownership.scopes",)),
            ("every state class has a shard degree and a replication group", ("ownership.divided", "ownership.shares")),
            (
                "eight ranks under the six-object policy close exactly",
                ("walk.owned_state_equals_the_walk", "device.recount"),
            ),
            ("the 16 bytes of ZeRO's example do not stand for another policy", ("state.declared", "policies.sums")),
            (
                "group, resharding, prefetch and staging of gradients are visible",
                ("ownership.fsdp", "walk.gathered_groups_equal_the_walk"),
            ),
            (
                "input and output of a collective, ideal sends and measured traffic are apart",
                ("collectives.ends", "collectives.trips", "collectives.closure"),
            ),
            (
                "tensor parallelism is traced through column and row products",
                ("ownership.tensor", "walk.partial_sums_keep_their_extent"),
            ),
            (
                "pipeline, sequence and context split different axes, with transfers of their own",
                ("ownership.axes", "collectives.named", "collectives.reasons"),
            ),
            ("nothing is divided by the number of devices", ("ownership.divided", "walk.one_gradient_is_reduced")),
            ("that distributed updates are right is another article's matter", ARTICLE),
        ),
    ),
    "0x08D": (
        "transfers, before any ratio",
        (
            (
                "a transfer names object, elements, type, direction, multiplicity, boundary, phase and assumption",
                ("traffic.boundary", "traffic.direction", "traffic.schedule", "traffic.recount", "row.phase"),
            ),
            (
                "an isolated product reads both operands once and writes its result once",
                ("traffic.one_pass", "walk.one_pass_keeps_all_operands"),
            ),
            ("the rows stay beside every sum that is divided", ("traffic.closure",)),
            ("observed counters are set beside the rows and overwrite none", ("residuals.leave_both_sides",)),
        ),
    ),
    "0x09G": (
        "phases",
        (
            (
                "every byte is stored, live, scheduled to move, or observed, and says which",
                (*_HELD, "traffic.schedule", "collectives.only_on_a_mesh"),
            ),
            ("an intensity states its one pass and its memory", ("traffic.schedule", "traffic.boundary")),
            (
                "schedules of full and of grouped heads are not mixed",
                ("walk.attention_moves_eight_payloads", "flops.heads"),
            ),
            (
                "training, prefill and decode have rows, state and output of their own",
                ("kv.extents", "flops.logits", "replay.only_in_training"),
            ),
            (
                "stored keys and values and what is read of them are two ledgers",
                ("kv.apart", "walk.cache_equals_the_walk"),
            ),
            ("what belongs to other articles stays with them", ARTICLE),
        ),
    ),
    "0x0AJ": (
        "the estimator",
        (
            ("a mismatch, or a residual that stays open, fails the command", ("commands.fail",)),
            ("the manifest is checked before anything is counted", ("commands.fail",)),
            ("all ledgers derive from one manifest", ("case.records", "digest.covers")),
            ("state is compared by axes, type, kind, trainability and aliases", ("schema.compared",)),
            ("prediction and observation have separate provenance", ("witnesses.apart", "residuals.leave_both_sides")),
            ("every counter names what it can see", ("counters.visible",)),
            ("explanations of a residual close arithmetically, or it stays open", ("residuals.close",)),
            (
                "what was not supplied or not measured stays so",
                ("peak.not_supplied", "evidence.unmeasured", "null.reason", "documents.nulls"),
            ),
            ("classes of evidence do not mix", ("row.evidence", "evidence.claims")),
        ),
    ),
    "0x0BE": (
        "papers",
        (
            ("all required contracts are there, each within its source", ("papers.contracts", "papers.sources")),
            ("the teaching article is named a composite source", ("papers.composite",)),
            ("symbols are translated before they are used", ("papers.symbols",)),
            ("sets of operations, backward and replay are explicit", ("papers.contracts",)),
            ("activation bytes are not compared with training FLOPs", ("papers.closed",)),
            ("model and hardware FLOPs keep separate denominators", ("papers.denominators",)),
            ("global arithmetic is not called a rank's run time", ("papers.contracts",)),
            ("numbers are not compared without a manifest for all", ("papers.closed",)),
        ),
    ),
    "0x0DA": (
        "failures",
        (
            ("each has a fault, a symptom, a check and a status", ("failures.complete",)),
            ("a status is rejected, open, unmeasured, explained or exact", ("statuses.known",)),
            (
                "a record is more than its last number: schema, case, digest, versions",
                ("case.records", "digest.covers"),
            ),
        ),
    ),
    "0x0DD": (
        "the whole article",
        (
            ("architecture and workload are one immutable manifest", ("case.frozen", "case.records")),
            ("stored axes close against unique and named counts", ("parameters.closure", "parameters.recount")),
            (
                "type and lifecycle point stand with every byte of state",
                ("bytes.dtype", "state.roles", "state.lifecycle"),
            ),
            ("the activation peak comes from lifetimes, not from a sum of all", ("peak.cut",)),
            ("forward, backward and replay have separate accounts", ("flops.closure", "replay.named")),
            ("global work and what a device owns or holds stay apart", ("device.scopes", "ownership.scopes")),
            ("logical transfers, observed transactions and run time stay apart", ("traffic.boundary", "row.evidence")),
            ("phases and rows of keys and values are explicit", ("kv.extents", "row.phase")),
            ("papers are not compared before every axis is normalised", ("papers.closed",)),
            ("every case of a sensitivity changes one declared field", ("sensitivity.one_field",)),
            ("alternative methods are called vectors of several fields", ("sensitivity.vectors",)),
            ("every failure has a symptom, a check and a status", ("failures.complete",)),
            (
                "local, external, synthetic, measured and unmeasured claims do not mix",
                ("row.evidence", "evidence.claims"),
            ),
            ("fixture, registry and published figures agree", ("recorded.parameters", "papers.tables")),
            ("displayed formulas are balanced", ("pages.delimiters",)),
            ("every local link leads somewhere", ("pages.links",)),
            ("every picture has words beside it", ("pages.pictures",)),
            ("reused figures name their source and rights", "no figure of another work is shown"),
            ("what belongs to other articles stays with them", ARTICLE),
        ),
    ),
}


def sentences() -> tuple[Sentence, ...]:
    """Return every line of every gate, in the order of the document."""
    found = []
    for section, (_, lines) in SECTIONS.items():
        for number, (text, rests_on) in enumerate(lines, start=1):
            checks, reason = ((), rests_on) if isinstance(rests_on, str) else (rests_on, "")
            found.append(Sentence(section, number, text, checks, reason))
    return tuple(found)
