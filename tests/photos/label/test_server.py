"""The server answers this machine's own browser and nobody else, and sends pictures, never files."""

import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from PIL import Image

from label_example import ASKED, KNOWN, Example, make_example, serving
from meanteacher.cli.label import label
from meanteacher.core import InputError
from meanteacher.photos.label.server import LabelServer
from support import PATIENCE

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return make_example(tmp_path)


@pytest.fixture
def server(example: Example) -> Iterator[LabelServer]:
    with serving(example.session()) as server:
        yield server


def ask(server: LabelServer, verb: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Exactly this request; `path` may name the token as TOKEN."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(verb, path.replace("TOKEN", server.token), body, named)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def post(server: LabelServer, action: str, **content: object) -> Answer:
    body = json.dumps({"window": "w", **content}).encode()
    return ask(server, "POST", f"/TOKEN/{action}", body, Content_Type="application/json")


def answer_next(server: LabelServer, label: str) -> Answer:
    """Answer the question that is shown."""
    return post(server, "answer", question=post(server, "state").json()["question"]["index"], label=label)


def index_of(server: LabelServer, name: str) -> int:
    return server.session.photos.names.index(name)


def test_an_answer_is_in_the_file_when_the_next_question_comes(server: LabelServer, example: Example):
    answer = answer_next(server, "owl")
    assert example.labels() == {**KNOWN, ASKED[0]: "owl"}
    assert answer.json()["question"]["name"] == ASKED[1]
    assert answer.json() == post(server, "state").json()

    def skip() -> Answer:
        return post(server, "skip", question=post(server, "state").json()["question"]["index"])

    assert skip().json()["question"]["name"] == ASKED[2]
    assert skip().json()["question"] is None
    assert post(server, "again").json()["question"]["name"] == ASKED[1]
    assert post(server, "undo").json()["question"]["name"] == ASKED[0]
    assert example.labels() == KNOWN


def test_two_windows_show_different_images_until_one_is_closed(server: LabelServer):
    assert post(server, "state").json()["question"]["name"] == ASKED[0]
    assert post(server, "state", window="another").json()["question"]["name"] == ASKED[1]
    assert post(server, "close").json() == {}
    assert post(server, "state", window="third").json()["question"]["name"] == ASKED[0]


def test_only_this_machine_can_connect(server: LabelServer):
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"


@pytest.mark.parametrize("path", ["/", "/state", "/TOKE", "/TOKENx/", "/x/TOKEN/", "/%FF/", "//", "/../TOKEN"])
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_nothing_is_there_without_the_token(server: LabelServer, example: Example, verb: str, path: str):
    body = json.dumps({"window": "w", "question": 2, "label": "owl"}).encode() if verb == "POST" else None
    path = path.replace("TOKE", server.token[:-1], 1) if path == "/TOKE" else path
    answer = ask(server, verb, path, body, Content_Type="application/json")
    assert answer.status == 404
    assert server.token.encode() not in answer.body
    assert not example.file.exists()


def test_every_server_has_a_token_of_its_own(example: Example):
    with LabelServer(example.session()) as one, LabelServer(example.session()) as other:
        assert one.token != other.token
        assert len(one.token) >= 22


@pytest.mark.parametrize("host", ["evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example:PORT"])
def test_a_request_under_another_name_is_refused(server: LabelServer, host: str):
    answer = ask(server, "GET", "/TOKEN/", Host=host.replace("PORT", str(server.server_port)))
    assert answer.status == 403
    assert b"html" not in answer.body


def test_the_two_names_of_this_machine_are_answered(server: LabelServer):
    for name in ("127.0.0.1", "localhost"):
        assert ask(server, "GET", "/TOKEN/", Host=f"{name}:{server.server_port}").status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_form_of_another_site_cannot_answer(server: LabelServer, example: Example, kind: str):
    answer = ask(server, "POST", "/TOKEN/answer", b'{"window": "w", "question": 2, "label": "owl"}', Content_Type=kind)
    assert answer.status == 415
    assert not example.file.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 5000,
        b"\xff",
        b'{"question": 2, "label": "owl"}',
        b'{"window": 1, "question": 2, "label": "owl"}',
        b'{"window": "w", "question": 2}',
        b'{"window": "w", "question": "2", "label": "owl"}',
        b'{"window": "w", "question": 2, "label": 1}',
        b'{"window": "w", "question": 2, "label": "' + b"x" * 20_000 + b'"}',
    ],
)
def test_nonsense_is_no_answer(server: LabelServer, example: Example, body: bytes):
    answer = ask(server, "POST", "/TOKEN/answer", body, Content_Type="application/json")
    assert answer.status == 400
    assert "Not a valid request" in answer.json()["error"]
    assert not example.file.exists()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("POST /TOKEN/undo", b"400"), ("GET /\xff/state", b"404"), ("GET /TOKEN/image/²", b"404")],
)
def test_what_no_browser_would_send_is_refused_too(server: LabelServer, request_line: str, status: bytes):
    head = f"{request_line} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n\r\n"
    with socket.create_connection(server.server_address, timeout=PATIENCE) as connection:
        connection.sendall(head.replace("TOKEN", server.token).encode())
        assert connection.recv(100).split()[1] == status


