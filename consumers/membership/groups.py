"""The members of a data group while a node joins or leaves, in two phases. Pure.

Replacing a member in one step could give a group two leaders. So each group first takes its new member (pre),
and gives up a member later (formal). The four functions are the flow charts of Apache IoTDB's cluster
expansion: formal contains pre, pre after formal changes nothing, and each may run any number of times.

`members` are in ring order with the header first, `ring` are the ids of all nodes in ring order.
"""

from __future__ import annotations

from headrace.consumers.membership.ring import ClusterTooSmall, UnknownNode, distance, successors

Members = tuple[str, ...]


def pre_add(members: Members, node: str, ring: Members) -> Members:
    """The members once `node` has joined; `ring` has it already. Raises UnknownNode."""
    if node not in ring:
        raise UnknownNode(f"node {node!r} is not on the ring {', '.join(ring)}")
    if not members or node in members:
        return members
    header, place = members[0], distance(ring, members[0], node)
    # Between the last member and the header: the group does not change.
    if place > distance(ring, header, members[-1]):
        return members
    before = sum(distance(ring, header, member) < place for member in members)
    return (*members[:before], node, *members[before:])


def formal_add(members: Members, node: str, ring: Members, replication: int) -> Members:
    """The members once `node` has joined and the surplus member has left. Raises UnknownNode."""
    joined = pre_add(members, node, ring)
    if node not in joined or len(joined) <= replication:
        return joined
    return joined[:-1]


def pre_remove(members: Members, node: str, ring: Members, replication: int) -> Members:
    """The members once the replacement of `node` has joined; `ring` may have the node or not.

    The group of which it is the header gets none: that group ends. Raises ClusterTooSmall.
    """
    if node not in members or node == members[0]:
        return members
    left = tuple(each for each in ring if each != node)
    if len(left) < replication:
        raise ClusterTooSmall(
            f"without {node} there are {len(left)} nodes for {replication} copies of a row", action="add a node first"
        )
    replacement = successors(left, members[0], replication)[-1]
    return members if replacement in members else (*members, replacement)


def formal_remove(members: Members, node: str, ring: Members, replication: int) -> Members:
    """The members once `node` has left; none when it was the header. Raises ClusterTooSmall."""
    joined = pre_remove(members, node, ring, replication)
    if joined and node == joined[0]:
        return ()
    return tuple(member for member in joined if member != node)
