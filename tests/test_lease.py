"""The lease of a GPU: who may use it, checked against every order in which judges can ask, pause and go."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.lease import Lease
from server.worker.protocol import Grant, Pause

CAPACITY = 10
WORKERS = range(4)


class Judge:
    """A judge as the lease sees it: what it was told, and what it does about it."""

    def __init__(self, lease: Lease, number: int) -> None:
        self.lease, self.number = lease, number
        self.state = "out"
        self.memory = 0
        lease.join(number, self.told)

    def told(self, message: Grant | Pause) -> None:
        if isinstance(message, Pause):
            # One that crossed with a request of ours finds us waiting, and is an old one.
            self.state = "pausing" if self.state == "shared" else self.state
        else:
            self.state = {"asked": "shared", "paused": "shared", "asked alone": "alone"}[self.state]

    def ask(self, alone: bool, memory: int) -> None:
        self.state = "asked alone" if alone else "asked"
        self.memory = self.memory if alone else memory
        self.lease.want(self.number, alone, memory)


class Judges(RuleBasedStateMachine):
    """Four judges of one GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.lease = Lease()
        self.lease.capacity_bytes = CAPACITY
        self.judges = {number: Judge(self.lease, number) for number in WORKERS}

    def those(self, *states: str) -> list[Judge]:
        return [judge for judge in self.judges.values() if judge.state in states]

    @rule(number=st.sampled_from(WORKERS), memory=st.integers(0, CAPACITY + 5))
    def share(self, number: int, memory: int) -> None:
        if self.judges[number].state in ("out", "shared", "alone"):
            self.judges[number].ask(False, memory)

    @rule(number=st.sampled_from(WORKERS))
    def alone(self, number: int) -> None:
        if self.judges[number].state == "shared":
            self.judges[number].ask(True, 0)

    @rule(number=st.sampled_from(WORKERS))
    def pause(self, number: int) -> None:
        judge = self.judges[number]
        if judge.state == "pausing":
            judge.state = "paused"
            self.lease.paused(number)

    @rule(number=st.sampled_from(WORKERS))
    def an_old_pause_is_answered(self, number: int) -> None:
        if self.judges[number].state in ("out", "asked", "alone"):
            self.lease.paused(number)

    @rule(number=st.sampled_from(WORKERS), dies=st.booleans())
    def end(self, number: int, dies: bool) -> None:
        self.judges[number].state = "out"
        self.judges[number].memory = 0
        if dies:
            self.lease.leave(number)
            self.judges[number] = Judge(self.lease, number)
        else:
            self.lease.release(number)

    @invariant()
    def alone_means_alone(self) -> None:
        if self.those("alone"):
            assert len(self.those("alone")) == 1
            assert not self.those("shared", "pausing")

    @invariant()
    def memory_is_not_promised_twice(self) -> None:
        holding = [j for j in self.those("shared", "pausing", "paused", "alone", "asked alone")]
        assert sum(j.memory for j in holding) <= CAPACITY or len(holding) == 1

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.those("asked alone"):
            assert self.those("alone", "pausing"), "one that wants the GPU alone waits for one of these"
        elif self.those("paused"):
            assert self.those("alone", "pausing")
        elif self.those("asked") and not self.those("alone", "pausing"):
            holding = self.those("shared")
            first = [j for j in self.those("asked") if sum(h.memory for h in holding) + j.memory > CAPACITY]
            assert holding and first, "one that waits for memory waits for somebody who has it"

    @precondition(lambda self: self.those("pausing", "asked", "asked alone", "paused"))
    @rule()
    def everybody_gets_there(self) -> None:
        """When judges answer and end, every wait ends."""
        for _ in range(100):
            for judge in self.those("pausing"):
                self.pause(judge.number)
            for judge in self.those("shared", "alone"):
                self.end(judge.number, False)
        assert not self.those("pausing", "asked", "asked alone", "paused")


TestLease: Any = Judges.TestCase
TestLease.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def told(lease: Lease, number: int) -> list[str]:
    """Join, and what is said to this worker from then on."""
    heard: list[str] = []
    lease.join(number, lambda message: heard.append(type(message).__name__))
    return heard


def test_one_that_times_waits_until_the_others_have_paused() -> None:
    lease = Lease()
    first, second = told(lease, 1), told(lease, 2)
    lease.want(1, False, 0)
    lease.want(2, False, 0)
    lease.want(1, True, 0)
    assert (first, second) == (["Grant"], ["Grant", "Pause"])
    lease.paused(2)
    assert first == ["Grant", "Grant"]
    lease.release(1)
    assert second == ["Grant", "Pause", "Grant"]


def test_memory_is_given_in_the_order_of_asking() -> None:
    lease = Lease()
    lease.capacity_bytes = 10
    heard = [told(lease, number) for number in range(4)]
    lease.want(0, False, 6)
    lease.want(1, False, 20)
    lease.want(2, False, 1)
    assert heard == [["Grant"], [], [], []], "a large one is not overtaken for ever by small ones"
    lease.release(0)
    assert heard[1] == ["Grant"] and heard[2] == []
    lease.release(1)
    assert heard[2] == ["Grant"]


def test_a_judge_that_dies_while_it_times_or_pauses_lets_the_others_go_on() -> None:
    lease = Lease()
    first, second, third = (told(lease, number) for number in range(3))
    for number in range(3):
        lease.want(number, False, 0)
    lease.want(0, True, 0)
    lease.paused(1)
    lease.leave(2)
    assert first[-1] == "Grant" and first.count("Grant") == 2
    lease.leave(0)
    assert second == ["Grant", "Pause", "Grant"] and third == ["Grant", "Pause"]
    assert lease.holders() == {1: "shared"}
