"""Node name: the operator's setting, then the cluster's name, then the host name."""

from __future__ import annotations

import socket

import pytest

from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.metrics_page import MetricsPage


def test_a_setting_before_the_cluster_before_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_name("a", {"NODE_NAME": "b"}) == "a"
    assert node_name("", {"NODE_NAME": "b"}) == "b"
    assert node_name("", {"NODE_NAME": ""}) == node_name(environment={}) == socket.gethostname()
    monkeypatch.setenv("NODE_NAME", "node7")
    assert node_name() == "node7"
    assert MetricsPage(tuple)._hostname == "node7"
