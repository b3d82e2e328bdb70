"""Channels: the old version serves until the new one is ready, and nothing turns a node back."""

from __future__ import annotations

import logging

import pytest

from swarm.agent.channel_follower import ChannelFollower
from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import ChannelTarget

OLD, NEW = VersionId(b"1" * 32), VersionId(b"2" * 32)


class Versions:
    """Which versions are ready; what the follower asks of the shelf."""

    def __init__(self) -> None:
        self.ready: set[VersionId] = set()

    def is_ready(self, version: VersionId) -> bool:
        return version in self.ready


@pytest.fixture
def versions() -> Versions:
    return Versions()


@pytest.fixture
def follower(versions: Versions) -> ChannelFollower:
    return ChannelFollower(["prod"], is_ready=versions.is_ready)


def test_an_unset_channel_wants_nothing_and_says_so(
    follower: ChannelFollower, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert follower.aim(ChannelTarget("prod", None, 0))
    assert caplog.messages == ["waiting: channel prod is not set"]
    assert follower.unset() == ("prod",)
    assert follower.wanted() == {}
    assert follower.due() == []


def test_a_target_is_wanted_at_once_and_swapped_when_ready(
    follower: ChannelFollower, versions: Versions
) -> None:
    follower.aim(ChannelTarget("prod", NEW, 3))
    assert list(follower.wanted()) == [NEW]
    assert follower.due() == []
    versions.ready.add(NEW)
    assert follower.due() == [("prod", NEW, 3)]
    follower.swapped("prod", NEW, 3)
    assert follower.due() == []


def test_the_old_version_serves_until_the_new_one_is_ready(
    follower: ChannelFollower, versions: Versions
) -> None:
    versions.ready.add(OLD)
    follower.aim(ChannelTarget("prod", OLD, 1))
    follower.swapped("prod", OLD, 1)
    follower.aim(ChannelTarget("prod", NEW, 2))
    assert list(follower.wanted()) == [NEW, OLD]
    assert follower.due() == []
    assert follower.is_in_transit(NEW)
    assert not follower.is_in_transit(OLD)


def test_a_rollback_is_due_at_once(follower: ChannelFollower, versions: Versions) -> None:
    versions.ready |= {OLD, NEW}
    follower.aim(ChannelTarget("prod", NEW, 2))
    follower.swapped("prod", NEW, 2)
    follower.aim(ChannelTarget("prod", OLD, 3))
    assert follower.due() == [("prod", OLD, 3)]


def test_an_older_revision_is_refused(follower: ChannelFollower) -> None:
    follower.aim(ChannelTarget("prod", NEW, 5))
    assert not follower.aim(ChannelTarget("prod", OLD, 4))
    assert not follower.aim(ChannelTarget("prod", NEW, 5))
    assert list(follower.wanted()) == [NEW]


def test_a_link_of_an_earlier_run_serves_unconfirmed(follower: ChannelFollower) -> None:
    follower.adopt("prod", OLD)
    assert list(follower.wanted()) == [OLD]
    assert not follower.is_confirmed("prod")
    follower.aim(ChannelTarget("prod", OLD, 7))
    assert follower.is_confirmed("prod")


def test_other_channels_are_none_of_ours(follower: ChannelFollower) -> None:
    assert not follower.aim(ChannelTarget("canary", NEW, 1))
    assert follower.wanted() == {}


def test_a_damaged_version_is_linked_again_when_it_is_whole(
    follower: ChannelFollower, versions: Versions
) -> None:
    follower.adopt("prod", OLD)
    assert follower.unset() == ()
    follower.withdrawn(OLD)
    assert follower.served == {}
    assert follower.due() == []
    assert list(follower.wanted()) == [OLD]
    versions.ready.add(OLD)
    assert follower.due() == [("prod", OLD, 0)]
    follower.swapped("prod", OLD, 0)
    assert follower.due() == []
