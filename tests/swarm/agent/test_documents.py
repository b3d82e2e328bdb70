"""A manifest is believed for its digest, and fetched from whoever has it."""

from __future__ import annotations

import blake3
import trio

from swarm.agent.documents import HEAD_START_S, ORIGIN, ManifestSource, fetch_manifest
from swarm.errors import AuthError, NotFoundError, OriginError, SwarmError, TrackerError
from swarm.protocol.ids import VersionId

RAW = b"a manifest"
VERSION = VersionId(blake3.blake3(RAW).digest())


class Scripted:
    """A source that answers from a script, one answer a call; the last one for ever."""

    def __init__(self, *answers: bytes | SwarmError | None) -> None:
        self._answers = list(answers)
        self.calls = 0

    async def __call__(self, version: VersionId) -> bytes | None:
        assert version == VERSION
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        if isinstance(answer, SwarmError):
            raise answer
        return answer


async def fetched(*sources: Scripted, waits: list[SwarmError] | None = None) -> bytes:
    named: list[ManifestSource] = [(f"source {i}", source) for i, source in enumerate(sources)]
    return await fetch_manifest(VERSION, named, on_wait=(waits if waits is not None else []).append)


async def test_the_first_source_that_has_it_is_enough() -> None:
    second = Scripted(RAW)
    assert await fetched(Scripted(RAW), second) == RAW
    assert second.calls == 0


async def test_the_next_source_is_asked_when_one_fails() -> None:
    assert await fetched(Scripted(TrackerError("down")), Scripted(None), Scripted(RAW)) == RAW


async def test_a_wrong_manifest_is_not_believed() -> None:
    assert await fetched(Scripted(b"another"), Scripted(RAW)) == RAW


async def test_it_is_missing_when_every_source_is_sure(autojump_clock: object) -> None:
    """And found once somebody has it."""
    waits: list[SwarmError] = []
    second = Scripted(NotFoundError("b"), RAW)
    assert await fetched(Scripted(NotFoundError("a")), second, waits=waits) == RAW
    assert {type(error) for error in waits} == {NotFoundError}
    assert VERSION.hex() in waits[0].message


async def test_it_goes_on_asking_and_says_why(autojump_clock: object) -> None:
    waits: list[SwarmError] = []
    origin = OriginError("origin is down")
    tracker = Scripted(TrackerError("down"), TrackerError("down"), RAW)
    assert (
        await fetched(tracker, Scripted(NotFoundError("x")), Scripted(origin), waits=waits) == RAW
    )
    assert set(waits) == {origin}


async def test_a_source_that_hangs_holds_up_nobody(autojump_clock: object) -> None:
    async def hangs(_: VersionId) -> bytes | None:
        await trio.sleep_forever()
        return None

    began = trio.current_time()
    raw = await fetch_manifest(
        VERSION, [("the tracker", hangs), ("peers", Scripted(RAW))], on_wait=lambda _: None
    )
    assert raw == RAW
    assert trio.current_time() - began <= HEAD_START_S


async def test_a_refusal_is_told_before_an_absence(autojump_clock: object) -> None:
    waits: list[SwarmError] = []
    denied = AuthError("the credentials have expired")
    missing = Scripted(NotFoundError("x"))
    assert await fetched(missing, Scripted(denied, RAW), waits=waits) == RAW
    assert set(waits) == {denied}


async def test_the_origin_decides_while_others_cannot_be_asked(autojump_clock: object) -> None:
    """That it has no manifest is the news; the others may still have, so it is asked again."""
    waits: list[SwarmError] = []
    sources: list[ManifestSource] = [
        ("the tracker", Scripted(TrackerError("no tracker answers", is_retryable=True))),
        ("peers", Scripted(None)),
        (ORIGIN, Scripted(NotFoundError("404"), RAW)),
    ]
    assert await fetch_manifest(VERSION, sources, on_wait=waits.append) == RAW
    assert {type(error) for error in waits} == {NotFoundError}
    assert waits[0].is_retryable
    for said in ("the tracker: no tracker answers", "peers: ", "the origin: 404"):
        assert said in waits[0].message


async def test_without_an_origin_nobody_is_sure(autojump_clock: object) -> None:
    waits: list[SwarmError] = []
    silent = TrackerError("none of the peers named answers", is_retryable=True)
    assert await fetched(Scripted(None), Scripted(silent, RAW), waits=waits) == RAW
    assert set(waits) == {silent}
