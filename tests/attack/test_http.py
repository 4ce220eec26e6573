"""Unexpected answers from a reward server. Each costs only its own sample, with its cause; the next is scored."""

import json
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from openrlhf_rpo.config import RewardOptions
from openrlhf_rpo.rollout import http_rewards
from openrlhf_rpo.rollout.reward_call import RewardRequest
from openrlhf_rpo.rollout.scoring import make_scorer

RIGHT = b'{"rewards": 1.0}'


def answer(body: bytes = RIGHT, *headers: str, status: str = "200 OK", length: object = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\nConnection: close\r\n\r\n" + body


def rewards(value: str) -> bytes:
    return answer(b'{"rewards": ' + value.encode() + b"}")


ONCE = {
    "deep brackets": (answer(b"[" * 200_000), "RecursionError"),
    "deep braces": (answer(b'{"a":' * 100_000), "RecursionError"),
    "deep reward": (rewards("[" * 900 + "1, 2" + "]" * 900), "holds 2 values"),
    "400 digits": (rewards("1" + "0" * 400), "too large a number"),
    "5000 digits": (rewards("1" * 5000), "ValueError"),
    "400 digits in the logs": (answer(b'{"rewards": 1, "extra_logs": {"a": ' + b"9" * 400 + b"}}"), "too large a number"),
    "NaN": (rewards("NaN"), "not a finite number"),
    "Infinity": (rewards("-Infinity"), "not a finite number"),
    "1e999": (rewards("1e999"), "not a finite number"),
    "text": (rewards('"1.0"'), "not a number but str"),
    "null": (rewards("null"), "not a number but NoneType"),
    "object": (rewards('{"a": 1}'), "not a number but dict"),
    "empty list": (rewards("[]"), "holds 0 values"),
    "list": (answer(b"[1.0]"), "a dict with 'rewards' is needed, not list"),
    "logs in a list": (answer(b'{"rewards": 1, "extra_logs": [1]}'), "must be a dict"),
    "name of a log": (answer(b'{"rewards": 1, "extra_logs": {"\\ud800": 1}}'), "not printable"),
    "escape in a log": (answer(b'{"rewards": 1, "extra_logs": {"\\u001b[2J": 1}}'), "not printable"),
    "bad UTF-8": (answer(b'{"rewards": "\xff\xfe\xfa"}'), "UnicodeDecodeError"),
    "half UTF-16": (answer('{"rewards": 1}'.encode("utf-16") + b"\xd8"), "UnicodeDecodeError"),
    "nothing": (answer(b""), "JSONDecodeError"),
    "status 204": (answer(b"", status="204 No Content"), "JSONDecodeError"),
    "wrong gzip": (answer(RIGHT, "Content-Encoding: gzip"), "is packed (gzip)"),
    "unknown packing": (answer(RIGHT, "Content-Encoding: rpo"), "is packed (rpo)"),
    "too long": (answer(b" " * 2_000_000 + RIGHT), "more than 1,048,576 bytes"),
    "cut short": (answer(RIGHT, length=500), "ClientPayloadError"),
    "longer than said": (answer(RIGHT, length=5), "Error"),
    "negative length": (answer(RIGHT, length=-5), "ClientResponseError"),
    "huge length": (answer(RIGHT, length="9" * 40), "ClientResponseError"),
    "length in words": (answer(RIGHT, length="ten"), "ClientResponseError"),
    "bad chunks": (answer(b"zz\r\nxx", "Transfer-Encoding: chunked", length=""), "Client"),
    "huge header": (answer(RIGHT, "X: " + "x" * 100_000), "ClientResponseError"),
    "many headers": (answer(RIGHT, *[f"X{i}: 1" for i in range(5000)]), "ClientResponseError"),
    "no HTTP": (b"\x00\xff" * 100, "Client"),
    "closed at once": (b"", "ServerDisconnectedError"),
    "status 999": (answer(status="999 \x1b[2J"), "999"),
    "status 500": (answer(status="500 No"), "500"),
    "status 101": (answer(status="101 Switching Protocols", length=0), "Error"),
    "status 302": (answer(b"", "Location: http://me:SECRET@elsewhere/a?token=SECRET", status="302 F"), "***@elsewhere/a"),
    "status 307": (answer(b"", "Location: /other", status="307 T"), "redirects to /other, which is not followed"),
    "status 300": (answer(status="300 M"), "redirects to nowhere"),
}

KEPT = {
    "unknown charset": answer(RIGHT, "Content-Type: application/json; charset=rot13"),
    "another type": answer(RIGHT, "Content-Type: image/png; charset=\xff"),
    "UTF-16": answer('{"rewards": 1}'.encode("utf-16")),
    "a cookie": answer(RIGHT, "Set-Cookie: a=b; Domain=elsewhere"),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(http_rewards, "_BACKOFF_SECONDS", 0.001)


@pytest.fixture
def serve():
    """``serve(handle)``: the address of a server that hands each connection, whose request was read, to ``handle``."""
    servers = []

    def start(handle):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def one(connection):
            with connection, suppress(OSError):
                connection.settimeout(5)
                head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                while len(body) < length:
                    body += connection.recv(65536)
                handle(connection, head, json.loads(body))

        def accept():
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/reward"

    yield start
    for server in servers:
        server.close()


def score(url, *labels, timeout=2.0, share=0.9):
    requests = [RewardRequest("q", "question and answer", "question", label, "answer", 3) for label in labels]
    return make_scorer(RewardOptions(timeout=timeout, max_failure_share=share, on_failure=-7), [url]).score(requests)


def is_bad(body):
    return body["labels"] == ["bad"]


@pytest.mark.parametrize("name", ONCE)
def test_an_answer_costs_only_its_own_sample(serve, name):
    raw, cause = ONCE[name]
    url = serve(lambda connection, head, body: connection.sendall(raw if is_bad(body) else answer()))
    bad, good = score(url, "bad", "good")
    assert (bad.reward, good.reward, good.failure) == (-7, 1, None)
    assert cause in bad.failure and bad.failure.startswith(url) and "SECRET" not in bad.failure


@pytest.mark.parametrize("name", KEPT)
def test_an_odd_answer_with_a_number_is_read(serve, name):
    [result] = score(serve(lambda connection, head, body: connection.sendall(KEPT[name])), "bad")
    assert (result.reward, result.failure) == (1, None)


def endless_body(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


def endless_headers(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: 1\r\n" * 1000)


def endless_line(connection):
    connection.sendall(b"HTTP/1.1 200 ")
    while True:
        connection.sendall(b"O" * 65536)


def endless_chunks(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1;" + b"x" * 1000 + b"\r\n \r\n")


def drips(connection):
    for byte in answer():
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def continues(connection):
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def resets(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says_nothing(connection):
    time.sleep(3)


@pytest.mark.parametrize(
    "behave",
    [endless_body, endless_headers, endless_line, endless_chunks, drips, continues, resets, says_nothing],
)
def test_a_server_without_an_end_costs_only_its_own_sample(serve, behave):
    url = serve(lambda connection, head, body: behave(connection) if is_bad(body) else connection.sendall(answer()))
    started = time.monotonic()
    bad, good = score(url, "bad", "good", timeout=0.4)
    assert bad.failure and (good.reward, good.failure) == (1, None)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_no_prompt_goes_where_a_redirect_points(serve, status):
    seen = []
    other = serve(lambda connection, head, body: seen.append(body))
    url = serve(lambda connection, head, body: connection.sendall(answer(b"", f"Location: {other}", status=status)))
    [result] = score(url, "bad", share=1)
    assert f"redirects to {other}" in result.failure and not seen


def test_a_login_comes_from_netrc_and_goes_to_its_host_only(serve, tmp_path, monkeypatch):
    file = tmp_path / ".netrc"
    file.write_text("machine 127.0.0.1 login me password SECRET\ndefault login all password OTHER\n")
    file.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    heads = []

    def keep(connection, head, body):
        heads.append(head)
        connection.sendall(answer(status="401 No") if is_bad(body) else answer())

    url = serve(keep)
    bad, _ = score(url, "bad", "good")
    assert b"Authorization: Basic bWU6U0VDUkVU" in heads[0] and "SECRET" not in bad.failure
    heads.clear()
    score(url.replace("127.0.0.1", "localhost"), "good")
    assert b"Authorization" not in heads[0]
