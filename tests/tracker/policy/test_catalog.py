"""Names are given once; references name one version or none."""

from __future__ import annotations

import pytest

from swarm.errors import ConflictError, NotFoundError, UsageError
from swarm.protocol.ids import VersionId
from tests.support.tracker_fleet import publish_record
from tracker.policy.catalog import Catalog, check_name, check_word

ONE = VersionId(bytes.fromhex("ab" * 5 + "cd" + "11" * 26))
TWO = VersionId(bytes.fromhex("ab" * 5 + "cd" + "12" + "22" * 25))


def catalog() -> Catalog:
    subject = Catalog()
    subject.add(publish_record(ONE, name="org/model", tag="v1", published_at=1.0))
    subject.add(publish_record(TWO, published_at=2.0))
    return subject


def test_a_name_stands_for_one_version_for_ever() -> None:
    subject = catalog()
    with pytest.raises(ConflictError, match="org/model@v1"):
        subject.check(publish_record(TWO, name="org/model", tag="v1"))
    assert not subject.check(publish_record(ONE, name="org/model", tag="v1"))
    assert subject.check(publish_record(TWO, name="org/model", tag="v2"))


def test_a_version_may_have_several_names() -> None:
    subject = catalog()
    subject.add(publish_record(ONE, name="other", tag="x"))
    assert subject.resolve("other@x").version == ONE
    assert subject.resolve("other@x").name == "other"
    assert subject.resolve("org/model@v1").name == "org/model"


def test_every_answer_tells_all_names_of_its_version() -> None:
    """Whichever was given first, whichever was asked for, whatever a publisher claimed, and after
    a restart as before it."""
    subject = catalog()
    subject.add(publish_record(ONE, name="another", tag="x"))
    subject.add(publish_record(ONE, name="another", tag="x"))
    subject.add(publish_record(TWO, name="late", tag="v1", names=("claimed@v1",)))
    restarted = Catalog()
    given = [("org/model", "v1", ONE), ("another", "x", ONE), ("late", "v1", TWO)]
    restarted.load(subject.records(), given)
    for found in (subject, restarted):
        names = ("another@x", "org/model@v1")
        assert found.resolve("org/model@v1").names == names
        assert found.resolve("another@x").names == names
        assert found.resolve(ONE.hex()).names == names
        assert [record.names for record in found.records()] == [("late@v1",), names]


@pytest.mark.parametrize("digits", [13, 14, 15, 64])
def test_a_prefix_that_tells_them_apart_is_enough(digits: int) -> None:
    subject = catalog()
    if digits >= 14:
        assert subject.resolve(ONE.hex()[:digits]).version == ONE
        assert subject.resolve(TWO.hex()[:digits].upper()).version == TWO
    else:
        with pytest.raises(UsageError, match="write more"):
            subject.resolve(ONE.hex()[:digits])


@pytest.mark.parametrize("reference", ["ab" * 5, "org/model", "", "zz" * 32, "a" * 65])
def test_what_is_no_reference_says_what_one_is(reference: str) -> None:
    with pytest.raises(UsageError):
        catalog().resolve(reference)


@pytest.mark.parametrize("reference", ["org/model@v2", "ff" * 32, "fff" * 5, "ab" * 6])
def test_an_unknown_reference_is_not_found(reference: str) -> None:
    with pytest.raises(NotFoundError):
        catalog().resolve(reference)


def test_the_newest_is_listed_first() -> None:
    assert [record.version for record in catalog().records()] == [TWO, ONE]


@pytest.mark.parametrize("name", ["a", "Qwen/Qwen3-8B", "a.b_c-d/e", "abcdef0123", "x" * 128])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "/a", "-a", "a..b", "a//b", "a b", "x" * 129, "abcdef012345", "ünï", "a\n"]
)
def test_not_names(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("word", ["a/b", "prod.d", "", "..", "0123456789ab", "a@b"])
def test_not_tags_nor_channels(word: str) -> None:
    with pytest.raises(UsageError):
        check_word(word, "channel")


def test_a_name_needs_a_tag() -> None:
    with pytest.raises(UsageError):
        catalog().check(publish_record(ONE, name="a"))
