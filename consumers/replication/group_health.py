"""The health of one group at one node, as one state machine; pure.

A group has seven aspects, and each of them is in exactly one state. An event happens in every aspect that knows
it. Where an aspect knows it but not in its present state, the event is illegal: it raises and changes nothing.
docs/internals/replication.md has states, transitions and refusals as a table, which a test compares with the
ones here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.health import RecoveryInProgress
from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    import threading


class IllegalTransition(HeadraceError):
    """An event that cannot happen in the present state of a group; the state is as before."""


class Aspect(StrEnum):
    """What a state is about: the aspects change independently, except by the events that they share."""

    RECORDS = "records"
    FILES = "files"
    LOG = "log"
    MEMBERS = "members"
    DATA = "data"
    RECOVERY = "recovery"
    PLACE = "place"


class State(StrEnum):
    """The states of all aspects; each belongs to one."""

    APPLYING = "applying"
    AWAITING = "awaiting"
    STOPPED = "stopped"
    STORED = "stored"
    DEFERRED = "deferred"
    HELD = "held"
    TRIMMED = "trimmed"
    LOST = "lost"
    MATCHED = "matched"
    TRUNCATED = "truncated"
    SOUND = "sound"
    DISPUTED = "disputed"
    DAMAGED = "damaged"
    WRONG = "wrong"
    CONDEMNED = "condemned"
    UNNEEDED = "unneeded"
    RECOVERING = "recovering"
    UNSOURCED = "unsourced"
    PRESENT = "present"
    LEAVING = "leaving"


class Event(StrEnum):
    """What the threads of a node report about a group."""

    AWAIT = "await"
    PROCEED = "proceed"
    STOP = "stop"
    DEFER = "defer"
    STORE = "store"
    TRIM = "trim"
    LOSE = "lose"
    TRUNCATE = "truncate"
    MATCH = "match"
    DISPUTE = "dispute"
    AGREE = "agree"
    DAMAGE = "damage"
    MARK = "mark"
    RECORD = "record"
    RECOVER = "recover"
    STARVE = "starve"
    COPY = "copy"
    RESUME = "resume"
    JOIN = "join"
    SKIP = "skip"
    REGAIN = "regain"
    LEAVE = "leave"


class Use(StrEnum):
    """What a state may refuse."""

    READS = "reads"
    LEADERSHIP = "leadership"
    QUORUM = "quorum"
    FOLLOWING = "following"


INITIAL: Mapping[Aspect, State] = {
    Aspect.RECORDS: State.APPLYING,
    Aspect.FILES: State.STORED,
    Aspect.LOG: State.HELD,
    Aspect.MEMBERS: State.MATCHED,
    Aspect.DATA: State.SOUND,
    Aspect.RECOVERY: State.UNNEEDED,
    Aspect.PLACE: State.PRESENT,
}

ASPECT: Mapping[State, Aspect] = {
    State.APPLYING: Aspect.RECORDS,
    State.AWAITING: Aspect.RECORDS,
    State.STOPPED: Aspect.RECORDS,
    State.STORED: Aspect.FILES,
    State.DEFERRED: Aspect.FILES,
    State.HELD: Aspect.LOG,
    State.TRIMMED: Aspect.LOG,
    State.LOST: Aspect.LOG,
    State.MATCHED: Aspect.MEMBERS,
    State.TRUNCATED: Aspect.MEMBERS,
    State.SOUND: Aspect.DATA,
    State.DISPUTED: Aspect.DATA,
    State.DAMAGED: Aspect.DATA,
    State.WRONG: Aspect.DATA,
    State.CONDEMNED: Aspect.DATA,
    State.UNNEEDED: Aspect.RECOVERY,
    State.RECOVERING: Aspect.RECOVERY,
    State.UNSOURCED: Aspect.RECOVERY,
    State.PRESENT: Aspect.PLACE,
    State.LEAVING: Aspect.PLACE,
}


def _stays(state: State, *events: Event) -> dict[Event, State]:
    return dict.fromkeys(events, state)


_IN_LOG = (Event.RECOVER, Event.RESUME, Event.JOIN)
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.APPLYING: {Event.AWAIT: State.AWAITING, Event.PROCEED: State.APPLYING, Event.STOP: State.STOPPED},
    State.AWAITING: {Event.AWAIT: State.AWAITING, Event.PROCEED: State.APPLYING, Event.STOP: State.STOPPED},
    State.STOPPED: _stays(State.STOPPED, Event.AWAIT, Event.PROCEED, Event.STOP),
    State.STORED: {Event.DEFER: State.DEFERRED, Event.STORE: State.STORED},
    State.DEFERRED: {Event.DEFER: State.DEFERRED, Event.STORE: State.STORED},
    State.HELD: {
        Event.TRIM: State.TRIMMED,
        Event.LOSE: State.LOST,
        **_stays(State.HELD, Event.RESUME, Event.JOIN, Event.SKIP),
    },
    State.TRIMMED: {
        Event.TRIM: State.TRIMMED,
        Event.LOSE: State.LOST,
        **_stays(State.HELD, Event.RESUME, Event.JOIN, Event.SKIP),
    },
    # The log of a copy that was not needed after all may still be lost: only an accepted gap ends that, or the log
    # itself, which is back.
    State.LOST: {
        **_stays(State.LOST, Event.TRIM, Event.LOSE, Event.RESUME),
        **_stays(State.HELD, Event.JOIN, Event.SKIP, Event.REGAIN),
    },
    State.MATCHED: {Event.TRUNCATE: State.TRUNCATED, Event.MATCH: State.MATCHED},
    State.TRUNCATED: {Event.TRUNCATE: State.TRUNCATED, Event.MATCH: State.MATCHED},
    State.SOUND: {
        Event.DISPUTE: State.DISPUTED,
        Event.DAMAGE: State.DAMAGED,
        Event.MARK: State.WRONG,
        **_stays(State.SOUND, Event.AGREE, *_IN_LOG),
    },
    State.DISPUTED: {
        Event.AGREE: State.SOUND,
        Event.DAMAGE: State.DAMAGED,
        Event.MARK: State.WRONG,
        **_stays(State.DISPUTED, Event.DISPUTE, *_IN_LOG),
    },
    State.DAMAGED: {
        Event.MARK: State.WRONG,
        **_stays(State.DAMAGED, Event.DISPUTE, Event.AGREE, Event.DAMAGE, *_IN_LOG),
    },
    # No recovery before the mark is durable: after a crash in the middle of it the store would open without an
    # error, and nothing would show that its data must not be served.
    State.WRONG: {
        Event.RECORD: State.CONDEMNED,
        **_stays(State.WRONG, Event.DISPUTE, Event.AGREE, Event.DAMAGE, Event.MARK, Event.SKIP),
    },
    State.CONDEMNED: _stays(
        State.CONDEMNED,
        Event.DISPUTE,
        Event.AGREE,
        Event.DAMAGE,
        Event.MARK,
        Event.RECORD,
        Event.RECOVER,
        Event.SKIP,
    ),
    State.UNNEEDED: {Event.RECOVER: State.RECOVERING, Event.JOIN: State.UNNEEDED},
    State.RECOVERING: {
        Event.STARVE: State.UNSOURCED,
        **_stays(State.RECOVERING, Event.RECOVER, Event.COPY),
        **_stays(State.UNNEEDED, Event.RESUME, Event.JOIN),
    },
    State.UNSOURCED: {
        Event.STARVE: State.UNSOURCED,
        **_stays(State.RECOVERING, Event.RECOVER, Event.COPY),
        **_stays(State.UNNEEDED, Event.RESUME, Event.JOIN),
    },
    State.PRESENT: {Event.LEAVE: State.LEAVING},
    # For good: a node that gets the group back opens it again.
    State.LEAVING: {Event.LEAVE: State.LEAVING},
}

_SERVES_NOTHING = frozenset({Use.READS, Use.LEADERSHIP})
_TAKES_NOTHING = _SERVES_NOTHING | {Use.FOLLOWING}
REFUSES: Mapping[State, frozenset[Use]] = {
    **dict.fromkeys(INITIAL.values(), frozenset()),
    State.AWAITING: _SERVES_NOTHING,
    State.STOPPED: _TAKES_NOTHING,
    State.DEFERRED: _SERVES_NOTHING,
    State.TRIMMED: _TAKES_NOTHING,
    State.LOST: _TAKES_NOTHING,
    State.TRUNCATED: _SERVES_NOTHING,
    State.DISPUTED: _SERVES_NOTHING,
    State.DAMAGED: _SERVES_NOTHING | {Use.QUORUM},
    State.WRONG: frozenset(Use),
    State.CONDEMNED: frozenset(Use),
    State.RECOVERING: _TAKES_NOTHING,
    State.UNSOURCED: _TAKES_NOTHING,
    State.LEAVING: frozenset(Use),
}

# The most final cause first: one that other causes follow from is what an operator must act on.
PRECEDENCE = (
    State.LEAVING,
    State.WRONG,
    State.UNSOURCED,
    State.RECOVERING,
    State.CONDEMNED,
    State.STOPPED,
    State.LOST,
    State.TRIMMED,
    State.TRUNCATED,
    State.DAMAGED,
    State.DISPUTED,
    State.AWAITING,
    State.DEFERRED,
)

# Their first cause is the one to show: later ones mostly follow from it.
_FIRST_CAUSE_STAYS = frozenset(
    {State.STOPPED, State.LOST, State.TRIMMED, State.TRUNCATED, State.DAMAGED, State.WRONG, State.CONDEMNED}
)
_ENTERED_BY: Mapping[State, frozenset[Event]] = {
    state: frozenset(event for other in State for event, to in TRANSITIONS[other].items() if to is state is not other)
    for state in State
}
_EVENTS: Mapping[Aspect, frozenset[Event]] = {
    aspect: frozenset(event for state in State if ASPECT[state] is aspect for event in TRANSITIONS[state])
    for aspect in Aspect
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """The states of all aspects at one moment, with what belongs to them.

    `causes`: texts for operators, empty in an initial state. `trusted`: the members that wrong data may be
    replaced from, None = all. `gap`: the accepted gap that the replacement must be behind. `unrecorded`: why the
    mark of wrong data is not durable yet.
    """

    states: Mapping[Aspect, State] = field(default_factory=lambda: dict(INITIAL))
    causes: Mapping[Aspect, str] = field(default_factory=dict)
    trusted: frozenset[str] | None = None
    gap: LogBase | None = None
    unrecorded: str = ""
    recovery: RecoveryInProgress | None = None

    def after(self, event: Event, cause: str) -> Conditions:
        """The conditions after an event. Raises IllegalTransition."""
        states, causes = dict(self.states), dict(self.causes)
        for aspect, before in self.states.items():
            if event not in _EVENTS[aspect]:
                continue
            if (state := TRANSITIONS[before].get(event)) is None:
                raise IllegalTransition(f"the event {event} is illegal while {aspect} is {before}")
            states[aspect] = state
            if state is INITIAL[aspect]:
                causes.pop(aspect, None)
            elif cause and (state is not before or _renews(event, state)):
                causes[aspect] = cause
        recovery = self.recovery if states[Aspect.RECOVERY] is not State.UNNEEDED else None
        return replace(self, states=states, causes=causes, recovery=recovery)


def _renews(event: Event, state: State) -> bool:
    """Whether an event that leaves a state as it is gives it another cause."""
    # An event of another aspect, which this state only accepts, has nothing to do with its cause.
    return event in _ENTERED_BY[state] and state not in _FIRST_CAUSE_STAYS


class GroupHealth:
    """The conditions of a group: several threads report events, any may read; every change notifies `changed`."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.conditions = Conditions()

    def report(self, event: Event, cause: str = "") -> bool:
        """An event has happened; whether a state or its cause is another one now. Raises IllegalTransition."""
        with self._changed:
            return self._set(self.conditions.after(event, cause))

    def mark(self, cause: str, trusted: frozenset[str] | None = None, gap: LogBase | None = None) -> bool:
        """The data is wrong; whether it was not known to be before. `trusted` and `gap`: see Conditions."""
        with self._changed:
            before, after = self.conditions, self.conditions.after(Event.MARK, cause)
            first = not self.is_wrong
            kept = trusted if first else _trusted_behind(gap, before)
            self._set(replace(after, trusted=kept, gap=gap or before.gap))
            return first

    def damage(self, cause: str, gap: LogBase | None = None) -> None:
        """The store, or the state, cannot be continued. `gap`: see Conditions."""
        with self._changed:
            before, after = self.conditions, self.conditions.after(Event.DAMAGE, cause)
            self._set(replace(after, trusted=_trusted_behind(gap, before), gap=gap or before.gap))

    def recover(self, cause: str, recovery: RecoveryInProgress) -> None:
        """A recovery begins, instead of one that is under way. Raises IllegalTransition."""
        with self._changed:
            self._set(replace(self.conditions.after(Event.RECOVER, cause), recovery=recovery))

    def note_unrecorded(self, error: str) -> None:
        """The mark of wrong data could not be made durable; it is tried again."""
        with self._changed:
            self._set(replace(self.conditions, unrecorded=error))

    def _set(self, after: Conditions) -> bool:
        if after == self.conditions:
            return False
        self.conditions = after
        self._changed.notify_all()
        return True

    def holds(self, *states: State) -> bool:
        """Whether the group is in one of the states."""
        now = self.conditions.states
        return any(now[ASPECT[state]] is state for state in states)

    def refuses(self, use: Use) -> bool:
        """Whether one of the states refuses a use."""
        return any(use in REFUSES[state] for state in self.conditions.states.values())

    @property
    def leaves_sound(self) -> bool:
        """Whether it leaves this node and nothing else refuses its rows: what was read of it is right."""
        others = (state for aspect, state in self.conditions.states.items() if aspect is not Aspect.PLACE)
        return self.holds(State.LEAVING) and not any(Use.READS in REFUSES[state] for state in others)

    @property
    def is_wrong(self) -> bool:
        """Whether the data is known not to be that of the log, recorded durably or not."""
        return self.holds(State.WRONG, State.CONDEMNED)

    @property
    def state(self) -> State | None:
        """The state that determines what is shown: the first in PRECEDENCE; None for a group without a fault."""
        return next((state for state in PRECEDENCE if self.holds(state)), None)

    def cause(self, aspect: Aspect) -> str:
        """Why an aspect is not in its initial state, empty when it is."""
        return self.conditions.causes.get(aspect, "")

    @property
    def reason(self) -> str:
        """The text for operators, empty for a group without a fault."""
        now = self.conditions
        state = next((each for each in PRECEDENCE if now.states[ASPECT[each]] is each), None)
        if state is None:
            return ""
        # Never empty: a group without a reason serves.
        cause = now.causes.get(ASPECT[state]) or str(state)
        if state is State.WRONG and now.unrecorded:
            return f"wrong data: {cause}; it recovers once that is recorded: {now.unrecorded}"
        if now.recovery is not None and ASPECT[state] is Aspect.RECOVERY:
            return now.recovery.reason
        return f"waiting for {cause}" if state is State.AWAITING else cause


def _trusted_behind(gap: LogBase | None, before: Conditions) -> frozenset[str] | None:
    """The members that wrong data may be replaced from, once the log is known to have a gap."""
    # Where nobody decided a dispute, the log was to rebuild the data. A log with a gap cannot: then any member in
    # sync is a source, and the data of one that was not at the gap differs for that reason.
    return before.trusted if gap is None else before.trusted or None
