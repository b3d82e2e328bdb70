"""Whom an agent asks for manifests, in the order of their price."""

from __future__ import annotations

from swarm.agent.documents import ORIGIN, ManifestSource
from swarm.agent.origin_client import OriginClient
from swarm.agent.origin_health import Document, OriginHealth, watched
from swarm.agent.peer_manifests import PeerManifests
from swarm.agent.tracker_client import TrackerClient


def manifest_sources(
    tracker: TrackerClient | None,
    peers: PeerManifests,
    origin: OriginClient | None,
    health: OriginHealth,
) -> list[ManifestSource]:
    """What there is of tracker, peers and origin; how the origin answers is noted in `health`."""
    sources: list[ManifestSource] = []
    if tracker is not None:
        sources.append(("the tracker", tracker.manifest))
    sources.append(("peers", peers.fetch))
    if origin is not None:
        sources.append((ORIGIN, watched(health, Document.MANIFEST, origin.fetch_manifest)))
    return sources
