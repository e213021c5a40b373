"""Configuration of the agent: order of precedence, and one-line errors that help."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.agent.config.configuration import (
    SettingOrigin,
    configuration_document,
    configuration_toml,
    environment_variable_of,
    load_configuration,
    settings_reference,
    shown_setting,
)
from stepscope.agent.config.settings import KEYS, AgentSettings, Key, ras_address, typed_value, value_from_text
from stepscope.agent.service import Agent
from stepscope.collectors.dcgm_exporter.page import dcgm_endpoint_of
from stepscope.core.errors import UsageError
from stepscope_reference import PAGES


def _file(folder: Path, text: str) -> Path:
    file = folder / "agent.toml"
    file.write_text(text)
    return file


def _key(kind: type = tuple, *, is_secret: bool = False) -> Key:
    return Key("jobs", "labels", kind, (), "", "", "", 0.0, 9.0, (), is_secret)


def test_flags_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = _file(tmp_path, '[web]\nlisten = "127.0.0.1:1"\ninsecure = true\n[gpus]\ninterval = 2\n')
    environment = {"STEPSCOPE_AGENT__WEB__LISTEN": "127.0.0.1:2", "STEPSCOPE_AGENT__GPUS__INTERVAL": "3.5"}
    found = load_configuration(file, environment=environment, flags={"web.listen": "127.0.0.1:3", "web.insecure": None})
    assert found.settings.web.listen == "127.0.0.1:3"
    assert found.settings.gpus.interval == 3.5
    assert found.settings.web.insecure is True
    assert found.settings.dcgm == AgentSettings().dcgm
    assert found.origins["web.listen"] == (SettingOrigin.FLAG, "--listen")
    assert found.origins["gpus.interval"] == (SettingOrigin.ENVIRONMENT, "STEPSCOPE_AGENT__GPUS__INTERVAL")
    assert found.origins["web.insecure"] == (SettingOrigin.FILE, str(file))
    assert found.origins["dcgm.names"] == (SettingOrigin.DEFAULT, "")


def test_nothing_said_is_the_default() -> None:
    assert load_configuration().settings == AgentSettings()
    assert load_configuration(environment={"STEPSCOPE_AGENT_SOCKET": "x", "PATH": "y"}).settings == AgentSettings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[web]\nlisn = 1",
            '{file}: unknown key "web.lisn"; did you mean "web.listen"? See stepscope agent config show',
        ),
        (
            "[wbe]\n",
            '{file}: unknown section "wbe"; did you mean "web"? Known: web, gpus, exporter, otlp, dcgm, state, '
            "training, verdicts, captures, kineto, health, jobs, kubernetes",
        ),
        (
            "[web]\ninterval = 1",
            '{file}: unknown key "web.interval"; did you mean "gpus.interval"? See stepscope agent config show',
        ),
        ("web = 1", "{file}: web: must be a section, [web]"),
        ("[web]\nlisten = 9455", "{file}: web.listen: must be a string, not 9455"),
        ("[web]\ninsecure = 1", "{file}: web.insecure: must be true or false, not 1"),
        ("[gpus]\ninterval = true", "{file}: gpus.interval: must be a number, not True"),
        ("[gpus]\ninterval = 60", "{file}: gpus.interval: must be 0.1 to 15, not 60.0"),
        ("[gpus]\ninterval = nan", "{file}: gpus.interval: must be 0.1 to 15, not nan"),
        ('[dcgm]\nnames = "all"', "{file}: dcgm.names: must be one of \"\", old, new, not 'all'"),
        ("[web", "{file}: is not TOML (Expected ']' at the end of a table declaration (at end of document))"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        load_configuration(file)
    assert str(raised.value) == line.format(file=file)


@given(text=st.text(max_size=30))
@example(text="a = " + "[" * 5000)
@example(text="a = " + "9" * 5000)
@example(text="[gpus]\ninterval = 2024-01-01")
def test_whatever_a_file_holds_is_taken_or_said_to_be_wrong(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with suppress(UsageError):
        load_configuration(file)


def test_a_file_without_an_end_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"\A/dev/zero: cannot be read \(has more than 16 MiB\)"):
        load_configuration(Path("/dev/zero"))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"agent.toml: cannot be read \(No such file or directory\)"):
        load_configuration(tmp_path / "agent.toml")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "WEB__LISTN",
            "x",
            'environment: unknown setting "{name}"; did you mean "STEPSCOPE_AGENT__WEB__LISTEN"? '
            "See stepscope agent config show",
        ),
        (
            "web__listen",
            "x",
            'environment: unknown setting "{name}"; did you mean "STEPSCOPE_AGENT__WEB__LISTEN"? '
            "See stepscope agent config show",
        ),
        ("GPUS__INTERVAL", "fast", "{name}: must be a number, not 'fast'"),
        ("GPUS__INTERVAL", "1\nx = 2", "{name}: must be a number, not '1 x = 2'"),
        ("WEB__INSECURE", "yes", "{name}: must be true or false, not 'yes'"),
    ],
)
def test_a_wrong_variable_is_one_line(name: str, text: str, line: str) -> None:
    name = f"STEPSCOPE_AGENT__{name}"
    with pytest.raises(UsageError) as raised:
        load_configuration(environment={name: text})
    assert str(raised.value).replace("\\n", " ") == line.format(name=name)


def test_a_key_that_asks_for_what_cannot_be_is_named(tmp_path: Path) -> None:
    for text, start in (
        ('[web]\nlisten = "0.0.0.0:1"', "web.listen: 0.0.0.0:1: other machines can reach this address"),
        ('[web]\nlisten = "nowhere"', "web.listen: nowhere: is not HOST:PORT"),
        ('[dcgm]\nexporter = "http://"', "dcgm.exporter: http://: not an address"),
        ("[exporter]\nmetrics = []", "exporter.metrics: selects no metric"),
        (
            '[web]\ntargets = ["slurm:", "file_sd:/etc/nodes.yml"]',
            "web.targets: 'file_sd:/etc/nodes.yml' is not a source",
        ),
    ):
        file = _file(tmp_path, text)
        with pytest.raises(UsageError) as raised:
            Agent(load_configuration(file))
        assert str(raised.value).startswith(f"{file}: {start}")


def test_a_warning_that_would_come_after_the_critical_rate_is_one_line(tmp_path: Path) -> None:
    file = _file(tmp_path, "[health]\ncorrected_errors_per_second = 5000")
    with pytest.raises(UsageError) as raised:
        load_configuration(file)
    what = "is 5000, more than health.corrected_errors_critical_per_second, 1000"
    assert str(raised.value) == f"{file}: health.corrected_errors_per_second: {what}"
    name = "STEPSCOPE_AGENT__HEALTH__NVLINK_CRC_CRITICAL_PER_SECOND"
    with pytest.raises(UsageError, match=f"^{name}: is 0.5, less than health.nvlink_crc_per_second, 1$"):
        load_configuration(environment={name: "0.5"})
    load_configuration(file, environment={"STEPSCOPE_AGENT__HEALTH__CORRECTED_ERRORS_CRITICAL_PER_SECOND": "5000"})


def test_lists_in_file_and_environment() -> None:
    key = _key()
    assert typed_value(key, ["a", "b"], where="") == ("a", "b")
    assert value_from_text(key, "a, b,", where="") == ("a", "b")
    assert value_from_text(key, '["a,b"]', where="") == ("a,b",)
    with pytest.raises(UsageError, match=r"x: must be a list of strings, not \[1\]"):
        typed_value(key, [1], where="x")


def test_passwords_are_not_shown() -> None:
    configuration = load_configuration(flags={"dcgm.exporter": "https://me:se@cret@node:1/metrics"})
    for text in (
        configuration_toml(configuration, with_origin=True),
        json.dumps(configuration_document(configuration)),
    ):
        assert "cret" not in text
        assert "https://me:***@node:1/metrics" in text
    assert shown_setting(_key(str), "node:1/metrics?a=b&token=secret") == "node:1/metrics?***"
    assert shown_setting(_key(str), "http://me:secret@node/?token=secret") == "http://me:***@node/?***"
    assert "secret" not in str(dcgm_endpoint_of("http://node/metrics?token=secret"))
    assert shown_setting(_key(str), "me:secret@node:1") == "me:***@node:1"
    assert shown_setting(_key(is_secret=True), ("a",)) == "***"
    with pytest.raises(UsageError) as raised:
        typed_value(_key(is_secret=True), 5, where="x")
    assert str(raised.value) == "x: must be a list of strings, not that"


@given(
    listen=st.text(st.characters(codec="utf-8")).filter(lambda text: not {"@", "?"} & {*text}),
    interval=st.floats(0.1, 15),
)
def test_what_is_shown_is_a_file_that_says_the_same(listen: str, interval: float) -> None:
    configuration = load_configuration(flags={"web.listen": listen, "gpus.interval": interval, "web.insecure": True})
    document = tomllib.loads(configuration_toml(configuration, with_origin=True))
    assert {"listen": listen, "insecure": True}.items() <= document["web"].items()
    assert document["gpus"] == {"interval": interval}
    assert {f"{section}.{name}" for section, content in document.items() for name in content} == set(KEYS)


@given(
    name=st.sampled_from(sorted(map(environment_variable_of, KEYS))) | st.text(max_size=20), text=st.text(max_size=20)
)
def test_whatever_a_variable_holds_is_taken_or_said_to_be_wrong(name: str, text: str) -> None:
    with suppress(UsageError):
        load_configuration(environment={name: text, f"STEPSCOPE_AGENT__{name}": text})


def test_each_setting_has_a_sentence_and_a_variable() -> None:
    for path, key in KEYS.items():
        assert key.help.endswith("."), path
        text = ",".join(key.default) if key.type is tuple else str(key.default)
        text = text.lower() if key.type is bool else text
        assert load_configuration(environment={environment_variable_of(path): text}).settings == AgentSettings(), path


def test_the_documentation_lists_all_settings() -> None:
    page = PAGES["configuration"]()
    assert "\n".join(settings_reference()) in page
    assert [path for path in KEYS if f"| `{path}` |" not in page] == []


@pytest.mark.parametrize(
    ("told", "address"),
    [("127.0.0.1:28028", ("127.0.0.1", 28028)), ("[::1]:9", ("::1", 9)), ("host", None), ("h:99999", None), ("", None)],
)
def test_addresses_of_nccls_ras_service(told: str, address: tuple[str, int] | None) -> None:
    assert ras_address(told) == address
