"""The page over HTTP, for this machine alone: 127.0.0.1, a secret in the address, no name of a file in a request."""

import base64
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread
from typing import Any

from meanteacher.core import InputError
from meanteacher.label.page import Pictures
from meanteacher.label.session import Session
from meanteacher.photos.decode import UnreadableError

_HOST = "127.0.0.1"
_MAX_BODY = 10_000
_SECONDS = 30.0
"""How long a request may take to arrive."""


class LabelServer(ThreadingHTTPServer):
    """Asks the questions of a session in a browser."""

    daemon_threads = True
    timeout = 0.5
    """Seconds within which a wish to stop is noticed."""

    def __init__(self, session: Session, port: int = 0) -> None:
        """Take the port; 0 takes any that is free.

        Raises:
            InputError: the port is in use, or not ours to take.
        """
        self.session = session
        self.pictures = Pictures(session.photos)
        self.token = secrets.token_urlsafe(16)
        self.page, self.policy = _page()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise InputError(
                f"Port {port} cannot be used: {error.strerror}. Give another one with --port, or none to take any "
                "that is free."
            ) from error
        # A page of another site can have its own name point to this machine; its requests still carry that name.
        self.hosts = {f"{name}:{self.server_port}" for name in (_HOST, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def serve_until(self, should_stop: Callable[[], bool]) -> None:
        """Answer requests until told to stop."""
        while not should_stop():
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no fault; anything else is one, and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def state(self) -> dict[str, Any]:
        """What the page shows. An image that cannot be read is known before it is shown."""
        state = self.session.state()
        if question := state["question"]:
            question["problem"] = self._problem(question["position"])
            following = question["position"] + 1
            if following < len(self.session.questions):
                # Decoded while the person looks at this one.
                Thread(target=self._problem, args=[following], daemon=True).start()
        return state

    def _problem(self, position: int) -> str | None:
        try:
            self.pictures.jpeg(self.session.questions[position].index)
        except UnreadableError as error:
            return str(error)
        return None


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer
    server_version, sys_version = "meanteacher", ""
    timeout = _SECONDS

    def do_GET(self) -> None:
        match self._asked_for():
            case []:
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
            case ["state"]:
                self._send_json(self.server.state())
            case ["image", position] if position.isascii() and position.isdecimal():
                self._send_image(int(position[:9]))
            case None:
                pass
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def do_POST(self) -> None:
        if (path := self._asked_for()) is None:
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Only JSON is understood.")
            return
        session, content = self.server.session, self._content()
        try:
            match path, content:
                case ["answer"], {"question": int(position), "label": str(label)}:
                    session.answer(position, label)
                case ["skip"], {"question": int(position)}:
                    session.skip(position)
                case ["undo"], {}:
                    session.undo()
                case ["again"], {}:
                    session.ask_skipped_again()
                case _:
                    self._refuse(HTTPStatus.BAD_REQUEST, "This is no answer to a question.")
                    return
        except InputError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
            return
        self._send_json(self.server.state())

    def _asked_for(self) -> list[str] | None:
        """The parts of the path after the token, or None once the request is refused."""
        if self.headers.get("Host", "") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "Only the address that was printed is answered.")
            return None
        token, *path = self.path.strip("/").split("/")
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return None
        return path

    def _content(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and int(length[:9]) <= _MAX_BODY):
            return None
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None

    def _send_image(self, position: int) -> None:
        if position >= len(self.server.session.questions):
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        try:
            picture = self.server.pictures.jpeg(self.server.session.questions[position].index)
        except UnreadableError as error:
            self._refuse(HTTPStatus.NOT_FOUND, f"This image cannot be read: {error}.")
            return
        self._send(HTTPStatus.OK, "image/jpeg", picture)

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
        """On every answer, errors too."""
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, *_: Any, **__: Any) -> None:
        """The terminal is for the person, and a line would show the token."""


def _page() -> tuple[bytes, str]:
    """The page in one piece, and the policy that lets it run its own script and nothing else."""
    page, css, js = (
        files("meanteacher.label").joinpath(name).read_text(encoding="utf-8")
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
