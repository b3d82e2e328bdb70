"""Two machines back to back, and everyone who should not get in."""

from __future__ import annotations

import dataclasses

import pytest

from swarm.errors import PeerProtocolError
from swarm.protocol.handshake import Handshake, Role
from swarm.protocol.ids import Address, Identity, NodeId
from swarm.protocol.messages import (
    PROTOCOL_VERSION,
    Bye,
    Hello,
    LinkKind,
    Message,
    Proof,
    Reject,
    RejectReason,
)

KEY = bytes(range(32))
ALICE = NodeId(b"a" * 16)
BOB = NodeId(b"b" * 16)


def hello(
    node: NodeId, *, generation: int = 1, kind: LinkKind = LinkKind.CONTROL, nonce: bytes = b""
) -> Hello:
    return Hello(
        PROTOCOL_VERSION,
        kind,
        node,
        generation,
        nonce or node,
        Address("10.0.0.1", 7000),
        "",
        "",
        0,
    )


def opener(
    ours: Hello, *, key: bytes = KEY, expected: Identity | None = None, highest: int = 0
) -> Handshake:
    return Handshake(
        Role.OPENER, ours, key, highest_generation=lambda _: highest, expected=expected
    )


def acceptor(ours: Hello, *, key: bytes = KEY, highest: int = 0) -> Handshake:
    return Handshake(Role.ACCEPTOR, ours, key, highest_generation=lambda _: highest)


def converse(left: Handshake, right: Handshake) -> int:
    """Carry messages until nobody has anything to say; returns how many one-way trips it took."""
    trips = 0
    pending = left.start()
    assert right.start() == []
    receiver, sender = right, left
    while pending:
        trips += 1
        answers: list[Message] = []
        for message in pending:
            if not receiver.is_over:
                answers += receiver.receive(message)
        pending, receiver, sender = answers, sender, receiver
    return trips


def refused(machine: Handshake, *, ours: bool) -> RejectReason:
    assert machine.peer is None
    assert machine.rejection is not None
    assert machine.rejection.is_ours is ours
    return machine.rejection.reason


def test_both_sides_prove_themselves_in_three_trips() -> None:
    left, right = opener(hello(ALICE, generation=4)), acceptor(hello(BOB, generation=9))
    assert converse(left, right) == 3
    assert left.peer == hello(BOB, generation=9)
    assert right.peer == hello(ALICE, generation=4)


def test_other_protocol_is_rejected_in_one_round_trip_with_both_numbers() -> None:
    left = opener(dataclasses.replace(hello(ALICE), protocol=PROTOCOL_VERSION + 1))
    right = acceptor(hello(BOB))
    assert converse(left, right) == 2
    assert refused(right, ours=True) is RejectReason.PROTOCOL_VERSION
    assert refused(left, ours=False) is RejectReason.PROTOCOL_VERSION
    assert left.rejection is not None
    assert f"protocol {PROTOCOL_VERSION}," in left.rejection.detail
    assert str(PROTOCOL_VERSION + 1) in left.rejection.detail


def test_other_cluster_is_rejected_by_the_opener() -> None:
    left, right = opener(hello(ALICE)), acceptor(hello(BOB), key=bytes(32))
    converse(left, right)
    assert refused(left, ours=True) is RejectReason.WRONG_KEY
    assert refused(right, ours=False) is RejectReason.WRONG_KEY


def test_opener_without_the_key_gets_nowhere() -> None:
    """An acceptor proves itself first; an opener that does not care is still refused."""
    right = acceptor(hello(BOB))
    right.receive(hello(ALICE))
    assert right.receive(Proof(bytes(32))) == [
        Reject(RejectReason.WRONG_KEY, "the other side has another cluster key; compare the files")
    ]
    assert refused(right, ours=True) is RejectReason.WRONG_KEY


def test_our_own_proof_sent_back_to_us_is_worth_nothing() -> None:
    """Reflection: the role is part of what is proven."""
    left = opener(hello(ALICE))
    mirror = acceptor(hello(BOB))
    (_, proof) = mirror.receive(left.start()[0])
    assert isinstance(proof, Proof)
    right = acceptor(hello(BOB))
    right.receive(hello(ALICE))
    right.receive(proof)
    assert refused(right, ours=True) is RejectReason.WRONG_KEY


