"""A channel's revision only grows, whatever happens to the tracker."""

from __future__ import annotations

import pytest

from swarm.errors import ConflictError, NotFoundError, UsageError
from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import ChannelChange
from tests.support.tracker_fleet import VERSION, Fleet
from tracker.policy.channels import ChannelBook

OTHER = VersionId(b"o" * 32)


def set_channel(
    book: ChannelBook, version: VersionId | None, *, expected: int | None = None
) -> ChannelChange | None:
    change = book.plan(
        "prod",
        version,
        reason="because",
        changed_by="me",
        changed_at=5.0,
        expected_revision=expected,
    )
    if change is not None:
        book.apply(change, changed_at=7)
    return change


def test_the_first_set_creates_the_channel() -> None:
    book = ChannelBook()
    with pytest.raises(NotFoundError):
        book.existing("prod")
    assert book.target("prod").revision == 0
    set_channel(book, VERSION)
    assert book.existing("prod").version == VERSION
    assert book.existing("prod").revision == 1


def test_setting_it_again_to_the_same_says_nothing_new() -> None:
    book = ChannelBook()
    set_channel(book, VERSION)
    assert set_channel(book, VERSION) is None
    assert set_channel(book, OTHER) is not None
    assert book.target("prod").revision == 2


def test_who_expects_another_revision_is_refused() -> None:
    book = ChannelBook()
    set_channel(book, VERSION)
    with pytest.raises(ConflictError, match="revision 1, not 0"):
        set_channel(book, OTHER, expected=0)
    assert set_channel(book, OTHER, expected=1) is not None


def test_the_next_revision_is_above_what_agents_serve() -> None:
    """The store was restored from an old copy; agents know revision 57 and refuse less."""
    book = ChannelBook()
    set_channel(book, VERSION)
    book.reported("prod", 57)
    change = set_channel(book, OTHER)
    assert change is not None
    assert change.revision == 58


def test_names_are_checked() -> None:
    with pytest.raises(UsageError):
        ChannelBook().plan(
            "a.d", None, reason="", changed_by="", changed_at=0.0, expected_revision=None
        )


def test_followers_hear_of_a_change_and_of_an_unset_channel() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    a.channels = ("prod",)
    reply = a.listen()
    assert reply is not None
    assert (reply.channels[0].version, reply.channels[0].revision) == (None, 0)
    assert a.listen() is None
    fleet.tracker.change_channel(ChannelChange("prod", 1, VERSION, 0.0, "me", "go"))
    assert fleet.tracker.take_changed() == (a.node_id,)
    reply = a.listen()
    assert reply is not None
    assert reply.channels[0].version == VERSION


def test_only_followers_hear_of_it() -> None:
    fleet = Fleet()
    a, b = fleet.agent("a"), fleet.agent("b")
    a.channels, b.channels = ("prod",), ("canary",)
    a.listen()
    b.listen()
    fleet.tracker.take_changed()
    fleet.tracker.change_channel(ChannelChange("canary", 1, VERSION, 0.0, "me", "go"))
    assert fleet.tracker.take_changed() == (b.node_id,)
