"""Key lines: what reads, and that no error repeats a digit."""

from __future__ import annotations

import pytest

from swarm.errors import UsageError
from swarm.protocol.keys import KeyKind, format_key, parse_key

KEY = bytes(range(32))


@pytest.mark.parametrize("kind", KeyKind)
def test_key_survives_its_file(kind: KeyKind) -> None:
    text = format_key(kind, KEY)
    assert text.count("\n") == 1
    assert parse_key(kind, text, source="key") == KEY


def test_format_is_the_documented_one() -> None:
    assert format_key(KeyKind.CLUSTER, KEY) == f"swarm-cluster-key:1:{KEY.hex()}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key"),
        ("hello", "no key"),
        (format_key(KeyKind.SIGNING, KEY), "a swarm-signing-key"),
        (f"swarm-cluster-key:2:{KEY.hex()}", "format '2'"),
        (f"swarm-cluster-key:1:{KEY.hex()[:-1]}", "damaged or cut"),
        (f"swarm-cluster-key:1:{KEY.hex()[:-2]} g", "damaged or cut"),
        (f"swarm-cluster-key:1:{KEY.hex()}\nmore", "damaged or cut"),
        (f"swarm-cluster-key:1:{'0' * 64}", "zeros"),
    ],
)
def test_other_text_is_refused_by_name_and_without_digits(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key(KeyKind.CLUSTER, text, source="/etc/swarm/key")
    assert says in caught.value.message
    assert "/etc/swarm/key" in caught.value.message
    assert KEY.hex()[8:24] not in caught.value.message + caught.value.hint
