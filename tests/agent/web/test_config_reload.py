"""Web config: clients are kept out and the file is reloaded, with real certificates and requests."""

from __future__ import annotations

import base64
import http.client
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.service import Agent
from stepscope.agent.web import server as connections
from stepscope.agent.web import web_config
from stepscope.agent.web.routes import Access, Reply, Request, Route, text_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.core.errors import UsageError
from tests.agent.web.certificates import self_signed, signed

_TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"


def _users(**passwords: str) -> str:
    hashes = {name: bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode() for name, word in passwords.items()}
    return "basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name, hashed in hashes.items())


def _answer(_: Request) -> Reply:
    return text_reply(HTTPStatus.OK, "told")


_ROUTES = (
    Route("GET", "/metrics", _answer),
    Route("GET", "/healthz", _answer, is_open=True),
    Route("POST", "/do", _answer, needs_token=True),
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with server.crt, other.crt, both signing themselves, and client.crt and stranger.crt."""
    folder = tmp_path_factory.mktemp("certificates")
    server = self_signed(folder, "server")
    self_signed(folder, "other")
    signed(folder, "client", server, "DNS:prometheus,IP:10.0.0.1")
    signed(folder, "stranger", server, "DNS:stranger")
    return folder


class _Agent:
    def __init__(self, folder: Path, text: str, certificates: Path) -> None:
        self.folder = folder
        for name in ("server.crt", "server.key"):
            self.replace(name, (certificates / name).read_bytes())
        self.replace("web.yml", text.encode())
        self.guard = WebConfigReloader(folder / "web.yml")
        self.server = AgentServer(ListenAddress("127.0.0.1", 0), _ROUTES, Access("a-token", self.guard), self.guard)
        self.port = int(self.server.url.rpartition(":")[2])

    def replace(self, name: str, content: bytes) -> None:
        """Write a file as whoever rotates certificates does."""
        (self.folder / "new").write_bytes(content)
        os.replace(self.folder / "new", self.folder / name)

    def context(self, *, ca: Path | None = None, client: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(ca or self.folder / "server.crt"))
        if client:
            context.load_cert_chain(client, client.with_suffix(".key"))
        return context

    def get(
        self, path: str, authorization: str = "", context: ssl.SSLContext | None = None, method: str = "GET"
    ) -> tuple[int, dict[str, str], str]:
        if self.server.url.startswith("https"):
            context = context or self.context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=20, context=context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()


@contextmanager
def _agent(folder: Path, text: str, certificates: Path) -> Iterator[_Agent]:
    made = _Agent(folder, text, certificates)
    with made.server:
        yield made


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_users_alone_are_asked_for_their_password(tmp_path: Path, certificates: Path) -> None:
    headers = "http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: default-src 'self'}}\n"
    with _agent(tmp_path, _users(alice="a:b", zoë="pässword") + headers, certificates) as agent:
        assert agent.server.url.startswith("http://")
        status, answered, _ = agent.get("/metrics")
        assert status == 401
        assert answered["WWW-Authenticate"].startswith("Basic realm=")
        assert answered["X-Frame-Options"] == "deny"
        assert answered["Content-Security-Policy"] == "default-src 'self'"
        assert agent.get("/metrics", _basic("alice", "a:b"))[0] == 200
        assert agent.get("/metrics", _basic("zoë", "pässword"))[0] == 200
        for wrong in (_basic("alice", "a"), _basic("bob", "a:b"), "Basic", "Basic !", "Basic YQ==", "Digest x"):
            assert agent.get("/metrics", wrong)[0] == 401
        assert agent.get("/there-is-no-such-page")[0] == 401
        assert agent.get("/there-is-no-such-page", _basic("alice", "a:b"))[0] == 404
        assert agent.get("/healthz")[0] == 200
        assert agent.get("/metrics", "Bearer a-token")[0] == 200
        assert agent.get("/metrics", "Bearer another")[0] == 401
        assert agent.get("/do", _basic("alice", "a:b"), method="POST")[0] == 401  # to do something takes the token
        assert agent.get("/do", "Bearer a-token", method="POST")[0] == 200


def test_encrypted_also_while_clients_do_not_shake_hands(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 2.0)
    with _agent(tmp_path, _TLS.replace("}", ", min_version: TLS13}"), certificates) as agent:
        assert agent.server.url.startswith("https://")
        silent = [socket.create_connection(("127.0.0.1", agent.port), timeout=20) for _ in range(12)]
        try:
            assert agent.get("/metrics")[2] == "told\n"
            with pytest.raises(ssl.SSLCertVerificationError):
                agent.get("/metrics", context=agent.context(ca=certificates / "other.crt"))
            old = agent.context()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                agent.get("/metrics", context=old)
            with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as plain:
                plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert plain.makefile("rb").readline() == b"HTTP/1.0 400 Bad Request\r\n"
            assert silent[0].recv(1) == b""  # cut by the agent
        finally:
            for connection in silent:
                connection.close()


def test_no_more_requests_than_are_allowed_and_the_suites_that_are(tmp_path: Path, certificates: Path) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    text = _TLS.replace("}", f", max_version: TLS12, cipher_suites: [{suite}]}}")
    with _agent(tmp_path, text + "rate_limit: {interval: 1h, burst: 2}\n", certificates) as agent:
        assert [agent.get("/metrics")[0] for _ in range(3)] == [200, 200, 429]
        assert agent.get("/healthz")[0] == 200
        other = agent.context()
        other.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
        other.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            agent.get("/healthz", context=other)


def test_clients_need_a_certificate_of_an_allowed_name(tmp_path: Path, certificates: Path) -> None:
    text = _TLS.replace(
        "}", ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: server.crt, client_allowed_sans: [NAME]}"
    )
    with _agent(tmp_path, text.replace("NAME", "prometheus"), certificates) as agent:
        assert agent.get("/metrics", context=agent.context(client=certificates / "client.crt"))[0] == 200
        for client in (None, certificates / "other.crt", certificates / "stranger.crt"):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                agent.get("/metrics", context=agent.context(client=client))
        agent.replace("web.yml", text.replace("NAME", "10.0.0.1").encode())
        assert agent.get("/metrics", context=agent.context(client=certificates / "client.crt"))[0] == 200


def test_certificate_and_users_change_while_it_runs(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_config, "_RETRY_SECONDS", 0.0)
    caplog.set_level(logging.ERROR, web_config.__name__)
    with _agent(tmp_path, _TLS + _users(alice="old"), certificates) as agent:
        assert agent.get("/metrics", _basic("alice", "old"))[0] == 200
        agent.replace("web.yml", (_TLS + _users(alice="new")).encode())
        assert agent.get("/metrics", _basic("alice", "old"))[0] == 401
        assert agent.get("/metrics", _basic("alice", "new"))[0] == 200

        trusted = agent.context(ca=certificates / "server.crt")
        agent.replace("server.crt", (certificates / "other.crt").read_bytes())  # its key comes a moment later
        assert agent.get("/metrics", _basic("alice", "new"), trusted)[0] == 200
        assert (
            "is not a certificate with its key (KEY_VALUES_MISMATCH); the configuration read before stays in use"
            in caplog.text
        )
        agent.replace("server.key", (certificates / "other.key").read_bytes())
        assert agent.get("/metrics", _basic("alice", "new"))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            agent.get("/metrics", _basic("alice", "new"), trusted)

        caplog.clear()
        for text, line in (
            ("basic_auth_users: {alice: plain}", "alice: is not a bcrypt hash"),
            ("", "TLS can be turned on or off only by a restart"),
            (_TLS, "would let everybody in, which needs a restart"),
        ):
            agent.replace("web.yml", text.encode())
            for _ in range(3):
                assert agent.get("/metrics", _basic("alice", "new"))[0] == 200
                assert agent.get("/metrics")[0] == 401
            assert line in caplog.records[-1].getMessage()
        assert len(caplog.records) == 3

        os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever, and every connection with it
        os.replace(tmp_path / "pipe", tmp_path / "server.key")
        agent.replace("web.yml", (_TLS + _users(alice="newest")).encode())
        assert agent.get("/metrics", _basic("alice", "new"))[0] == 200
        assert (
            caplog.records[-1]
            .getMessage()
            .endswith("server.key: is not a file; the configuration read before stays in use")
        )


def test_what_cannot_be_used_is_one_line_before_anything_listens(tmp_path: Path, certificates: Path) -> None:
    file = tmp_path / "web.yml"
    for name in ("server.crt", "other.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    (tmp_path / "noise.pem").write_text("noise")
    for text, line in (
        ("{cert_file: none.crt, key_file: none.key}", "none.crt: cannot be read (No such file or directory)"),
        ("{cert_file: server.crt, key_file: none.key}", "none.key: cannot be read (No such file or directory)"),
        ("{cert_file: server.crt, key_file: other.key}", "is not a certificate with its key (KEY_VALUES_MISMATCH)"),
        ("{cert_file: noise.pem, key_file: other.key}", "is not a certificate with its key ("),
    ):
        file.write_text(f"tls_server_config: {text}")
        with pytest.raises(UsageError) as raised:
            Agent(load_configuration(flags={"web.config_file": str(file)}))
        assert str(raised.value).startswith("--web-config-file: ")
        assert line in str(raised.value)


def test_others_may_ask_when_they_are_asked_who_they_are(tmp_path: Path, certificates: Path) -> None:
    agent = _Agent(tmp_path, _TLS + _users(alice="a"), certificates)
    flags = {"web.listen": "0.0.0.0:0", "web.config_file": str(agent.folder / "web.yml")}
    assert Agent(load_configuration(flags=flags)).address == ListenAddress("0.0.0.0", 0)
    agent.replace("web.yml", _users(alice="a").encode())
    with pytest.raises(UsageError, match="other machines can reach this address"):
        Agent(load_configuration(flags=flags))
    agent.server._server.server_close()
