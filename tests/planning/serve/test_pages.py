"""Pages of K/V cache: against a plain walk, against lines that engines printed, and against planted faults."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcost.catalog import load
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.serve import pages
from jaxcost.planning.serve.capacity import kept_layers, printed
from jaxcost.planning.serve.inputs import Engine
from jaxcost.planning.serve.pages import KeptLayer, Pool, groups_of, pool
from jaxcost.planning.serve.weights import stored_program
from tests.planning.serve.engine_walk import admitted, groups, pool_size
from tests.planning.serve.published_logs import CONCURRENCY, HYBRID, LOGS, Log

GIB = 2**30
PATTERNS = [(0,), (4096,), (512, 0), (128, 128, 0), (1024, 1024, 1024, 1024, 1024, 0)]


def pool_of(name: str, available: int, **options: int) -> Pool:
    engine = Engine(**options)
    architecture = load(name).architecture
    layers = kept_layers(architecture, engine, stored_program(architecture, engine))
    return pool(groups_of(layers), [available], engine.block_size, engine.max_num_batched_tokens)


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS),
    cycles=st.integers(1, 12),
    size=st.sampled_from([1, 8, 16, 128]),
    step=st.sampled_from([1, 64, 2048]),
    tokens=st.integers(1, 6000),
    available=st.integers(0, 40 * 2**20),
)
def test_a_pool_is_that_of_a_walk(
    pattern: tuple[int, ...], cycles: int, size: int, step: int, tokens: int, available: int
) -> None:
    windows = list(pattern) * cycles
    page = 2 * size * 2 * 16 * 2
    found = pool(groups_of([KeptLayer(page, window) for window in windows]), [available], size, step)
    tables = groups(windows)
    assert sorted((g.window, sum(g.layers)) for g in found.groups) == sorted(tables)
    assert found.blocks == pool_size(available, page, tables)
    assert int(found.concurrency(tokens)) == admitted(found.blocks, tables, tokens, size, step)
    longest = found.longest(6000)
    assert not longest or found.request_blocks(longest) <= found.blocks
    assert longest == 6000 or found.request_blocks(longest + 1) > found.blocks


def differences() -> int:
    """How many of a few pools are not those of the walk."""
    found = 0
    for pattern in ([0] * 12, [512, 0] * 6, [128] * 12 + [0] * 13, [128, 128, 0] * 8):
        page, available, tokens = 4096, 30 * 2**20 + 777, 3000
        made = pool(groups_of([KeptLayer(page, window) for window in pattern]), [available], 16, 256)
        tables = groups(pattern)
        same = made.blocks == pool_size(available, page, tables)
        found += not same or int(made.concurrency(tokens)) != admitted(made.blocks, tables, tokens, 16, 256)
    return found


FAULTS = {
    "the smallest kind's size always": (pages, "group_size", min),
    "one page fewer for a window": (
        pages.Group, "request_blocks", lambda self, tokens, size, step: -(-min(self.window or tokens, tokens) // size)
    ),
    "the longest request in every group": (
        pages.Pool, "request_blocks", lambda self, tokens: len(self.groups) * -(-tokens // 16)
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_differs_from_the_walk(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences() == 0
    monkeypatch.setattr(*FAULTS[fault])
    assert differences() > 0


def interval(log: Log, block_bytes: int) -> tuple[int, int]:
    """Blocks that the printed memory can stand for."""
    value = Fraction(log.available_gib)
    ends = ((value - log.half) * GIB, (value + log.half) * GIB)
    return int(ends[0] // block_bytes), int(ends[1] // block_bytes)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.model}-{log.available_gib}")
def test_printed_lines_of_engines_come_out(log: Log) -> None:
    """The printed tokens lie among those that the printed memory can stand for: it has two decimals."""
    found = pool_of(log.model, int(Fraction(log.available_gib) * GIB))
    low, high = interval(log, found.block_bytes)
    assert low <= log.tokens // 16 <= high and low <= found.blocks <= high
    assert high - low <= 1 + 2 * log.half * GIB / found.block_bytes
    # to the byte: the least memory that makes the printed number of blocks makes exactly it
    exact = pool_of(log.model, log.tokens // 16 * found.block_bytes)
    assert exact.tokens == log.tokens
    if log.max_model_len is not None:
        assert printed(exact.concurrency(log.max_model_len)) == log.printed


def test_one_head_more_or_less_leaves_the_printed_interval() -> None:
    for log in LOGS:
        page = pool_of(log.model, 0).block_bytes
        assert not interval(log, page * 7 // 8)[0] <= log.tokens // 16 <= interval(log, page * 7 // 8)[1]
        assert not interval(log, page * 9 // 8)[0] <= log.tokens // 16 <= interval(log, page * 9 // 8)[1]


def test_a_hybrid_model_comes_out_as_printed() -> None:
    layers = [KeptLayer(2 * 16 * 8 * 64 * 2, window) for _ in range(18) for window in (128, 0)]
    found = pool(groups_of(layers), [int(Fraction(HYBRID.available_gib) * GIB)], 16, 8192)
    low, high = interval(HYBRID, found.block_bytes)
    assert len(found.groups) == 2 and found.block_bytes == 18 * 32768
    assert low <= HYBRID.tokens // 16 * 2 <= high and abs(found.tokens - HYBRID.tokens) <= (high - low) // 2 * 16
    assert found.blocks == pool_size(int(Fraction(HYBRID.available_gib) * GIB), 32768, [(128, 18), (0, 18)])


@pytest.mark.parametrize(("source", "blocks", "tokens", "told"), CONCURRENCY)
def test_printed_concurrency(source: str, blocks: int, tokens: int, told: str) -> None:
    [group] = groups_of([KeptLayer(65536)] * 32)
    assert printed(Pool((group,), blocks, 1, 16, 8192).concurrency(tokens)) == told, source


def test_both_readings_of_the_printed_tokens_differ_by_less_than_a_block_without_windows() -> None:
    found = pool_of("llama-3.1-8b", 56 * GIB + 12345)
    for tokens in (16, 2048, 8192, 131072):
        assert abs(found.tokens - found.tokens_by_concurrency(tokens)) < 16


def test_groups_are_padded_to_the_larger_kind_where_that_wastes_less() -> None:
    """12 windowed and 13 full layers make two groups of 13, 10 and 20 three of 10: the upstream comments' examples."""
    near = groups_of([KeptLayer(64, 128)] * 12 + [KeptLayer(64, 0)] * 13)
    assert sorted(sum(g.layers) for g in near) == [12, 13]
    far = groups_of([KeptLayer(64, 0)] * 10 + [KeptLayer(64, 128)] * 20)
    assert [sum(g.layers) for g in far] == [10, 10, 10]


