"""Seconds of what devices tell each other: sums, gathers and messages, by bytes and by where the devices are.

The devices of a mesh are numbered with ``tp`` innermost, then ``pp``, then ``dp``, and fill one host after
the other. A group within a host talks by its links; one that spans hosts by the network, of which each
member in a host has its share. Rings move (n - 1) / n of the bytes for a gather or a scatter, and twice that
for a sum (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH").
"""

from typing import NamedTuple

from jaxpipe.planning.hardware import Hardware
from jaxpipe.planning.layouts import Layout


class Links(NamedTuple):
    """efficiency: the share of the rates that is reached; latency: seconds of each operation."""

    hardware: Hardware
    efficiency: float
    latency: float


class Group(NamedTuple):
    """``size`` devices, each ``stride`` after the one before."""

    size: int
    stride: int = 1


def sharing_a_rank(layout: Layout) -> Group:
    """Along ``tp``."""
    return Group(layout.tp)


def ranks_of(layout: Layout) -> Group:
    """Along ``pp``."""
    return Group(layout.pp, layout.tp)


def one_pipeline(layout: Layout) -> Group:
    """Along ``pp`` and ``tp``, over which the vocabulary is split."""
    return Group(layout.pp * layout.tp)


def copies_of(layout: Layout) -> Group:
    """Along ``dp``."""
    return Group(layout.dp, layout.pp * layout.tp)


def sum_seconds(links: Links, group: Group, num_bytes: float) -> float:
    """Of an all-reduce of so many bytes on each device."""
    return 2 * gather_seconds(links, group, num_bytes)


def gather_seconds(links: Links, group: Group, num_bytes: float) -> float:
    """Of an all-gather to so many bytes on each device, or of a reduce-scatter from so many."""
    if group.size == 1:
        return 0.0
    rate = _rate(links.hardware, group) * links.efficiency
    return links.latency + (group.size - 1) / group.size * num_bytes / rate


def message_seconds(links: Links, group: Group, num_bytes: float) -> float:
    """To the next device of the group, the slowest hop; all send at once."""
    if group.size == 1:
        return 0.0
    is_within = group.size * group.stride <= links.hardware.devices_per_host
    rate = links.hardware.link if is_within else links.hardware.network
    return links.latency + num_bytes / (rate * links.efficiency)


def _rate(hardware: Hardware, group: Group) -> float:
    if group.size * group.stride <= hardware.devices_per_host:
        return hardware.link
    members_of_a_host = max(hardware.devices_per_host // group.stride, 1)
    return min(hardware.link, members_of_a_host * hardware.network)
