"""The kernel's numbers, against bytes that nobody has read."""

from __future__ import annotations

import socket
import time

from swarm.agent.tcp_info import read_tcp_info


def test_received_bytes_are_seen_before_they_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            sender.sendall(bytes(12_345))
            deadline = time.monotonic() + 5
            while (info := read_tcp_info(receiver)).bytes_received < 12_345:
                assert time.monotonic() < deadline
            assert info.bytes_received == 12_345
            receiver.recv(100_000)
            assert read_tcp_info(receiver).bytes_received == 12_345
            assert 0 < read_tcp_info(sender).rtt_s < 1
            assert read_tcp_info(sender).delivery_rate > 0
            assert read_tcp_info(sender).unsent_bytes == 0


def test_bytes_that_the_receiver_has_no_room_for_are_unsent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            sender.setblocking(False)
            while True:
                try:
                    sender.send(bytes(65536))
                except BlockingIOError:
                    break
            assert read_tcp_info(sender).unsent_bytes > 65536
