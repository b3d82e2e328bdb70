"""The event heap."""

from __future__ import annotations

from simulations.timeline import Timeline


def test_actions_run_in_the_order_of_their_time_then_of_ordering() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.at(2.0, seen.append, "b")
    timeline.at(1.0, seen.append, "a")
    timeline.at(2.0, seen.append, "c")
    timeline.at(-1.0, seen.append, "now")
    while timeline.step(2.0):
        pass
    assert seen == ["now", "a", "b", "c"]
    assert timeline.now == 2.0
    assert not timeline.step(1.0)


def test_nothing_after_the_limit_runs() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.after(3.0, seen.append, "late")
    assert not timeline.step(2.9)
    assert timeline.step(3.0)
    assert seen == ["late"]


def test_the_end_of_an_instant_comes_after_everything_else_of_it() -> None:
    timeline, seen = Timeline(), list[str]()

    def first() -> None:
        timeline.at_end_of_instant(lambda: seen.append("end"))
        timeline.after(0.0, seen.append, "second")

    timeline.at(1.0, first)
    timeline.at(1.5, seen.append, "later")
    while timeline.step(9.0):
        pass
    assert seen == ["second", "end", "later"]


def test_work_at_the_end_of_the_last_instant_is_done() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.at_end_of_instant(lambda: seen.append("end"))
    assert timeline.step(0.0)
    assert seen == ["end"]
