"""Which machine this is and which boot of its agent: `CACHE/node`.

The node id is 16 random bytes made once; the generation grows by one at each start. Both are on
the disk before anybody hears of them: a generation that went back after a power failure would make
peers and tracker take the living agent for its own predecessor.

A disk image or a copied directory carries its node file along, and two nodes of one name break
the swarm. So the file also holds a fingerprint of where it was written: the machine (machine-id,
the board's uuid where we may read it) and the inode of the cache directory, which a copy on the
same machine does not share. A clone gets a new id and starts at generation 1. Host name and
addresses are not part of it: they change under a living node.
"""

from __future__ import annotations

import os

from blake3 import blake3

from swarm.protocol.ids import NODE_ID_BYTES, Identity, NodeId
from swarm.store.faults import faults_of
from swarm.store.tree import Tree

_MACHINE_FILES = ("/etc/machine-id", "/sys/class/dmi/id/product_uuid")
_NODE_BYTES_MAX = 4096


def next_identity(tree: Tree, relative: str) -> Identity:
    """Read the node file, step the generation, and write it back, synced; raises StoreError."""
    with faults_of(f"{tree.path}/{relative}"):
        fingerprint = host_fingerprint(tree.fd)
        former = _parse(tree.read_file(relative, _NODE_BYTES_MAX) or b"", fingerprint)
        identity = (
            Identity(former.node_id, former.generation + 1)
            if former is not None
            else Identity(NodeId(os.urandom(NODE_ID_BYTES)), 1)
        )
        content = (
            f"node {identity.node_id.hex()}\ngeneration {identity.generation}\nhost {fingerprint}\n"
        )
        tree.write_file(relative, content.encode(), is_synced=True)
    return identity


def host_fingerprint(directory_fd: int) -> str:
    """32 hex digits that name this machine and this directory on it."""
    hasher = blake3(os.fstat(directory_fd).st_ino.to_bytes(8, "little"))
    for path in _MACHINE_FILES:
        try:
            with open(path, "rb") as file:
                hasher.update(file.read(_NODE_BYTES_MAX))
        except OSError:
            continue  # Not on this system, or not for this user.
    return hasher.hexdigest(length=16)


def _parse(content: bytes, fingerprint: str) -> Identity | None:
    """The identity in a node file, or None if it is damaged or another host's."""
    words = dict(
        line.split(" ", 1)
        for line in content.decode("ascii", "replace").splitlines()
        if " " in line
    )
    if words.get("host") != fingerprint:
        return None
    try:
        node_id = bytes.fromhex(words["node"])
        generation = int(words["generation"])
    except (KeyError, ValueError):
        return None
    if len(node_id) != NODE_ID_BYTES or generation < 1:
        return None
    return Identity(NodeId(node_id), generation)
