"""Which versions exist and what they are called.

A version's id is its manifest's digest, so registering it twice says the same thing. A name with a
tag is given once and for ever: another version under it is a conflict. One version may have several
names.

References, as people write them: 64 hex digits; a unique prefix of at least 12; ``NAME@TAG``; and
``channel:NAME``, which the caller resolves as it is no property of a version.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import replace

from swarm.errors import ConflictError, NotFoundError, UsageError
from swarm.protocol.ids import DIGEST_BYTES, VersionId
from swarm.protocol.tracker_api import PublishRecord

PREFIX_CHARACTERS_MIN = 12
"""48 bits: two of a million versions share them once in 560 catalogs."""
CHANNEL_PREFIX = "channel:"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HEX = re.compile(r"[0-9a-fA-F]+")


def check_name(name: str) -> None:
    """Raises UsageError unless `name` may be a version's name."""
    if not _NAME.fullmatch(name) or ".." in name or "//" in name or _looks_like_an_id(name):
        raise UsageError(
            f"not a name: {name[:200]!r}",
            object_name=name[:200],
            hint="a name has up to 128 of A-Z a-z 0-9 . _ - /, no '..' or '//', and is not an id",
        )


def check_word(word: str, what: str) -> None:
    """Raises UsageError unless `word` may be a tag or a channel, as `what` says."""
    is_word = _WORD.fullmatch(word) and ".." not in word and not word.endswith(".d")
    if not is_word or _looks_like_an_id(word):
        raise UsageError(
            f"not a {what}: {word[:200]!r}",
            object_name=word[:200],
            hint=f"a {what} has up to 128 of A-Z a-z 0-9 . _ -, no '..', does not end in '.d', "
            "and is not an id",
        )


class Catalog:
    """All versions registered, by id and by name."""

    def __init__(self) -> None:
        self._records: dict[VersionId, PublishRecord] = {}
        self._ids: list[bytes] = []
        self._names: dict[tuple[str, str], VersionId] = {}
        # The same names as labels, sorted, by version.
        self._labels: dict[VersionId, list[str]] = {}

    def load(
        self,
        records: Iterable[PublishRecord],
        names: Iterable[tuple[str, str, VersionId]],
    ) -> None:
        """What the store holds, at start."""
        for record in records:
            self._records[record.version] = record
        self._ids = sorted(self._records)
        for name, tag, version in names:
            self._give_name(name, tag, version)

    def check(self, record: PublishRecord) -> bool:
        """Whether this registration says something new; raises UsageError, ConflictError."""
        if bool(record.name) != bool(record.tag):
            raise UsageError("a name needs a tag, and a tag a name")
        if record.name:
            check_name(record.name)
            check_word(record.tag, "tag")
            holder = self._names.get((record.name, record.tag), record.version)
            if holder != record.version:
                raise ConflictError(
                    f"{record.name}@{record.tag} is version {holder.hex()} and stays it",
                    object_name=f"{record.name}@{record.tag}",
                    hint="names are given once: publish under another tag",
                )
            is_named = (record.name, record.tag) in self._names
            return record.version not in self._records or not is_named
        return record.version not in self._records

    def add(self, record: PublishRecord) -> None:
        """Take in a registration that was checked and stored. The first record of a version
        stays; later ones add names."""
        if record.version not in self._records:
            self._records[record.version] = record
            insort(self._ids, record.version)
        if record.name:
            self._give_name(record.name, record.tag, record.version)

    def get(self, version: VersionId) -> PublishRecord | None:
        return self._records.get(version)

    def records(self) -> tuple[PublishRecord, ...]:
        """All with all their names, newest first."""
        newest_first = sorted(
            self._records.values(), key=lambda record: record.published_at, reverse=True
        )
        return tuple(self._named(record) for record in newest_first)

    def resolve(self, reference: str) -> PublishRecord:
        """The version that a reference names, under the name that was asked for; raises
        NotFoundError, UsageError. Not for channels."""
        name, at, tag = reference.rpartition("@")
        if at:
            version = self._names.get((name, tag))
            if version is None:
                raise NotFoundError(
                    f"no version is called {reference[:300]}",
                    object_name=reference[:300],
                    hint="see `swarm versions list`",
                )
            return replace(self._named(self._records[version]), name=name, tag=tag)
        return self._named(self._records[self._by_prefix(reference)])

    def _give_name(self, name: str, tag: str, version: VersionId) -> None:
        if (name, tag) not in self._names:
            self._names[name, tag] = version
            insort(self._labels.setdefault(version, []), f"{name}@{tag}")

    def _named(self, record: PublishRecord) -> PublishRecord:
        """Whatever a publisher wrote there: names are the catalog's."""
        return replace(record, names=tuple(self._labels.get(record.version, ())))

    def _by_prefix(self, reference: str) -> VersionId:
        digits = len(reference)
        is_long_enough = PREFIX_CHARACTERS_MIN <= digits <= 2 * DIGEST_BYTES
        if not is_long_enough or not _HEX.fullmatch(reference):
            raise UsageError(
                f"not a reference: {reference[:200]!r}",
                object_name=reference[:200],
                hint=f"write 64 hex digits, at least {PREFIX_CHARACTERS_MIN} of them, NAME@TAG or "
                "channel:NAME",
            )
        wanted = reference.lower()
        # Ids that begin alike stand together; the first of them is not below the prefix itself.
        start = bisect_left(self._ids, bytes.fromhex(wanted + "0" * (len(wanted) % 2)))
        run = self._ids[start : start + 2]
        found = [version for version in run if version.hex().startswith(wanted)]
        if not found:
            raise NotFoundError(
                f"no version begins with {wanted}",
                object_name=wanted,
                hint="see `swarm versions list`",
            )
        if len(found) > 1:
            both = " and ".join(version.hex() for version in found)
            raise UsageError(f"{wanted} begins {both}; write more of it", object_name=wanted)
        return VersionId(found[0])


def _looks_like_an_id(word: str) -> bool:
    return len(word) >= PREFIX_CHARACTERS_MIN and bool(_HEX.fullmatch(word))