def raw(server: LabelServer, head: str, body: bytes = b"") -> bytes:
    """The status of the answer to exactly these bytes; empty where the connection was closed without one."""
    host = f"Host: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.server_address, timeout=PATIENCE) as connection:
        first, _, rest = head.replace("TOKEN", server.token).partition("\r\n")
        connection.sendall(f"{first}\r\n{host}{rest}\r\n\r\n".encode() + body)
        return connection.recv(100)[9:12]


@pytest.mark.parametrize("length", ["0000000010000000", "000000001" + "0" * 9, "9" * 5000, "-1", "1e3", "5, 5"])
def test_a_body_has_no_more_bytes_than_the_limit(server: LabelServer, length: str):
    """Only its first digits were compared, so that any number of bytes was read; here nobody sends them."""
    assert raw(server, f"POST /TOKEN/undo HTTP/1.1\r\nContent-Length: {length}", b"{}") == b"400"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:PORT", "http://127.0.0.1:1", ""])
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_another_site_is_not_answered_even_with_the_token(
    server: LabelServer, example: Example, origin: str, verb: str
):
    named = {"Content_Type": "application/json", "Origin": origin.replace("PORT", str(server.server_port))}
    body = json.dumps({"window": "w", "question": 2, "label": "owl"}).encode() if verb == "POST" else None
    answer = ask(server, verb, "/TOKEN/answer" if body else "/TOKEN/", body, **named)
    assert answer.status == 403
    assert b"html" not in answer.body
    assert not example.file.exists()


def test_the_pages_own_origin_is_answered(server: LabelServer):
    for name in ("127.0.0.1", "localhost"):
        assert ask(server, "GET", "/TOKEN/", Origin=f"http://{name}:{server.server_port}").status == 200


@pytest.mark.parametrize("junk", [b"\xff" * 200_000, b"path," + b"x" * 200_000, b'path,label\n"', b"\0" * 10])
def test_a_labels_file_that_became_junk_is_said_and_left_alone(server: LabelServer, example: Example, junk: bytes):
    example.file.write_bytes(junk)
    answer = answer_next(server, "owl")
    assert answer.status == 409
    assert "labels.csv" in answer.json()["error"]
    assert len(answer.body) < 1000
    assert example.file.read_bytes() == junk


