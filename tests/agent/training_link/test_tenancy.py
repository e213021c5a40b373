"""Tenancy: whose a run's name is, whatever users do, and the budget of series."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.training_link import tenancy
from stepscope.agent.training_link.tenancy import MAX_SERIES, RunClaims, within_series_budget
from stepscope.core.metrics.readings import Reading, labels_of


def test_a_name_belongs_to_its_first_user_until_long_after_the_last_connection() -> None:
    claims = RunClaims()
    claims.connect(1000, "r", 10.0)
    claims.connect(666, "r", 11.0)
    assert [claims.shown_name(uid, "r", 12.0) for uid in (1000, 666, None)] == ["r", "666:r", "?:r"]
    claims.disconnect(1000, "r", 20.0)
    assert claims.owner("r", 110.0) == 1000  # an agent's link is back within a minute
    assert claims.owner("r", 110.1) == 666
    claims.connect(1000, "r", 111.0)
    assert [claims.shown_name(uid, "r", 112.0) for uid in (1000, 666)] == ["1000:r", "r"]


def test_nobody_can_take_the_name_that_another_user_gets_when_kept_apart() -> None:
    claims = RunClaims()
    claims.connect(666, "1000:r", 0.0)
    assert claims.shown_name(666, "1000:r", 1.0) == "666:1000:r"


def test_names_that_a_user_leaves_behind_are_bounded() -> None:
    claims = RunClaims()
    claims.connect(1000, "r", 0.0)
    for number in range(1000):
        claims.connect(666, str(number), 1.0)
        claims.disconnect(666, str(number), 1.0 + number / 1000)
    assert claims.num_claims(666) == tenancy._MAX_CLAIMS_OF_USER
    assert claims.owner("r", 2.0) == 1000


_STEPS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1000, 666]), st.sampled_from(["r", "q", "0:r"]), st.booleans(), st.floats(0, 60)
    )
)


@given(_STEPS)
def test_whatever_happens_no_two_users_share_a_name(steps: list[tuple[int | None, str, bool, float]]) -> None:
    claims, now = RunClaims(), 0.0
    connected: dict[tuple[int | None, str], int] = defaultdict(int)
    first: dict[str, int | None] = {}
    for uid, run, is_connecting, seconds in steps:
        now += seconds
        before = {name: claims.owner(name, now) for name in first}
        if is_connecting:
            claims.connect(uid, run, now)
            connected[uid, run] += 1
            first.setdefault(run, uid)
        elif connected[uid, run]:
            claims.disconnect(uid, run, now)
            connected[uid, run] -= 1
        for name, owner in before.items():  # nothing that a user does takes a name from its owner
            if connected[owner, name]:
                assert claims.owner(name, now) == owner
        shown = [claims.shown_name(*key, now) for key, num in connected.items() if num]
        assert len(shown) == len(set(shown))


def _readings(uid: int, count: int, name: str) -> list[Reading]:
    return [Reading("m", 1.0, labels_of(uid=uid, name=f"{name}{number}"), 1) for number in range(count)]


def test_figures_are_left_out_first_and_of_the_last_processes() -> None:
    ranks = [(_readings(1, 2, f"common{rank}"), _readings(1, 3, f"own{rank}")) for rank in range(3)]
    kept, left_out = within_series_budget({1: ranks}, 10)
    names = [dict(reading.labels)["name"] for reading in kept]
    assert names == [*(f"common{rank}{n}" for rank in range(3) for n in range(2)), "own00", "own01", "own02", "own10"]
    assert left_out == {1: 5}


@given(
    st.dictionaries(
        st.integers(0, 9), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 32)), max_size=8), max_size=6
    ),
    st.integers(1, 200),
)
def test_the_budget_holds_and_nothing_is_lost_without_being_counted(
    counts: dict[int, list[tuple[int, int]]], budget: int
) -> None:
    of_ranks = {
        uid: [(_readings(uid, one, f"c{n}-"), _readings(uid, two, f"o{n}-")) for n, (one, two) in enumerate(ranks)]
        for uid, ranks in counts.items()
    }
    kept, left_out = within_series_budget(of_ranks, budget)
    for uid, ranks in counts.items():
        num_kept = sum(("uid", str(uid)) in reading.labels for reading in kept)
        assert num_kept <= budget
        assert num_kept + left_out.get(uid, 0) == sum(map(sum, ranks))
    assert len(kept) <= MAX_SERIES


def test_many_users_together_stay_within_what_a_page_may_have() -> None:
    of_ranks = {uid: [(_readings(uid, 600, "c"), _readings(uid, 0, "o"))] for uid in range(20)}
    kept, left_out = within_series_budget(of_ranks, 1000)
    assert len(kept) == MAX_SERIES
    assert set(left_out.values()) == {400}
