"""Loader waits of training, whatever evaluates between two updates."""

from __future__ import annotations

from stepscope.core.loader_waits import MOST_INTERVALS, Instant, LoaderWaits, duration_ns

TRAIN, OTHER, EVALUATION = 1, 2, 3


class _Loop:
    """Asks loaders on a clock of its own: each wait takes 10 ns, each batch is used for 100."""

    def __init__(self) -> None:
        self.waits = LoaderWaits()
        self._now_ns = 0

    def _wait(self) -> tuple[Instant, Instant]:
        started_ns, self._now_ns = self._now_ns, self._now_ns + 10
        return Instant(started_ns), Instant(self._now_ns)

    def update(self) -> tuple[int, int]:
        """Nanoseconds of the waits and of the evaluations."""
        waits, evaluations = self.waits.update()
        return duration_ns(waits), duration_ns(evaluations)

    def begin(self, loader: int) -> None:
        self.waits.began(loader, *self._wait())

    def batch(self, loader: int, *, learns: bool = True) -> None:
        self.waits.gave(loader, *self._wait(), learns=learns)
        self._now_ns += 100

    def run_out(self, loader: int) -> None:
        self.waits.ran_out(loader, *self._wait())

    def evaluate(self, num_batches: int, *, learns: bool = True) -> None:
        self.begin(EVALUATION)
        for _ in range(num_batches):
            self.batch(EVALUATION, learns=learns)
        self.run_out(EVALUATION)


def _trained(loop: _Loop, num_updates: int = 2) -> list[tuple[int, int]]:
    results = []
    for _ in range(num_updates):
        loop.batch(TRAIN)
        results.append(loop.update())
    return results


def test_every_batch_of_an_accumulated_update_is_training_s() -> None:
    loop = _Loop()
    loop.begin(TRAIN)
    for _ in range(4):
        loop.batch(TRAIN)
    assert loop.update() == (50, 0)


def test_an_evaluation_between_updates_is_no_wait_for_data() -> None:
    loop = _Loop()
    assert _trained(loop) == [(10, 0), (10, 0)]
    loop.evaluate(3)
    assert _trained(loop) == [(10, 10 + 3 * 110 + 10), (10, 0)]


def test_an_evaluation_before_the_first_update_of_an_epoch_is_none_either() -> None:
    loop = _Loop()
    _trained(loop)
    loop.run_out(TRAIN)
    loop.evaluate(2)
    loop.begin(TRAIN)
    assert _trained(loop) == [(30, 240), (10, 0)]


def test_an_evaluation_that_stops_early_is_told_by_gradients() -> None:
    loop = _Loop()
    _trained(loop)
    loop.begin(EVALUATION)
    loop.batch(EVALUATION, learns=False)
    loop.batch(EVALUATION, learns=False)
    assert _trained(loop) == [(10, 10 + 110 + 10), (10, 0)]


def test_two_evaluations_one_after_the_other_are_added_up() -> None:
    loop = _Loop()
    _trained(loop)
    loop.evaluate(1)
    loop.waits.began(OTHER, Instant(2000), Instant(2010))
    loop.waits.gave(OTHER, Instant(2010), Instant(2020), learns=False)
    assert loop.update() == (0, 130 + 20)


def test_a_loop_that_asks_ahead_has_no_batch_to_ask_for_before_its_last_update() -> None:
    loop = _Loop()
    loop.begin(TRAIN)
    loop.batch(TRAIN)
    loop.batch(TRAIN)
    assert loop.update() == (30, 0)
    loop.run_out(TRAIN)
    loop.evaluate(2)
    assert loop.update() == (10, 240)
    loop.begin(TRAIN)
    assert _trained(loop)[0] == (20, 0)


def test_two_loaders_that_train_together_both_count_from_the_second_update_on() -> None:
    loop = _Loop()
    results = []
    for _ in range(3):
        loop.batch(OTHER)
        loop.batch(TRAIN)
        results.append(loop.update())
    assert results == [(10, 0), (20, 0), (20, 0)]
    loop.evaluate(2)
    loop.batch(OTHER)
    loop.batch(TRAIN)
    assert loop.update() == (20, 240)


def test_epochs_of_one_batch_are_trained_on() -> None:
    loop = _Loop()
    for _ in range(3):
        loop.begin(TRAIN)
        loop.batch(TRAIN)
        loop.run_out(TRAIN)
        assert loop.update() == (30, 0)


def test_nothing_asked_is_no_wait() -> None:
    assert LoaderWaits().update() == ([], [])


def test_a_process_that_only_infers_keeps_the_first_and_the_last_instant() -> None:
    loop = _Loop()
    first = object()
    loop.waits.gave(EVALUATION, Instant(0, first), Instant(0), learns=False)
    for _ in range(10):
        loop.batch(EVALUATION, learns=False)
    (use,) = loop.waits._asked.values()
    assert use.waits == []
    assert use.first.mark is first
    assert loop.update() == (0, 10 * 110 - 100)


def test_waits_beyond_the_most_are_kept_as_one_without_marks() -> None:
    loop = _Loop()
    for _ in range(MOST_INTERVALS + 5):
        loop.batch(TRAIN)
    waits, _ = loop.waits.update()
    assert len(waits) == MOST_INTERVALS
    assert duration_ns(waits) == (MOST_INTERVALS + 5) * 10
    assert waits[-1][0].mark is None
