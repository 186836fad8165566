"""Pulls the data of slots that moved to groups of this node: the shell of `slot_pull`.

At each turn it looks at the membership log's state and at the groups, decides for every pair, asks donors for their
lists, lets leaders append loads, hands the files that are due to the `FilePuller`, and reports what is done. All that
it remembers itself may be lost at any moment.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import Deadline
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.migration.cut_listing import CutListing
from headrace.consumers.migration.cut_source import CutRefused
from headrace.consumers.migration.early_copies import EarlyCopies, keeps_staged
from headrace.consumers.migration.file_puller import FilePuller
from headrace.consumers.migration.former_holders import FormerHolders
from headrace.consumers.migration.pull import Pull, is_settled, missing_loads
from headrace.consumers.migration.pull_environment import PullEnvironment
from headrace.consumers.migration.pull_figures import PullFigures, figures_of
from headrace.consumers.migration.pull_rate import PullRate
from headrace.consumers.migration.slot_pull import (
    Pair,
    PullDecision,
    PullState,
    PullView,
    brings_slots,
    decide_pull,
    donors_of,
    is_reported,
    pairs_of,
    slots_of_bits,
)
from headrace.consumers.migration.wanted_file import WantedFile
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import CutUnready, FormerRows, ScanRequest, Slots, TableMetadata, awaited_entry
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import BEGINNING, GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.messages import Load, load_identity
from headrace.schemas.series import slot_of

TURN_S = 0.1
READ_BACK_TIMEOUT_S = 5.0
RETRY_S = 1.0
UNREADY_RETRY_S = 0.1
"""A donor seals its cut, and the queries of these slots wait for the list."""
LISTINGS_MAX = 2
"""Lists that are asked for at the same time, beside the fetches."""
WAIT_STEP_S = 0.25
_log = structlog.get_logger(__name__)


class SlotPuller:
    """The thread that pulls slots; `turn` is one step of it. All other names are for any thread.

    `figures` are those of the newest turn.
    """

    def __init__(
        self, environment: PullEnvironment, limits: ReplicationLimits, pool: Executor, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`pool` runs fetches and lists, see `threads`; it is shut down with the rest."""
        self._environment = environment
        self._clock = clock
        self._pool = pool
        self._task = PeriodicTask("slot-puller", TURN_S, self.turn, LOG_JOIN_TIMEOUT_S)
        self.rate = PullRate(limits.migration_bytes_per_second, self._task.stopping, clock)
        self.files = FilePuller(
            environment,
            pool,
            limits.migration_fetches_max,
            self.rate,
            clock,
            self.wake,
            limits.migration_busy_share,
        )
        self._early = EarlyCopies(environment, self.files, pool, self.wake)
        self._former = FormerHolders(environment)
        self._pulls: dict[Pair, Pull] = {}
        self._number = 0
        self._loaded: tuple[int, dict[str, frozenset[int]]] = (0, {})
        self._gained: dict[tuple[int, str], frozenset[int]] = {}
        self._reporting: tuple[frozenset[int], float] = (frozenset(), 0.0)
        self._urgent: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()
        self.figures = PullFigures()
        self.keeps_uploads: Callable[[Group], bool] = lambda _group: False
        """Whether files of senders are staged for a group, which a record may still name."""

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self.files.stop()
        self._task.request_stop()

    def stop(self) -> None:
        """Stop; an unfinished file continues at the next start."""
        self.request_stop()
        self._former.close()
        self._task.stop()
        self._pool.shutdown(cancel_futures=True)

    def wake(self) -> None:
        """Something has changed: take the next turn now."""
        self._task.wake()

    # What others ask, see PulledSlots.

    def pulling(self, group: str) -> frozenset[int]:
        """The slots of a group here whose data has not all arrived."""
        state = self._environment.state
        found = next((each for each in list(self._environment.groups.values()) if each.name == group), None)
        if state.table is None or found is None:
            return frozenset()
        # Its own log is ahead of the membership log here: which slots came is not known yet.
        if found.applied.changes.settled_version > state.table.version:
            return frozenset(range(state.table.slots))
        total = state.table.slots
        # First: what a load adds meanwhile is awaited then.
        unloaded = self._not_loaded(state.change, found)
        awaited = (slot_of(each.database, each.bucket, each.slice_number, total) for each in found.store.awaited())
        return frozenset(awaited) | unloaded

    def _not_loaded(self, change: RunningChange | None, group: Group) -> frozenset[int]:
        if change is None or not brings_slots(change, group.name, group.applied.changes.settled_version):
            return frozenset()
        key = change.number, group.name
        if (gained := self._gained.get(key)) is None:
            gained = slots_of_bits(change.gained[group.name])
            self._gained = {**{each: slots for each, slots in self._gained.items() if each[0] == key[0]}, key: gained}
        number, loaded = self._loaded
        return gained - loaded.get(group.name, frozenset()) if number == change.number else gained

    def wait_until_pulled(self, group: str, slots: Collection[int], timeout_s: float) -> bool:
        """Whether the data of these slots has all arrived within a time; it comes first meanwhile."""
        deadline, wanted = Deadline(timeout_s), frozenset(slots)
        if wanted.isdisjoint(self.pulling(group)):
            return True
        with self._urgently(group, wanted), self._changed:
            while not wanted.isdisjoint(self.pulling(group)):
                if deadline.passed():
                    return False
                self._changed.wait(min(WAIT_STEP_S, deadline.left_s()))
        return True

    def former_rows(
        self, group: str, slots: Collection[int], metadata: TableMetadata, request: ScanRequest, timeout_s: float
    ) -> FormerRows | None:
        """Rows of one table in some slots that are pulled, as their former holders have them.

        None where these do not answer in time, or have too many: then the files must be waited for.
        """
        change, number, every = self._environment.state.change, self._number, list(self._pulls.values())
        if change is None or number != change.number:
            return None
        pulls = [
            each for each in every if each.pair.target.group == group and not set(slots).isdisjoint(each.pair.slots)
        ]
        if not {slot for pull in pulls for slot in pull.pair.slots}.issuperset(slots):
            return None
        return self._former.read(pulls, change.table.version, metadata, request, timeout_s)

    @contextmanager
    def _urgently(self, group: str, slots: frozenset[int]) -> Iterator[None]:
        keys = [(group, slot) for slot in slots]
        with self._changed:
            self._urgent.update(keys)
        try:
            yield
        finally:
            with self._changed:
                self._urgent.subtract(keys)
                self._urgent = +self._urgent

    def reason(self, group: str) -> str:
        """What the data of a group's slots waits for, empty when nothing is pulled."""
        return self.figures.reasons.get(group, "")

    # The thread.

    def turn(self) -> None:
        """Look at everything, and do what is due."""
        change, now_s = self._environment.state.change, self._clock.monotonic_s()
        self._follow(change)
        self._early.turn(change, now_s)
        self.rate.limit(change.rate if change is not None else 0)
        for pull in self._pulls.values():
            assert change is not None, pull
            # A group may go at any moment: its step is dropped, and the others are done.
            with suppress(GroupNotHere):
                self._step(change, pull, now_s)
        loaded: dict[str, frozenset[int]] = {}
        for pull in self._pulls.values():
            if pull.decision.is_loaded:
                group = pull.pair.target.group
                loaded[group] = loaded.get(group, frozenset()) | pull.slots
        with self._changed:
            self._loaded = self._number, loaded
            self._changed.notify_all()
        self.files.want([*self._due_files(), *self._listed_files(), *self._early.wanted()])
        if change is not None:
            self._report(change, now_s)
        pulls, topic = list(self._pulls.values()), self._environment.topic
        faults = {pull.pair.target: self.files.fault(topic(pull.pair.target)) for pull in pulls}
        self.figures = figures_of(pulls, faults, self.rate.per_second, self.files, self._early.progress)

    def _follow(self, change: RunningChange | None) -> None:
        """Forget the pairs of a change that has ended, and begin with those of the one that runs."""
        number = change.number if change is not None and change.formal else 0
        if number == self._number:
            return
        self._number = number
        self._reporting = frozenset(), 0.0
        node = self._environment.node
        pairs = pairs_of(change, node)
        self._pulls = {pair: Pull(pair, donors_of(change, pair, node)) for pair in pairs} if change else {}

    def _step(self, change: RunningChange, pull: Pull, now_s: float) -> None:
        topic = self._environment.topic(pull.pair.target)
        group = self._environment.groups.get(topic)
        if group is None:
            pull.decision = PullDecision(PullState.WAITING)
            return
        self._take_listing(pull, now_s)
        view = self._view(change, pull, topic, group, now_s)
        before, pull.decision = pull.decision, decide_pull(view)
        if before.state is not pull.decision.state:
            donor, files = pull.pair.donor.group, len(pull.listing.loads) if pull.listing is not None else 0
            state = str(pull.decision.state)
            _log.info("slots pulled", group=group.name, donor=donor, state=state, files=files, awaited=view.awaited)
        if pull.decision.state is PullState.LISTING and pull.asked is None and now_s >= pull.ask_at_s:
            pull.asked = self._pool.submit(self._ask, pull, change.table.version)
            pull.asked.add_done_callback(lambda _: self.wake())
        if pull.decision.loads:
            self._append(pull, topic, pull.decision.loads, now_s)

    def _view(self, change: RunningChange, pull: Pull, topic: str, group: Group, now_s: float) -> PullView:
        listing, pair, changes = pull.listing, pull.pair, group.applied.changes
        missing = missing_loads(listing, group) if listing is not None and pull.settled is not group else {}
        slots = Slots(pull.slots, change.table.slots)
        # Before it is known what is awaited: a load that ends between the two would count as if it awaited nothing.
        settled = listing is not None and not missing and is_settled(pull, group)
        awaited = [entry for entry in group.store.awaited() if slots.hold_segment(entry)]
        pull.missing = tuple(missing.values())
        pull.awaited_bytes = sum(entry.size_bytes for entry in awaited)
        return PullView(
            # Files may be awaited again although all of them were here once: the data of the group was replaced.
            reported=is_reported(change, self._environment.node, pair.slots) and not awaited,
            reached=changes.settled_version >= change.table.version,
            listing=listing,
            missing=pull.missing,
            settled=settled,
            awaited=len(awaited),
            accepted=changes.accepted.get(pair.donor, BEGINNING),
            leads=self._environment.leads(topic),
            appended=now_s < pull.appended_until_s and not pull.appended.isdisjoint(missing),
        )

    def _ask(self, pull: Pull, table_version: int) -> CutListing:
        """Ask one donor after another for the list. Raises the error of the last one."""
        failure: HeadraceError | None = None
        for node in pull.donors:
            source = self._environment.source(node, pull.pair.donor)
            if source is None:
                continue
            try:
                return source.listing(pull.pair, table_version)
            except HeadraceError as error:
                failure = error
        raise failure or _NobodyOnline(f"no member of group {pull.pair.donor.group} is online")

    def _take_listing(self, pull: Pull, now_s: float) -> None:
        asked = pull.asked
        if asked is None or not asked.done():
            return
        pull.asked = None
        try:
            pull.listing, pull.refusal = asked.result(), ""
        except HeadraceError as error:
            unready = (error.kind if isinstance(error, CutRefused) else type(error).__name__) == CutUnready.__name__
            pull.refusal, pull.ask_at_s = error.message, now_s + (UNREADY_RETRY_S if unready else RETRY_S)
        except Exception as error:
            pull.refusal, pull.ask_at_s = repr(error), now_s + RETRY_S
            _log.exception("list of a cut failed", donor=pull.pair.donor.group)

    def _append(self, pull: Pull, topic: str, loads: tuple[Load, ...], now_s: float) -> None:
        try:
            self._environment.append_loads(topic, loads)
        except HeadraceError as error:
            pull.refusal, pull.appended_until_s = error.message, now_s
            return
        # A delivery report proves nothing: what the log does not show in this time is appended again.
        pull.appended = frozenset(map(load_identity, loads))
        pull.appended_until_s = now_s + READ_BACK_TIMEOUT_S

    def _due_files(self) -> list[WantedFile]:
        """What groups of this node await, the most urgent first."""
        found: list[tuple[bool, WantedFile]] = []
        for topic, group in self._environment.groups.items():
            # Those of slots that have left again too: else this member could never list them.
            awaited = [*group.store.awaited(), *(entry for entry in group.store.cut_files() if entry.awaited)]
            # A member that leaves the group needs none: nobody reads them there any more. Neither does one whose data
            # is about to be replaced: the other members may not have these files.
            if not awaited or group.health.is_wrong or self._environment.node not in self._members(group):
                if not self._keeps_staged(group.birth_key) and not self.keeps_uploads(group):
                    self.files.sweep(topic, group)
                continue
            table = self._environment.state.table
            for entry in awaited if table is not None else ():
                assert table is not None
                slot = slot_of(entry.database, entry.bucket, entry.slice_number, table.slots)
                sources = (*self._donors(group, slot), *self._peers(group))
                found.append(((group.name, slot) not in self._urgent, WantedFile(topic, group, entry, sources)))
        # Newest rows first of the others: most queries want them, and what is known from them spares reading older
        # files for the last rows.
        return [file for _, file in sorted(found, key=lambda each: (each[0], -each[1].entry.max_time_ns))]

    def _listed_files(self) -> list[WantedFile]:
        """The files of lists whose loads are on their way: they are staged meanwhile, and attached by these."""
        found: list[WantedFile] = []
        for pull in self._pulls.values():
            topic = self._environment.topic(pull.pair.target)
            group = self._environment.groups.get(topic)
            if group is None or pull.decision.state is not PullState.LOADING:
                continue
            sources = tuple((node, pull.pair.donor) for node in pull.donors)
            left = (load for load in pull.missing if not self.files.was_tried_ahead(topic, load.content_digest.hex()))
            found += (WantedFile(topic, group, awaited_entry(0, load), sources, ahead=True) for load in left)
        return found

    def _keeps_staged(self, key: GroupKey) -> bool:
        """Whether loads may come for files that were copied ahead."""
        change = self._environment.state.change
        pulls = [pull for pull in self._pulls.values() if pull.pair.target == key]
        has_rows = bool(pulls) and all(pull.decision.has_rows for pull in pulls)
        return keeps_staged(change, key) and not has_rows

    def _donors(self, group: Group, slot: int) -> tuple[tuple[str, GroupKey], ...]:
        for pull in self._pulls.values():
            if pull.pair.target == group.birth_key and slot in pull.slots:
                return tuple((node, pull.pair.donor) for node in pull.donors)
        return ()

    def _peers(self, group: Group) -> tuple[tuple[str, GroupKey], ...]:
        """The other members of the group itself: once the donors have released their files, they alone have them."""
        node = self._environment.node
        return tuple((member, group.birth_key) for member in self._members(group) if member != node)

    def _members(self, group: Group) -> tuple[str, ...]:
        """The members of a group by its log, and by the membership log, also those that a first phase adds."""
        # A node that joins a group reads old loads long before the record that makes it a member: if it waited for
        # that record, and its store for the files, neither would come.
        state, (header, birth) = self._environment.state, (group.birth_key.group, group.birth_key.birth)
        if state.table is None or header not in state.table.headers or state.table.birth(header) != birth:
            return group.members
        change = state.change
        newest = state.members(header) if change is None or change.formal else change.pre_members(header)
        return tuple(dict.fromkeys((*newest, *group.members)))

    def _report(self, change: RunningChange, now_s: float) -> None:
        """Report all that is complete with one record, and wait until it is read back."""
        due = [pull.pair for pull in self._pulls.values() if pull.decision.state is PullState.COMPLETE]
        slots = sorted(slot for pair in due for slot in pair.slots)
        sent, until_s = self._reporting
        # One record at a time: until it was read back it may count, or not, or come later.
        if not slots or (now_s < until_s and not is_reported(change, self._environment.node, sent)):
            return
        try:
            self._environment.report(SlotDone(change.number, self._environment.node, tuple(slots)))
            self._reporting = frozenset(slots), now_s + READ_BACK_TIMEOUT_S
        except HeadraceError as error:
            self._reporting = frozenset(slots), now_s + RETRY_S
            _log.warning("slots not reported", error=str(error))


class _NobodyOnline(HeadraceError):
    """No donor can be asked."""
