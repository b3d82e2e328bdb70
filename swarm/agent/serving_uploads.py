"""The serving side of all sessions: what was asked for over which links, and what policy said.

Policy sees one `ChunkRequested` for a (session, chunk), however many links stripe it, and answers
with one `StartUpload` or `RefuseRequest`; stripes that arrive after the answer share it. A session
lasts as long as one of its links does. A link that asks for another session has left the one
before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarm.agent.network_settings import NetworkSettings
from swarm.agent.outgoing_part import OutgoingPart
from swarm.agent.rate_limit import RateLimit
from swarm.agent.upload_link import PendingPart, UploadLink, UploadParts
from swarm.errors import PeerProtocolError, SwarmError
from swarm.policy.commands import RefuseRequest, StartUpload
from swarm.policy.events import (
    BadChunkReported,
    ChunkRequested,
    Event,
    RequestCancelled,
    SessionClosed,
    UploadFinished,
)
from swarm.protocol.codec import DOCUMENT_PAGE_BYTES
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import (
    Cancel,
    Document,
    DocumentKind,
    DocumentRequest,
    Refuse,
    Request,
)
from swarm.store.chunk_store import VersionStore

SessionKey = tuple[NodeId, SessionId]
ChunkKey = tuple[VersionId, ChunkIndex]
Documents = Callable[[VersionId, DocumentKind], bytes | None]


@dataclass(slots=True, eq=False)
class Upload:
    """One chunk asked for in one session."""

    stripes: int
    # Requests that wait for policy's answer.
    waiting: list[tuple[UploadLink, Request]] = field(default_factory=list)
    answer: StartUpload | RefuseRequest | None = None
    # Stripes served or refused.
    done_count: int = 0
    sent_bytes: int = 0


@dataclass(slots=True, eq=False)
class UploadSession:
    """What one fetching peer has going under one session id."""

    links: dict[UploadLink, None] = field(default_factory=dict)
    uploads: dict[ChunkKey, Upload] = field(default_factory=dict)


class ServingUploads:
    """Owned by `PeerNetwork`; every method is called in the trio loop."""

    def __init__(
        self,
        *,
        store_versions: Mapping[VersionId, VersionStore],
        documents: Documents,
        emit: Callable[[Event], None],
        problem: Callable[[VersionId, SwarmError], None],
        uplink: RateLimit,
    ) -> None:
        self.bytes_out = 0
        self._stores = store_versions
        self._documents = documents
        self._emit = emit
        self._sessions: dict[SessionKey, UploadSession] = {}
        # Where each link's last request belonged.
        self._links: dict[UploadLink, SessionKey | None] = {}
        # Files that this process has opened: (version, index of the file in its manifest).
        self._opened: set[tuple[VersionId, int]] = set()
        self.parts = UploadParts(
            uplink,
            requested=self._requested,
            cancelled=self._cancelled,
            document=self._document_requested,
            problem=problem,
            unreadable=self._unreadable,
            count_bytes=self._count_bytes,
        )

    @property
    def is_busy(self) -> bool:
        return any(
            upload.answer is not None
            for session in self._sessions.values()
            for upload in session.uploads.values()
        )

    @property
    def link_count(self) -> int:
        return len(self._links)

    # ---- orders

    def start(self, order: StartUpload) -> None:
        upload = self._find(order)
        if upload is not None:
            upload.answer = order
            self._answer_waiting(upload)

    def refuse(self, order: RefuseRequest) -> None:
        upload = self._find(order)
        if upload is not None:
            upload.answer = order
            self._answer_waiting(upload)

    def written(self, version: VersionId, chunk: ChunkIndex) -> None:
        """This process has the chunk's file open, or lately had: opening it waits for no disk."""
        store = self._stores.get(version)
        if store is not None:
            self._opened.add((version, first_file(store, chunk)))

    def link_opened(self, link: UploadLink) -> None:
        self._links[link] = None

    def link_gone(self, link: UploadLink) -> None:
        key = self._links.pop(link)
        if key is not None:
            self._leave(link, key)

    def tick(self, now: float, settings: NetworkSettings) -> None:
        for link in list(self._links):
            link.check(now, settings)

    # ---- what peers ask

    def _requested(self, link: UploadLink, request: Request) -> None:
        key = (link.peer, request.session)
        before = self._links[link]
        if before is not None and before != key:
            self._leave(link, before)
        self._links[link] = key
        session = self._sessions.setdefault(key, UploadSession())
        session.links[link] = None
        chunk_key = (request.version, request.chunk)
        upload = session.uploads.get(chunk_key)
        if upload is None:
            upload = session.uploads[chunk_key] = Upload(request.stripes)
            upload.waiting.append((link, request))
            self._emit(
                ChunkRequested(
                    link.peer, request.session, request.version, request.chunk, link.zone
                )
            )
            return
        if request.stripes != upload.stripes or len(upload.waiting) >= upload.stripes:
            raise PeerProtocolError(f"chunk {request.chunk} asked for twice in one session")
        upload.waiting.append((link, request))
        self._answer_waiting(upload)

    def _cancelled(self, link: UploadLink, cancel: Cancel) -> None:
        """Only a request that policy has not answered can be taken back; an answered one is on
        its way, and the peer closes the link if it does not want it."""
        session = self._sessions.get((link.peer, cancel.session))
        if session is None:
            return
        upload = session.uploads.get((cancel.version, cancel.chunk))
        if upload is None or upload.answer is not None:
            return
        for entry in upload.waiting:
            if entry[0] is link:
                upload.waiting.remove(entry)
                link.answered()
                break
        if not upload.waiting:
            del session.uploads[cancel.version, cancel.chunk]
            self._emit(RequestCancelled(link.peer, cancel.session, cancel.chunk))

    def _unreadable(self, link: UploadLink, request: Request) -> None:
        """Whoever asked for it finds the chunk missing, which is as good as wrong."""
        self._emit(BadChunkReported(link.peer, request.version, request.chunk))

    def _document_requested(self, link: UploadLink, request: DocumentRequest) -> None:
        whole = self._documents(request.version, request.kind) or b""
        page = whole[request.offset : request.offset + DOCUMENT_PAGE_BYTES]
        link.send_frame(Document(request.version, request.kind, request.offset, len(whole), page))

    # ---- answers

    def _find(self, order: StartUpload | RefuseRequest) -> Upload | None:
        """None when the session or the request is gone; its event said so."""
        session = self._sessions.get((order.peer, order.session))
        return session.uploads.get((order.version, order.chunk)) if session is not None else None

    def _answer_waiting(self, upload: Upload) -> None:
        answer = upload.answer
        if answer is None:
            return
        waiting, upload.waiting = upload.waiting, []
        for link, request in waiting:
            if isinstance(answer, StartUpload):
                link.pace(answer.pace_bytes_per_s // upload.stripes)
                self._serve(link, request, upload)
            else:
                refusal = Refuse(
                    answer.session, answer.version, answer.chunk, answer.reason, answer.load
                )
                link.answered()
                self._part_done(link, request, upload, 0)
                link.send_frame(refusal)

    def _serve(self, link: UploadLink, request: Request, upload: Upload) -> None:
        store = self._stores.get(request.version)

        def open_part() -> OutgoingPart:
            return OutgoingPart(store, request)

        def done(sent_bytes: int) -> None:
            self._part_done(link, request, upload, sent_bytes)

        is_warm = store is None or self._has_opened(store, request)
        link.send_part(PendingPart(request, open_part, done, is_warm))

    def _has_opened(self, store: VersionStore, request: Request) -> bool:
        """Whether the chunk's file was opened before this request, which opens it."""
        if request.chunk >= len(store.manifest.chunks):
            return True
        key = (request.version, first_file(store, request.chunk))
        was_opened = key in self._opened
        self._opened.add(key)
        return was_opened

    def _part_done(
        self, link: UploadLink, request: Request, upload: Upload, sent_bytes: int
    ) -> None:
        upload.done_count += 1
        upload.sent_bytes += sent_bytes
        session = self._sessions.get((link.peer, request.session))
        if upload.done_count < upload.stripes or session is None:
            return
        del session.uploads[request.version, request.chunk]
        if isinstance(upload.answer, StartUpload):
            self._emit(UploadFinished(link.peer, request.session, request.chunk, upload.sent_bytes))

    def _leave(self, link: UploadLink, key: SessionKey) -> None:
        session = self._sessions[key]
        del session.links[link]
        if not session.links:
            del self._sessions[key]
            self._emit(SessionClosed(*key))

    def _count_bytes(self, count: int) -> None:
        self.bytes_out += count


def first_file(store: VersionStore, chunk: ChunkIndex) -> int:
    """The file that a chunk is served from."""
    return store.manifest.chunks[chunk].positions[0].file_index