def test_proof_of_another_connection_is_worth_nothing() -> None:
    first_left, first_right = opener(hello(ALICE)), acceptor(hello(BOB, nonce=b"1" * 16))
    reply, proof = first_right.receive(first_left.start()[0])
    first_left.receive(reply)
    (recorded,) = first_left.receive(proof)
    second = acceptor(hello(BOB, nonce=b"2" * 16))
    second.receive(hello(ALICE))
    second.receive(recorded)
    assert refused(second, ours=True) is RejectReason.WRONG_KEY


@pytest.mark.parametrize(
    "change",
    [{"generation": 8}, {"zone": "elsewhere"}, {"address": Address("10.6.6.6", 1)},
     {"nonce": b"z" * 16}],
)  # fmt: skip
def test_altered_hello_does_not_fit_its_proof(change: dict[str, object]) -> None:
    left, right = opener(hello(ALICE)), acceptor(hello(BOB))
    # The parameters change fields of several types; the dataclass takes them as they are.
    altered = dataclasses.replace(hello(ALICE), **change)  # type: ignore[arg-type]
    for answer in right.receive(altered):
        left.receive(answer)
    assert refused(left, ours=True) is RejectReason.WRONG_KEY


def test_acceptor_takes_the_kind_of_link_from_the_opener() -> None:
    left = opener(hello(ALICE, kind=LinkKind.DATA))
    right = acceptor(hello(BOB))
    converse(left, right)
    assert left.peer is not None
    assert right.peer is not None
    assert left.peer.kind is right.peer.kind is LinkKind.DATA


def test_kind_changed_on_the_way_is_refused() -> None:
    left, right = opener(hello(ALICE)), acceptor(hello(BOB))
    for answer in right.receive(hello(ALICE, kind=LinkKind.DATA)):
        if not left.is_over:
            left.receive(answer)
    assert refused(left, ours=True) is RejectReason.OTHER


def test_meeting_oneself_is_recognised() -> None:
    left, right = opener(hello(ALICE)), acceptor(hello(ALICE))
    converse(left, right)
    assert refused(right, ours=True) is RejectReason.SELF
    assert refused(left, ours=False) is RejectReason.SELF


def test_address_that_belongs_to_someone_else_now() -> None:
    left = opener(hello(ALICE), expected=Identity(NodeId(b"c" * 16), 1))
    converse(left, acceptor(hello(BOB)))
    assert refused(left, ours=True) is RejectReason.WRONG_NODE


def test_older_generation_than_the_handout_names_is_stale() -> None:
    left = opener(hello(ALICE), expected=Identity(BOB, 5))
    converse(left, acceptor(hello(BOB, generation=4)))
    assert refused(left, ours=True) is RejectReason.STALE_GENERATION


def test_newer_generation_than_the_handout_names_is_welcome() -> None:
    left = opener(hello(ALICE), expected=Identity(BOB, 5))
    converse(left, acceptor(hello(BOB, generation=6)))
    assert left.peer is not None


def test_older_generation_than_one_proven_before_is_stale() -> None:
    right = acceptor(hello(BOB), highest=7)
    converse(opener(hello(ALICE, generation=6)), right)
    assert refused(right, ours=True) is RejectReason.STALE_GENERATION


def test_shell_may_refuse_for_its_own_reason() -> None:
    right = acceptor(hello(BOB))
    assert right.refuse(RejectReason.LEAVING, "bye") == [Reject(RejectReason.LEAVING, "bye")]
    assert right.is_over


@pytest.mark.parametrize("message", [Proof(bytes(32)), Bye("what")])
def test_message_out_of_place_is_a_protocol_error(message: Message) -> None:
    with pytest.raises(PeerProtocolError):
        acceptor(hello(BOB)).receive(message)


def test_second_hello_is_a_protocol_error() -> None:
    right = acceptor(hello(BOB))
    right.receive(hello(ALICE))
    with pytest.raises(PeerProtocolError):
        right.receive(hello(ALICE))