def test_without_groups_windowed_layers_keep_every_row() -> None:
    layers = [KeptLayer(64, window) for _ in range(4) for window in (16, 0)]
    assert [(g.window, sum(g.layers)) for g in groups_of(layers, hybrid=False)] == [(0, 8)]
    alone = [KeptLayer(64, 16)] * 4
    assert groups_of(alone, hybrid=False) == groups_of(alone)


def test_windows_in_groups_of_their_own_against_every_row_kept() -> None:
    """24 layers, a window of 128 and none in turn, 8 heads of 64, 32 requests of 8192 tokens: 12 GiB without groups."""
    layers = [KeptLayer(2 * 16 * 8 * 64 * 2, window) for _ in range(12) for window in (128, 0)]
    whole = pool(groups_of(layers, hybrid=False), [12 * GIB], 16, 1)
    assert whole.blocks == 32 * whole.request_blocks(8192) and whole.blocks * whole.block_bytes == 12 * GIB
    apart = pool(groups_of(layers), [12 * GIB], 16, 1)
    assert 32 * apart.request_blocks(8192) * apart.block_bytes == 32 * (512 + 128 // 16 + 1) * 12 * 32768 < 7 * GIB


def test_pages_of_several_sizes_are_refused() -> None:
    with pytest.raises(RejectedError, match="pages of 2 sizes"):
        groups_of([KeptLayer(64), KeptLayer(128, 16)])


def test_the_scarcest_rank_decides_and_its_layers_count() -> None:
    layers = [KeptLayer(100, 0, 0)] * 3 + [KeptLayer(100, 0, 1)] * 2
    found = pool(groups_of(layers), [1000, 1000], 16, 1)
    assert found.blocks == 1000 // 100 // 3
    assert pool(groups_of(layers), [1000, -5], 16, 1).blocks == 0


@pytest.mark.parametrize(
    ("dtype", "page"),
    [("auto", 65536), ("fp8", 32768), ("int8_per_token_head", 32768 + 2 * 16 * 8 * 4)],
)
def test_bytes_of_a_page(dtype: str, page: int) -> None:
    """Keys and values of 16 tokens, 8 heads of 128; with a scale of four bytes for each token, head and side."""
    engine = Engine.from_data({"kv_cache_dtype": dtype})
    architecture = load("llama-3.1-8b").architecture
    assert {layer.page_bytes for layer in kept_layers(architecture, engine, stored_program(architecture, engine))} == {
        page
    }


def test_scaled_eight_bit_cache_saves_less_than_half() -> None:
    """28 layers, 8 heads of 128, 500 pages of 256 tokens: 14,000 MiB become 7,218.75 MiB, not 7,000."""
    architecture = load("qwen3-1.7b").architecture
    found = {}
    for dtype in ("auto", "int8_per_token_head"):
        engine = Engine.from_data({"kv_cache_dtype": dtype, "block_size": 256})
        layers = kept_layers(architecture, engine, stored_program(architecture, engine))
        found[dtype] = 500 * sum(layer.page_bytes for layer in layers)
    assert found == {"auto": 14_000 * 2**20, "int8_per_token_head": 7_569_408_000}


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_heads_fewer_than_ranks_are_held_by_several(tensor: int, heads: int) -> None:
    architecture, engine = load("llama-3.1-70b").architecture, Engine(tensor=tensor)
    layers = kept_layers(architecture, engine, stored_program(architecture, engine))
    assert len(layers) == 80 and {layer.page_bytes for layer in layers} == {2 * 16 * heads * 128 * 2}