def test_an_unexpected_error_is_answered_and_shown(
    server: LabelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def fail(_: str) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(server.session, "undo", fail)
    answer = post(server, "undo")
    assert answer.status == 500
    assert "terminal" in answer.json()["error"]
    assert post(server, "state").status == 200
    shown, ends = "", time.monotonic() + PATIENCE
    while "lost" not in shown and time.monotonic() < ends:  # the server's thread prints after it has answered
        shown += capfd.readouterr().err
    assert "lost" in shown


def test_a_slow_client_is_cut_off_however_many_bytes_it_sends(example: Example, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meanteacher.photos.label.server._SECONDS", 0.5)
    with (
        serving(example.session()) as server,
        socket.create_connection(server.server_address, timeout=PATIENCE) as slow,
    ):
        slow.settimeout(0.05)
        closed = False
        for byte in itertools.islice(itertools.cycle(b"GET /nothing "), 600):
            try:
                slow.sendall(bytes([byte]))
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue  # no answer yet
            except ConnectionError:
                closed = True
            if closed:
                break
        assert closed
        assert post(server, "state").status == 200


def test_what_the_person_can_correct_is_said(server: LabelServer):
    answer = answer_next(server, " ")
    assert answer.status == 409
    assert "one line of 1 to 100 printable characters" in answer.json()["error"]


def test_an_unknown_action_or_place_is_refused(server: LabelServer):
    assert post(server, "delete").status == 400
    for path in ("/TOKEN/labels.csv", "/TOKEN/state", "/TOKEN/../state", "/TOKEN/page.js", "/TOKEN/state/x"):
        assert ask(server, "GET", path).status == 404
    assert ask(server, "PUT", "/TOKEN/state").status == 501


@pytest.mark.parametrize("path", ["/TOKEN/", "/TOKEN/state", "/TOKEN/image/2", "/nothing"])
def test_every_answer_forbids_what_it_does_not_need(server: LabelServer, path: str):
    headers = ask(server, "GET", path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_asks_no_other_place_for_anything(server: LabelServer):
    page = ask(server, "GET", "/TOKEN/").body.decode()
    assert "http:" not in page
    assert "https:" not in page
    assert "innerHTML" not in page


@pytest.mark.parametrize("position", ["5", "-1", "0x0", "1.0", "..", "%2e%2e", "one.jpg", "", "9" * 500])
def test_images_have_numbers_and_no_names(server: LabelServer, position: str):
    assert ask(server, "GET", f"/TOKEN/image/{position}").status == 404


@pytest.mark.parametrize(
    ("size", "shown"),
    [((3000, 1500), (1024, 512)), ((500, 800), (500, 800)), ((32, 32), (384, 384)), ((1, 2000), (1, 1024))],
)
def test_an_image_is_shown_large_but_not_too_large(tmp_path: Path, size: tuple[int, int], shown: tuple[int, int]):
    example = make_example(tmp_path)
    Image.new("RGB", size, "red").save(example.photos / ASKED[0])
    with serving(example.session()) as server:
        answer = ask(server, "GET", f"/TOKEN/image/{index_of(server, ASKED[0])}")
    assert answer.headers["Content-Type"] == "image/jpeg"
    picture = Image.open(BytesIO(answer.body))
    assert picture.size == shown
    assert picture.getpixel((0, 0)) == pytest.approx((254, 0, 0), abs=3)


def test_an_image_is_shown_upright(tmp_path: Path):
    example = make_example(tmp_path)
    lying = Image.new("RGB", (600, 400))
    exif = lying.getexif()
    exif[0x0112] = 6
    lying.save(example.photos / ASKED[0], exif=exif)
    with serving(example.session()) as server:
        answer = ask(server, "GET", f"/TOKEN/image/{index_of(server, ASKED[0])}")
    assert Image.open(BytesIO(answer.body)).size == (400, 600)


def test_no_byte_of_a_file_is_sent(tmp_path: Path):
    example = make_example(tmp_path)
    text = b"<script>alert(1)</script>"
    (example.photos / ASKED[0]).write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'>" + text + b"</svg>")
    picture = BytesIO()
    Image.new("RGB", (50, 50)).save(picture, "JPEG", comment=text)
    (example.photos / ASKED[2]).write_bytes(picture.getvalue() + text)
    with serving(example.session()) as server:
        for name, status in ((ASKED[0], 404), (ASKED[2], 200)):
            answer = ask(server, "GET", f"/TOKEN/image/{index_of(server, name)}")
            assert answer.status == status
            assert b"script" not in answer.body


def test_an_image_that_cannot_be_read_is_named_with_the_reason_and_can_be_skipped(tmp_path: Path):
    example = make_example(tmp_path)
    whole = (example.photos / ASKED[0]).read_bytes()
    (example.photos / ASKED[0]).write_bytes(whole[: len(whole) // 2])
    (example.photos / ASKED[1]).write_bytes(b"no image")
    with serving(example.session()) as server:
        (example.photos / ASKED[2]).unlink()
        assert post(server, "state").json()["question"]["problem"] == "truncated"
        one, two, three = (index_of(server, name) for name in ASKED)
        assert post(server, "skip", question=one).json()["question"]["problem"] == "not an image"
        assert post(server, "skip", question=two).json()["question"]["problem"] == "gone"
        assert b"cannot be read: gone" in ask(server, "GET", f"/TOKEN/image/{three}").body


def test_a_port_in_use_is_said(server: LabelServer, example: Example):
    with pytest.raises(InputError, match=f"Port {server.server_port} cannot be used: .*another port with --port"):
        LabelServer(example.session(), server.server_port)


def test_a_browser_that_hangs_up_is_no_error_but_a_fault_is_shown(
    server: LabelServer, capfd: pytest.CaptureFixture[str]
):
    for sent in (b"", b"GET /", b"nonsense\r\n\r\n"):
        with socket.create_connection(server.server_address, timeout=PATIENCE) as connection:
            connection.sendall(sent)
    assert post(server, "state").status == 200
    for error, shown in ((BrokenPipeError(), False), (ConnectionResetError(), False), (KeyError("lost"), True)):
        try:
            raise error
        except (OSError, KeyError):
            server.handle_error(None, server.server_address)
        said = capfd.readouterr().err
        assert ("lost" in said) == shown == bool(said)


@pytest.fixture
def nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command computes no features in the background."""
    monkeypatch.setattr("meanteacher.cli.label._keep_choosing", lambda session, should_stop: None)


@pytest.mark.usefixtures("nothing_is_chosen")
def test_the_command_opens_the_browser_and_ends_politely(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    opened = []

    def browser(address: str) -> None:
        opened.append(address)
        connection = HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)

        def post(action: str, **content: object) -> dict:
            body = json.dumps({"window": "w", **content})
            connection.request("POST", f"{urlsplit(address).path}{action}", body, JSON)
            return json.loads(connection.getresponse().read())

        post("answer", question=post("state")["question"]["index"], label="owl")
        connection.close()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("webbrowser.open", browser)
    label(example.photos, run=example.run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 photos without a label. The page is at"
    assert [lines[1].strip()] == opened
    assert lines[-3] == f"1 new label in {example.file}; 2 photos without a label left."
    assert lines[-1].strip() == example.session().command
    assert example.labels() == {**KNOWN, ASKED[0]: "owl"}


@pytest.mark.usefixtures("nothing_is_chosen")
def test_the_command_opens_no_browser_when_told_so(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail(f"opened {address}"))
    monkeypatch.setattr(LabelServer, "serve_until", lambda self, should_stop: None)
    label(example.photos, run=example.run, no_open=True)
    out = capsys.readouterr().out
    assert "http://127.0.0.1:" in out
    assert f"Nothing new was written to {example.file}; 3 photos without a label left." in out
    assert "meanteacher fit" not in out


def test_the_command_asks_nothing_when_all_is_answered(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    window = example.window()
    window.answer("cat", "cat", "cat")
    monkeypatch.setattr(LabelServer, "serve_until", lambda self, should_stop: pytest.fail("served"))
    label(example.photos, run=example.run)
    out = capsys.readouterr().out
    assert f"Nothing new was written to {example.file}; no photo without a label left." in out
    assert window.session.command in out
