"""Reads a msgpack document field by field, so that nothing is built before it is checked.

`unpackb` turns one byte of an empty map into 64 bytes of object: a megabyte of them becomes 72 MiB
before a schema sees it. Here the unpacker may build scalars only; the length of each container is
read as a number, compared with its limit, and its members are asked for one by one. What a document
claims therefore costs nothing until it is there.
"""

from __future__ import annotations

import io

import msgpack

from swarm.errors import ManifestError

_READ_BYTES = 1 << 16  # The unpacker's window; it grows only when one string is longer.


class StrictReader:
    """One pass over one document. Every method raises ManifestError when the next value is not what
    is asked for; `what` names the document in the message."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._length = len(raw)
        self._what = what
        # Containers are read by their headers alone, so `unpack` may refuse them all.
        self._unpacker = msgpack.Unpacker(
            io.BytesIO(raw),
            read_size=_READ_BYTES,
            max_buffer_size=max(len(raw), _READ_BYTES),
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )

    def error(self, problem: str) -> ManifestError:
        """The error to raise when a value that was read breaks a rule of the document."""
        return ManifestError(
            f"{self._what}: {problem}",
            object_name=self._what,
            hint="it is damaged or not one of ours; fetch or publish it again",
        )

    def array_length(self, maximum: int) -> int:
        """Enter an array of at most `maximum` members."""
        try:
            count: int = self._unpacker.read_array_header()
        except (ValueError, msgpack.UnpackException) as error:
            raise self._malformed("an array", error) from error
        # Each member takes a byte at least: a longer claim is a lie whatever the limit.
        if count > min(maximum, self._length):
            raise self.error(f"array of {count} members, at most {maximum} are allowed")
        return count

    def enter_array(self, count: int) -> None:
        """Enter an array of exactly `count` members."""
        if self.array_length(count) != count:
            raise self.error(f"array that should have {count} members")

    def enter_map(self, count: int) -> None:
        """Enter a map of exactly `count` pairs."""
        try:
            found = self._unpacker.read_map_header()
        except (ValueError, msgpack.UnpackException) as error:
            raise self._malformed("a map", error) from error
        if found != count:
            raise self.error(f"map of {found} pairs where {count} belong")

    def key(self, name: str) -> None:
        """The next value is the map key `name`."""
        if self._scalar() != name:
            raise self.error(f"key {name!r} is missing or out of order")

    def integer(self, name: str, minimum: int, maximum: int) -> int:
        value = self._scalar()
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(f"{name} is not an integer from {minimum} to {maximum}: {show(value)}")
        return value

    def number(self, name: str) -> float:
        """A finite float."""
        value = self._scalar()
        if type(value) is not float or not abs(value) < float("inf"):
            raise self.error(f"{name} is not a number: {show(value)}")
        return value

    def flag(self, name: str) -> bool:
        value = self._scalar()
        if type(value) is not bool:
            raise self.error(f"{name} is not true or false: {show(value)}")
        return value

    def text(self, name: str, chars_max: int) -> str:
        value = self._scalar()
        if type(value) is not str or len(value) > chars_max:
            raise self.error(f"{name} is not a text of ≤ {chars_max} characters: {show(value)}")
        return value

    def text_or_none(self, name: str, chars_max: int) -> str | None:
        value = self._scalar()
        if value is not None and (type(value) is not str or len(value) > chars_max):
            raise self.error(f"{name} is neither nil nor a text: {show(value)}")
        return value

    def blob(self, name: str) -> bytes:
        value = self._scalar()
        if type(value) is not bytes:
            raise self.error(f"{name} is not a byte string: {show(value)}")
        return value

    def end(self) -> None:
        """Nothing may follow."""
        if self._unpacker.tell() != self._length:
            raise self.error(f"{self._length - self._unpacker.tell()} bytes follow its end")

    def _scalar(self) -> object:
        try:
            value: object = self._unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as error:
            raise self._malformed("a value", error) from error
        return value

    def _malformed(self, expected: str, error: Exception) -> ManifestError:
        reason = str(error) or type(error).__name__
        return self.error(f"byte {self._unpacker.tell()}: {expected} expected ({reason[:80]})")


def show(value: object) -> str:
    """A hostile value for a message: escaped and short."""
    if isinstance(value, str | bytes):
        value = value[:80]
    return ascii(value)[:120]
