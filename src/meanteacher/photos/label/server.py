"""The server of the labelling page, for this machine only: on 127.0.0.1, with a secret token in the address."""

import base64
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socket import SHUT_RDWR
from threading import Thread, Timer
from typing import Any

from meanteacher.core import InputError
from meanteacher.files.images import UnreadableError
from meanteacher.formats import escape_name
from meanteacher.photos.label.page import as_jpeg
from meanteacher.photos.label.session import Session

_HOST = "127.0.0.1"
_MAX_BODY, _MAX_DIGITS = 10_000, 9
_SECONDS = 30.0
"""Time limit of a request, from the connection to the end of the answer."""


class LabelServer(ThreadingHTTPServer):
    """Serves the questions of a session to a browser. No request contains the name of a file."""

    daemon_threads = True
    timeout = 0.5
    """Seconds between two calls of `should_stop`."""

    def __init__(self, session: Session, port: int = 0) -> None:
        """Bind the port; 0 chooses a free port."""
        self.session = session
        # The check whether an image is readable decodes it; the cache keeps it until it is sent.
        self._jpeg = lru_cache(maxsize=8)(as_jpeg)
        self.token = secrets.token_urlsafe(16)
        self.page, self.policy = _page()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise InputError(
                f"Port {port} cannot be used: {error.strerror}. Give another port with --port, or leave it out for a "
                "free one."
            ) from error
        # Another site can make its name resolve to this machine, but its requests have that name as their host.
        self.hosts = [f"{name}:{self.server_port}" for name in (_HOST, "localhost")]
        self.origins = [f"http://{host}" for host in self.hosts]

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def serve_until(self, should_stop: Callable[[], bool]) -> None:
        """Answer requests until `should_stop` returns True."""
        while not should_stop():
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print every error except those of a connection that the browser closed."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def state(self, window: str) -> dict[str, Any]:
        """The content of a window, including the reason if its photo cannot be read."""
        state = self.session.state(window)
        if question := state["question"]:
            question["problem"] = self._problem(question["index"])
            # The next photo is decoded in the meantime.
            Thread(target=self._prepare, daemon=True).start()
        return state

    def picture(self, index: int) -> bytes:
        """A photo as JPEG; raises UnreadableError."""
        return self._jpeg(self.session.photos.path(index))

    def _prepare(self) -> None:
        if (index := self.session.look_ahead()) is not None:
            self._problem(index)

    def _problem(self, index: int) -> str | None:
        try:
            self.picture(index)
        except UnreadableError as error:
            return str(error)
        return None


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer
    server_version, sys_version = "meanteacher", ""

    def setup(self) -> None:
        super().setup()
        # A timeout of the socket would start again with every byte of a slow client.
        self._clock = Timer(_SECONDS, self._cut_off)
        self._clock.daemon = True
        self._clock.start()

    def finish(self) -> None:
        self._clock.cancel()
        super().finish()

    def _cut_off(self) -> None:
        with suppress(OSError):  # it has been closed meanwhile
            self.connection.shutdown(SHUT_RDWR)

    def do_GET(self) -> None:
        match self._request_path():
            case []:
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
            case ["image", index] if index.isascii() and index.isdecimal():
                self._send_image(int(index[:9]))
            case None:
                pass
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "Not found.")

    def do_POST(self) -> None:
        if (path := self._request_path()) is None:
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Expected JSON.")
            return
        try:
            window = _act(self.server.session, path, self._content())
        except InputError as error:
            self._refuse(HTTPStatus.CONFLICT, escape_name(str(error)))
            return
        except Exception:
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR, "The request failed; the terminal shows why. Nothing was written."
            )
            raise
        if window is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "Not a valid request.")
        else:
            self._send_json({} if path == ["close"] else self.server.state(window))

    def _request_path(self) -> list[str] | None:
        """The parts of the path after the token, or None if the request was refused."""
        if self.headers.get("Host", "") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "Use the address that was printed in the terminal.")
            return None
        # A page of another site must not use the address, even if it knows it.
        if self.headers.get("Origin", self.server.origins[0]) not in self.server.origins:
            self._refuse(HTTPStatus.FORBIDDEN, "Requests of other sites are refused.")
            return None
        token, *path = self.path.strip("/").split("/")
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "Not found.")
            return None
        return path

    def _content(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) <= _MAX_DIGITS and int(length) <= _MAX_BODY):
            return None
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None

    def _send_image(self, index: int) -> None:
        if index >= len(self.server.session.photos):
            self._refuse(HTTPStatus.NOT_FOUND, "Not found.")
            return
        try:
            self._send(HTTPStatus.OK, "image/jpeg", self.server.picture(index))
        except UnreadableError as error:
            self._refuse(HTTPStatus.NOT_FOUND, f"This image cannot be read: {error}.")

    def _send_json(self, content: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send_json({"error": why}, status)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the same headers to every response, including errors."""
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, *_: Any, **__: Any) -> None:
        """Log nothing: a line would show the token in the terminal."""


def _act(session: Session, path: list[str], content: object) -> str | None:
    """Do what a request asks for. Returns its window; None if the request is not valid."""
    match path, content:
        case ["state"], {"window": str(window)}:
            pass
        case ["answer"], {"window": str(window), "question": int(index), "label": str(label)}:
            session.answer(window, index, label)
        case ["skip"], {"window": str(window), "question": int(index)}:
            session.skip(window, index)
        case ["undo"], {"window": str(window)}:
            session.undo(window)
        case ["again"], {"window": str(window)}:
            session.ask_skipped_again()
        case ["close"], {"window": str(window)}:
            session.close(window)
        case _:
            return None
    return window


def _page() -> tuple[bytes, str]:
    """The page as one document, and the security policy that allows only its own script and style."""
    page, css, js = (
        files("meanteacher.photos.label").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    page = page.replace("/* page.css */", css).replace("/* page.js */", js)
    policy = (
        f"default-src 'none'; style-src {_hash(css)}; script-src {_hash(js)}; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
