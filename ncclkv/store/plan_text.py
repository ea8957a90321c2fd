"""The plan of a store as a text, with the calls and keys that take a slower way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclkv.engine.reductions import by_node
from ncclkv.store.call_cache import Counts
from ncclkv.store.context import Context
from ncclkv.table import plan
from ncclkv.table.key_names import listed
from ncclkv.table.registry import Key

_CALLS = {"push": "pushes", "pull": "pulls", "group": "ends of groups"}


def plan_text(context: Context, counts: Mapping[str, Counts]) -> str:
    """Return a table of the buckets, and lines about memory, states, kernels and calls.

    Parameters
    ----------
    context : Context
    counts : mapping of str to Counts
        The calls of each verb.
    """
    layout, owner = context.engine.layout, context.engine.placement.owner
    buckets = [state.bucket for state in layout.states]
    times = [state.seconds for state in layout.states]
    text = plan.explain(buckets, list(layout.pending), owner, layout.sizing, times)
    memory = [f"in host memory: {reason}"] if (reason := context.comm.not_on_gpus) else []
    notes = [*_states(context), *_codecs(context), *_kernels(context), *_calls(counts)]
    return "\n".join([text, *memory, *notes])


def _states(context: Context) -> Iterator[str]:
    """Yield a line with the size of the optimizer's states, if there are any."""
    states, updates = context.engine.layout.states, context.engine.updates
    sizes = [updates.of(each).state_bytes(each) for each in states]
    total = sum(sizes)
    shared = sum(
        size for each, size in zip(states, sizes, strict=True) if each.shares_states(each.to)
    )
    if total:
        note = f", {shared:,} of them shared with the ranks of its node" if shared else ""
        yield f"states of {updates.rule.name}: {total:,} bytes on this rank{note}"


def _codecs(context: Context) -> Iterator[str]:
    """Yield a line for each codec with its keys, and one for keys that a rule does not reach."""
    reductions, found = context.engine.reductions, dict[str, list[Key]]()
    for spec in context.engine.layout.registry:
        rule = reductions.rule(spec.key)
        if rule is None or rule.codec is None:
            continue
        codec = rule.codec
        name = codec.name
        if reductions.codec(spec) is not None:
            text = f"encoded by {name}"
        elif not rule.encodes(spec):
            dtypes, ops = " and ".join(codec.dtypes), ", ".join(codec.ops)
            text = f"not encoded by {name}, which takes {dtypes}, and {ops}"
        elif by_node(codec) and reductions.node_count == 1:
            text = f"not encoded by {name}, whose senders are nodes: all ranks are on one node"
        else:
            text = f"not encoded by {name}, which would not make them short enough"
        found.setdefault(text, []).append(spec.key)
    for text, keys in found.items():
        yield f"{text}: {listed(keys)}"
    if nbytes := reductions.residuals.nbytes:
        yield f"residuals: {nbytes:,} bytes on this rank"


def _kernels(context: Context) -> Iterator[str]:
    """Yield a line for each reason why keys run without the kernels in C, with these keys."""
    kernels, found = context.comm.kernels, dict[str, list[Key]]()
    for spec in context.engine.layout.registry:
        if reason := kernels.not_in_c(spec.dtype, spec.op):
            found.setdefault(reason, []).append(spec.key)
    for reason, keys in found.items():
        yield f"without C: {listed(keys)}: {reason}"


def _calls(counts: Mapping[str, Counts]) -> Iterator[str]:
    """Yield a line for each verb, with its calls found prepared and checked anew."""
    for verb, name in _CALLS.items():
        if (count := counts.get(verb)) is None:
            continue
        alike = f" ({count.alike:,} of them with new arrays)" if count.alike else ""
        last = f", the last of {listed(count.keys, count.length)}: {count.reason}"
        yield (
            f"{name}: {count.prepared:,} found prepared{alike}, {count.anew:,} checked anew"
            f"{last if count.anew else ''}"
        )
