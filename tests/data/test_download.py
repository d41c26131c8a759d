import hashlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from meanteacher.core import InputError
from meanteacher.data.download import data_folder, fetch
from support import PATIENCE

BODY = bytes(range(256)) * 9000  # more than one piece
SHA256 = hashlib.sha256(BODY).hexdigest()

Answer = Callable[[BaseHTTPRequestHandler], None]


def whole(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(BODY)))
    request.end_headers()
    request.wfile.write(BODY)


def cut(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(BODY)))
    request.end_headers()
    request.wfile.write(BODY[:1000])


def of_unknown_length(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(BODY)


def silent(request: BaseHTTPRequestHandler) -> None:
    request.rfile.read(1)  # until the other side gives up


def status(code: int) -> Answer:
    return lambda request: request.send_error(code)


@dataclass
class Server:
    """Gives its answers one after the other, the last one for ever."""

    url: str = ""
    answers: list[Answer] = field(default_factory=lambda: [whole])
    n_requests: int = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    script = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = script.answers[min(script.n_requests, len(script.answers) - 1)]
            script.n_requests += 1
            answer(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        script.url = f"http://127.0.0.1:{http.server_port}/file.bin"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield script
        http.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "file.bin"


def left_behind(target: Path) -> list[str]:
    return [path.name for path in target.parent.iterdir()]


def test_a_download_arrives_whole_and_alone(server: Server, target: Path) -> None:
    fetch(server.url, target, sha256=SHA256)
    assert target.read_bytes() == BODY
    assert left_behind(target) == ["file.bin"]
    assert server.n_requests == 1


def test_a_download_may_be_read_by_whoever_may_read_other_new_files(server: Server, target: Path) -> None:
    fetch(server.url, target, sha256=SHA256)
    plain = target.with_name("plain")
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("fault", [status(500), status(503), status(429), cut])
def test_a_passing_fault_is_tried_again(server: Server, target: Path, fault: Answer) -> None:
    server.answers = [fault, fault, whole]
    fetch(server.url, target, sha256=SHA256, pause=0)
    assert target.read_bytes() == BODY
    assert server.n_requests == 3
    assert left_behind(target) == ["file.bin"]


def test_a_server_that_says_nothing_is_given_up_and_tried_again(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    urlopen = urllib.request.urlopen

    def patient_with_the_second(request: urllib.request.Request, *, timeout: float) -> Any:
        given.append(timeout)
        if len(given) == 1:
            return urlopen(request, timeout=timeout)
        while not server.n_requests:  # on a busy machine it may not have noticed the first one yet
            time.sleep(0.01)
        return urlopen(request, timeout=PATIENCE)

    monkeypatch.setattr(urllib.request, "urlopen", patient_with_the_second)
    server.answers = [silent, whole]
    fetch(server.url, target, sha256=SHA256, pause=0, timeout=0.5)
    assert target.read_bytes() == BODY
    assert server.n_requests == 2
    assert given == [0.5, 0.5]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (status(500), r"tried 3 times.*500 Internal Server Error"),
        (cut, rf"tried 3 times.*cut after 1000 of {len(BODY)} bytes"),
    ],
)
def test_a_lasting_fault_ends_after_three_tries_and_leaves_nothing(
    server: Server, target: Path, fault: Answer, words: str
) -> None:
    server.answers = [fault]
    with pytest.raises(InputError, match=words):
        fetch(server.url, target, sha256=SHA256, pause=0)
    assert server.n_requests == 3
    assert left_behind(target) == []


def test_pauses_between_tries_double(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("meanteacher.data.download.time.sleep", pauses.append)
    server.answers = [status(500)]
    with pytest.raises(InputError):
        fetch(server.url, target, sha256=SHA256, pause=0.5)
    assert pauses == [0.5, 1.0]


def test_a_file_that_does_not_exist_is_asked_for_once(server: Server, target: Path) -> None:
    server.answers = [status(404)]
    with pytest.raises(InputError, match=r"tried once.*404"):
        fetch(server.url, target, sha256=SHA256, pause=60)
    assert server.n_requests == 1


def test_a_wrong_checksum_is_told_once_and_nothing_is_kept(server: Server, target: Path) -> None:
    with pytest.raises(InputError, match=rf"sha256 is {SHA256} instead of {'0' * 64}.*put it at"):
        fetch(server.url, target, sha256="0" * 64, pause=60)
    assert server.n_requests == 1
    assert left_behind(target) == []


def test_a_failed_download_leaves_the_old_file_as_it_was(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(InputError):
        fetch(server.url, target, sha256="0" * 64)
    assert target.read_bytes() == b"old"
    assert left_behind(target) == ["file.bin"]


def test_whoever_reads_the_old_file_can_finish_reading_it(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"old")
    with target.open("rb", buffering=0) as reader:
        fetch(server.url, target, sha256=SHA256)
        assert reader.read() == b"old"
    assert target.read_bytes() == BODY


def test_offline_error_says_what_was_tried_and_where_to_put_the_file(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"
    with pytest.raises(InputError) as caught:
        fetch(url, target, sha256=SHA256, pause=0)
    message = str(caught.value)
    for part in (url, "3 times", "no connection", str(target), "--data DIR", "MEANTEACHER_DATA"):
        assert part in message
    assert left_behind(target) == []


def test_progress_counts_up_to_the_whole_file(server: Server, target: Path) -> None:
    calls: list[tuple[int, int]] = []
    fetch(server.url, target, sha256=SHA256, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) > 1
    assert calls == sorted(calls)
    assert calls[-1] == (len(BODY), len(BODY))


def test_a_server_that_states_no_length_is_read_without_progress(server: Server, target: Path) -> None:
    server.answers = [of_unknown_length]
    calls: list[tuple[int, int]] = []
    fetch(server.url, target, sha256=SHA256, progress=lambda done, total: calls.append((done, total)))
    assert target.read_bytes() == BODY
    assert calls == []


def test_an_interrupted_download_leaves_nothing(server: Server, target: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server.url, target, sha256=SHA256, progress=interrupt)
    assert left_behind(target) == []


def test_a_folder_that_cannot_be_written_is_not_blamed_on_the_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"Could not write.*--data DIR.*MEANTEACHER_DATA"):
        fetch(server.url, tmp_path / "data" / "file.bin", sha256=SHA256)
    assert server.n_requests == 0


def test_the_option_names_the_folder_before_the_variable_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MEANTEACHER_DATA", "~/variable")
    assert data_folder(Path("~/option")) == tmp_path / "option"
    assert data_folder(None) == tmp_path / "variable"
    monkeypatch.setenv("MEANTEACHER_DATA", "")
    assert data_folder(None) == tmp_path / ".cache" / "meanteacher"
    monkeypatch.delenv("MEANTEACHER_DATA")
    assert data_folder(None) == tmp_path / ".cache" / "meanteacher"


def test_user_without_a_home_folder_has_a_data_folder(monkeypatch: pytest.MonkeyPatch):
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.delenv("MEANTEACHER_DATA", raising=False)
    assert data_folder(None) == Path(".cache/meanteacher")
    with pytest.raises(InputError, match="no home folder of that user"):
        data_folder(Path("~somebody/data"))
