"""Connection of a training process: bounded memory, whatever is received on it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.training_link.connection import ConnectionEndedError, TrainingConnection, TrainingPeer
from stepscope.core.protocol.captures import CaptureProgress, CaptureState
from stepscope.core.protocol.messages import Answer, Heartbeat, encode_message
from tests.agent.training_link.conftest import hello

_PEER = TrainingPeer(1, 0)


@given(
    st.lists(
        st.one_of(st.binary(max_size=2000), st.sampled_from([encode_message(hello()), encode_message(Heartbeat(1.0))])),
        max_size=20,
    )
)
def test_anything_at_all_is_heard_or_left(blocks: list[bytes]) -> None:
    client = TrainingConnection(_PEER, 0.0)
    with suppress(ConnectionEndedError):
        for block in blocks:
            client.receive(block, 1.0)
    rank = client.rank(2.0)
    assert rank is None or rank.heartbeat_age_ms == 1000.0


def test_who_floods_is_not_read_for_a_while() -> None:
    client = TrainingConnection(_PEER, 0.0)
    client.receive(encode_message(hello()), 0.0)
    assert client.pause_seconds(8192.0, 0.0) == 0.0
    client.receive(encode_message(Answer("c", CaptureProgress(CaptureState.DONE, "x" * 4000))) * 2, 0.0)
    pause = client.pause_seconds(8192.0, 0.0)
    assert 0.5 < pause < 0.6  # 8 kB and the hello, of 4 kB that were there
    assert client.pause_seconds(8192.0, pause / 2) == pytest.approx(pause / 2)
    assert client.pause_seconds(8192.0, pause + 0.01) == 0.0
    client.pause_seconds(8192.0, 1000.0)
    client.receive(
        encode_message(Answer("c", CaptureProgress(CaptureState.DONE, "x" * 4000))) * 8, 1000.0
    )  # of 32 kB after a while
    assert client.pause_seconds(8192.0, 1000.0) < 0.1


@pytest.mark.parametrize(
    ("sent", "why"), [(b"", "has not said whose process it is"), (encode_message(hello(run="a\nb")), '"run" must be')]
)
def test_a_connection_without_a_hello_ends_and_says_why(sent: bytes, why: str) -> None:
    client = TrainingConnection(TrainingPeer(1, 1), 0.0)
    client.receive(sent, 0.0)
    client.check_hello(10.0)
    with pytest.raises(ConnectionEndedError, match=why) as ended:
        client.check_hello(10.1)
    assert ended.value.reason == "no_hello"


def test_a_second_hello_tells_what_has_become_known_and_nobody_else() -> None:
    client = TrainingConnection(_PEER, 0.0)
    client.receive(encode_message(hello()), 0.0)
    client.receive(encode_message(hello(gpu_uuid="GPU-1", mesh={"dp": 2})), 0.0)
    rank = client.rank(0.0)
    assert rank is not None
    assert (rank.hello.gpu_uuid, rank.hello.mesh) == ("GPU-1", {"dp": 2})
    with pytest.raises(ConnectionEndedError, match="another process now"):
        client.receive(encode_message(hello(run_directory="/runs/of-another")), 0.0)


def test_the_same_words_from_another_user_are_another_process() -> None:
    keys = []
    for uid in (0, 1000):
        client = TrainingConnection(TrainingPeer(1, uid), 0.0)
        client.receive(encode_message(hello()), 0.0)
        keys.append(client.key)
    assert keys[0] != keys[1]


def test_answers_before_the_hello_count_for_nothing() -> None:
    client = TrainingConnection(_PEER, 0.0)
    assert client.receive(encode_message(Answer("c", CaptureProgress(CaptureState.DONE))), 0.0) == []
