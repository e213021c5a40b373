"""Web config is read as by exporter-toolkit; an invalid one gives a one-line error."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.agent.web.web_config import ClientAuth, read_web_config
from stepscope.core.errors import UsageError

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"  # the toolkit's own example
_TLS = "tls_server_config:\n  cert_file: a.crt\n  key_file: /k/a.key\n"


def _file(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


def test_all_of_it(tmp_path: Path) -> None:
    text = (
        f"{_TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
        "  client_allowed_sans: [prometheus]\n  min_version: TLS13\n"
        "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: ''\n"
        f"basic_auth_users:\n  alice: {HASH}\n  7: {HASH}\n"
    )
    found = read_web_config(_file(tmp_path, text))
    assert found.tls is not None
    assert (found.tls.cert_file, found.tls.key_file) == (tmp_path / "a.crt", Path("/k/a.key"))
    assert found.tls.client_auth is ClientAuth.REQUIRE
    assert found.tls.client_ca_file == tmp_path / "ca.crt"
    assert found.tls.client_allowed_sans == ("prometheus",)
    assert (found.tls.min_version, found.tls.max_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    assert found.headers == {"X-Frame-Options": "deny"}
    assert found.users == {"alice": HASH.encode(), "7": HASH.encode()}
    assert not found.missing_protection


_NO_LOGIN = "the web config has TLS but neither basic_auth_users nor required client certificates"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "there is neither TLS nor a login"),
        (_TLS, _NO_LOGIN),
        (
            f"basic_auth_users: {{alice: {HASH}}}",
            "the web config has users but no tls_server_config",
        ),  # passwords that anybody can read on the wire
        (f"{_TLS}basic_auth_users: {{alice: {HASH}}}", ""),
        (f"{_TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt", ""),
        (f"{_TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt", _NO_LOGIN),
        (f"{_TLS}  client_auth_type: RequestClientCert", _NO_LOGIN),
    ],
)
def test_what_keeps_others_out(tmp_path: Path, text: str, missing: str) -> None:
    found = read_web_config(_file(tmp_path, text))
    assert found.missing_protection == missing
    if found.tls:
        assert found.tls.min_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "is not YAML (while parsing"),
        ("- a", "must be a mapping"),
        (
            "tls_config: {}",
            'unknown key "tls_config"; did you mean "tls_server_config"? '
            "Known: basic_auth_users, http_server_config, rate_l",
        ),
        ("tls_server_config: {cert_file: a}", "tls_server_config: key_file is missing"),
        ("tls_server_config: {key_file: a}", "tls_server_config: cert_file is missing"),
        ("tls_server_config: {cert: PEM}", "tls_server_config.cert: is not supported; name a file in cert_file"),
        ("tls_server_config: {cert_file: 1, key_file: a}", "tls_server_config.cert_file: must be a string"),
        (
            f"{_TLS}  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]",
            'cipher_suites: unknown cipher suite "TLS_RSA_WITH_RC4_128_SHA"; ',
        ),
        (f"{_TLS}  curve_preferences: [X25519]", 'tls_server_config: unknown key "curve_preferences"; kn'),
        ("rate_limit: {interval: fast, burst: 1}", "rate_limit.interval: must be a duration, as 500ms or 1s, not fast"),
        ("rate_limit: {interval: 1s}", "rate_limit.burst: must be a whole number of at least 1"),
        (f"{_TLS}  min_version: TLS9", "min_version: must be one of TLS10, TLS11, TLS12, TLS13, not TLS9"),
        (f"{_TLS}  client_auth_type: RequireAnyClientCert", "must be one of NoClientCert, RequestClientCert, Verif"),
        (f"{_TLS}  client_auth_type: RequireAndVerifyClientCert", "RequireAndVerifyClientCert needs client_ca_file"),
        (f"{_TLS}  max_version: TLS11", "tls_server_config: min_version is newer than max_version"),
        (f"{_TLS}  client_ca_file: c", "client_ca_file without client_auth_type RequireAndVerifyClientCert"),
        (f"{_TLS}  client_allowed_sans: [a]", "client_allowed_sans needs client_auth_type RequireAndVerifyClientCert"),
        ("http_server_config: {headers: {Server: x}}", 'headers: unknown key "Server"; known: '),
        ("http_server_config: {headers: {X-Frame-Options: no}}", "headers.X-Frame-Options: must be a string"),
        ("http_server_config: {headers: {X-Frame-Options: all}}", "must be one of deny, sameorigin, not all"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\nb"}}', "must be plain characters on one line"),
        ("basic_auth_users: {alice: secret}", "basic_auth_users.alice: is not a bcrypt hash; make one with htpasswd"),
        (
            f"basic_auth_users: {{alice: {HASH.replace('10', '31')}}}",
            "alice: has cost 31, which makes a check take sec",
        ),
        ("basic_auth_users: [alice]", "basic_auth_users: must be a mapping"),
    ],
)
def test_a_wrong_one_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read_web_config(file)
    assert str(raised.value).startswith(str(file))
    assert line in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("interval", "per_second"), [("1s", 1.0), ("500ms", 2.0), ("1m30s", 1 / 90), ("1.5s", 1 / 1.5), ("0", None)]
)
def test_how_many_are_answered(tmp_path: Path, interval: str, per_second: float | None) -> None:
    found = read_web_config(_file(tmp_path, f"rate_limit: {{interval: {interval}, burst: 5}}"))
    assert found.requests_per_second == (None if per_second is None else pytest.approx(per_second))


def test_suites_by_go_s_names(tmp_path: Path) -> None:
    suites = "[TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA]"
    found = read_web_config(_file(tmp_path, f"{_TLS}  cipher_suites: {suites}"))
    assert found.tls is not None
    assert found.tls.ciphers == ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"web.yml: cannot be read \(No such file or directory\)"):
        read_web_config(tmp_path / "web.yml")


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
_KEYS = st.sampled_from(
    (
        *("tls_server_config", "http_server_config", "basic_auth_users", "headers", "cert_file", "key_file", "alice"),
        *("min_version", "client_auth_type", "client_ca_file", "client_allowed_sans", "X-Frame-Options"),
    )
)
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | _LEAVES, inner, max_size=4),
    max_leaves=12,
)


@given(text=_DOCUMENTS.map(yaml.safe_dump) | st.text(max_size=30))
@example(text="basic_auth_users: {alice: 2024-99-99}")
@example(text="[" * 5000)
@example(text="a: " + "9" * 5000)
def test_whatever_it_holds_is_read_or_said_to_be_wrong(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with suppress(UsageError):
        read_web_config(file)
