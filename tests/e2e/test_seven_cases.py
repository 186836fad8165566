"""The seven cases in which TDengine 2's replication fails; docs/internals/replication.md has the index.

All tests share one cluster and leave it in sync. Its nodes reach Kafka through proxies, its leaders trim the
logs to the last records, and its file copies are slow enough to observe.
"""

from __future__ import annotations

import itertools
import random
import signal
import socket
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.leader_tasks import UPKEEP_INTERVAL_S
from headrace.local_cluster import LocalCluster
from headrace.producers.acks import QuorumTimeout
from tests.e2e.actions import (
    assert_follows_first,
    eventually_unready,
    group_status,
    log_text,
    query,
    readiness,
    seal,
    status,
    verify,
    write,
)
from tests.e2e.faults import CORRUPTION_MESSAGE, NODES, ProxiedCluster, corrupt, proxied_cluster
from tests.e2e.ledger import QUERY, Expectation, Ledger, Outcome, WritingThreads, messages_of
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.broker]
ENVIRONMENT = {
    "HEADRACE__STORE__SEAL_ROWS": "600",
    "HEADRACE__STORE__LOG_KEEP_RECORDS": "10",
    "HEADRACE__STORE__RECOVERY_BYTES_PER_SECOND": "400000",
}
PUMPS = 24
TEXT_BYTES = 80_000
COPY_TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Three nodes behind proxies."""
    directory, name = tmp_path_factory.mktemp("cases"), f"t{uuid.uuid4().hex[:12]}"
    with proxied_cluster(directory, name, lambda _directory, _mebibytes: False, ENVIRONMENT) as running:
        yield running


@pytest.fixture(autouse=True)
def in_sync(proxied: ProxiedCluster) -> None:
    """Every test begins with a cluster that is in sync."""
    for proxy in proxied.proxies.values():
        proxy.heal()
    for name in NODES:
        proxied.cluster.kill(name, signal.SIGCONT)
        if not proxied.cluster.node(name).running:
            proxied.cluster.start_node(name)
    proxied.cluster.wait_ready()


def write_values(proxied: ProxiedCluster, case: str, value: int, quorum: int = 2) -> None:
    """Write one row for each of many pumps, at the same times in every call, so that a later value replaces
    an earlier one.
    """
    names = [f"{case}{number}" for number in range(PUMPS)]
    rows = pa.table({"pump": names, "time": pa.array([0] * PUMPS, pa.int64()), "value": [value] * PUMPS})
    write(proxied.shared, "cases", rows, ["pump"], quorum=quorum)


def write_incompressible(proxied: ProxiedCluster, text_bytes: int = TEXT_BYTES) -> None:
    """Write and seal incompressible rows, so that the copy of their files takes some time."""
    generator = random.Random(7)
    names = [f"much{number}" for number in range(PUMPS)]
    texts = [generator.randbytes(text_bytes).hex() for _ in names]
    rows = pa.table({"pump": names, "time": pa.array([0] * PUMPS, pa.int64()), "text": texts})
    write(proxied.shared, "much", rows, ["pump"], quorum=2)
    seal(proxied.cluster)


def values(cluster: LocalCluster, name: str, case: str) -> dict[int, int]:
    """The number of rows of each value that a node holds of a case."""
    sql = f"SELECT value, count(*) AS rows FROM fleet.cases WHERE pump LIKE '{case}%' GROUP BY 1"
    return {row["value"]: row["rows"] for row in query(cluster.url(name), sql).to_pylist()}


def assert_all_hold(proxied: ProxiedCluster, case: str, value: int) -> None:
    """Every member answers with the value in every row, and all members are equal."""
    seal(proxied.cluster)
    for name in NODES:
        assert {value: PUMPS} == values(proxied.cluster, name, case), f"at {name}"
    verify(proxied.cluster)


def groups_recovering(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """The statuses of the groups whose files a node copies, by group."""
    found = status(cluster, name)["groups"]
    return {each["group"]: each for each in found if "recovering files" in each["reason"]}


def leader_of(cluster: LocalCluster, group: str, observer: str) -> str:
    """The leader of a group, as one node knows it."""
    return str(group_status(cluster, observer, group)["leader"])


def others_than(name: str) -> list[str]:
    """The other two nodes."""
    return [each for each in NODES if each != name]


def await_other_leader(cluster: LocalCluster, group: str, than: str) -> None:
    """Wait until both other nodes know another leader."""
    for observer in others_than(than):
        eventually(
            lambda observer=observer: leader_of(cluster, group, observer) not in ("", than),
            f"another leader known to {observer}",
        )


def post(url: str, timeout_s: float) -> tuple[int, str]:
    """(status, answer) of a POST."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def begins(cluster: LocalCluster) -> list[int]:
    """The first offset of each group's log."""
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    try:
        return [log.describe(topics.forward(name)).begin for name in NODES]
    finally:
        log.close()


def trim(proxied: ProxiedCluster) -> None:
    """Wait until every log is trimmed, so that an empty directory needs files."""
    numbers = itertools.count()

    def trimmed() -> bool:
        if all(begins(proxied.cluster)):
            return True
        write_values(proxied, "trim", next(numbers))
        seal(proxied.cluster)
        return False

    eventually(trimmed, "logs that were trimmed")


# 1


@pytest.mark.slow(8)
def test_a_stale_leader_that_returns_changes_nothing(proxied: ProxiedCluster) -> None:
    """A leader is cut off and still acts as leader for a moment, while others take over and acknowledge newer
    rows.

    Its late record does not count. TDengine 2: a version is a mere count, given by the current master. A
    master that is cut off continues to count. The others elect a new one, which gives the same versions to
    other rows. The old master returns with an equal or higher version and passes for up to date, or even for
    the new master. Acknowledged rows are lost or differ between copies. Here the order of the log is the
    version, and a leader's record counts only under the newest epoch that the log has accepted.
    """
    cluster = proxied.cluster
    write_values(proxied, "stale", 1)
    old = leader_of(cluster, "n1", "n2")
    ignored = {name: group_status(cluster, name, "n1")["ignored"].get("not_leader", 0) for name in NODES}
    with ThreadPoolExecutor(1) as pool:
        proxied.proxies[old].cut("both")
        late_seal = pool.submit(post, f"{cluster.url(old)}/api/v1/seal?group=n1", 60.0)
        await_other_leader(cluster, "n1", old)
        write_values(proxied, "stale", 2)
        for name in others_than(old):
            assert {2: PUMPS} == values(cluster, name, "stale")
        eventually_unready(cluster, old, "not read back within 3 s")
        proxied.proxies[old].heal()
        cluster.wait_ready()
        code, answer = late_seal.result()
    assert (409, True) == (code, "NotLeader" in answer)
    for name in NODES:
        eventually(
            lambda name=name: group_status(cluster, name, "n1")["ignored"].get("not_leader", 0) == ignored[name] + 1,
            f"the late seal of the old leader, ignored at {name}",
        )
    assert_all_hold(proxied, "stale", 2)


# 2


@pytest.mark.slow(11)
def test_the_first_action_of_a_leader_that_was_stopped_is_refused(proxied: ProxiedCluster) -> None:
    """SIGSTOP a leader: another one leads. SIGCONT: a seal that was requested during the stop is refused, and
    the old leader follows.

    TDengine 2: a master that hangs while its TCP connections stay open is not detected, so nobody else leads.
    When it continues, nothing informs it that its leadership has ended, so it acts as master beside the new
    one.
    """
    cluster = proxied.cluster
    old = leader_of(cluster, "n1", "n2")
    write_values(proxied, "stopped", 1)
    cluster.kill(old, signal.SIGSTOP)
    host, port = cluster.node(old).http.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST /api/v1/seal?group=n1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await_other_leader(cluster, "n1", old)
        write_values(proxied, "stopped", 2)
        log_before = log_text(cluster, old)
        cluster.kill(old, signal.SIGCONT)
        answer = b"".join(iter(lambda: connection.recv(4_096), b""))
    assert b"409" in answer.split(b"\r\n")[0], answer
    assert b"NotLeader" in answer, answer
    cluster.wait_ready()
    assert_follows_first(cluster, old, "n1", log_before)
    assert_all_hold(proxied, "stopped", 2)


@pytest.mark.slow(9)
def test_writers_with_a_satisfied_quorum_do_not_wait_for_a_stopped_follower(proxied: ProxiedCluster) -> None:
    """SIGSTOP one of three: quorum 2 is confirmed from the first write on; quorum 3 never is, and the error
    names the lagging member.

    TDengine 2: the master writes into one TCP connection for each slave. One slave that hangs fills its
    connection, and writers wait for it although enough others have confirmed.
    """
    cluster = proxied.cluster
    follower = next(name for name in NODES if name != leader_of(cluster, "n1", "n2"))
    cluster.kill(follower, signal.SIGSTOP)
    for value in range(1, 31):
        write_values(proxied, "follower", value)
    with pytest.raises(QuorumTimeout) as raised:
        write_values(proxied, "follower", 31, quorum=3)
    assert all(follower in members for members in raised.value.lagging.values())
    assert follower in str(raised.value)
    cluster.kill(follower, signal.SIGCONT)
    cluster.wait_ready()
    assert_all_hold(proxied, "follower", 31)


# 3 is tests/e2e/test_disk_full.py


# 4


@pytest.mark.slow(39)
def test_a_source_with_a_corrupted_file_is_detected_by_digest_and_skipped(proxied: ProxiedCluster) -> None:
    """The first source has corrupted files of the right size: the wiped node detects it by digest and copies
    from the other.

    TDengine 2: a file with the right name, size and "magic number", which may be its size alone, passes for
    the same. A corrupted copy is never repaired, and spreads to every node that recovers from it.
    """
    cluster = proxied.cluster
    write_values(proxied, "corrupt", 1)
    trim(proxied)
    # After the next upkeep no leader merges files any more.
    threading.Event().wait(UPKEEP_INTERVAL_S + 1)
    table = proxied.shared.slot_table
    assert isinstance(table, SlotTable)
    ring = table.nodes
    wiped, first = ring[2], ring[0]
    contents = {path: path.read_bytes() for path in (cluster.data_directory(first) / "segments").rglob("*.parquet")}
    cluster.kill(wiped)
    for path in contents:
        corrupt(path, random.Random(1))
    cluster.wipe(wiped)
    log_length = len(log_text(cluster, wiped))
    cluster.start_node(wiped)
    cluster.wait_ready([wiped], COPY_TIMEOUT_S)
    new_lines = log_text(cluster, wiped)[log_length:]
    assert "that its sender's catalogue lists" in new_lines
    assert f"source={first}" in new_lines
    assert {1: PUMPS} == values(cluster, wiped, "corrupt")
    cluster.kill(first)
    for path, content in contents.items():
        path.write_bytes(content)
    cluster.start_node(first)
    cluster.wait_ready()
    assert_all_hold(proxied, "corrupt", 1)


@pytest.mark.slow(17)
def test_a_file_corrupted_while_a_node_was_down_is_detected_at_its_start(proxied: ProxiedCluster) -> None:
    """One file of every group is corrupted: the node detects each, serves none of those groups, and copies
    the files of others by itself.

    TDengine 2: nothing reads a file again after it was written. A corrupted one is served, or fails a query
    long after, when good copies may be gone.
    """
    cluster = proxied.cluster
    write_values(proxied, "damaged", 1)
    seal(cluster)
    verify(cluster)
    cluster.kill("n3")
    contents = {}
    for group in NODES:
        path = max((cluster.data_directory("n3") / "segments" / group).rglob("*.parquet"))
        contents[path] = path.read_bytes()
        corrupt(path, random.Random(2))
    log_length = len(log_text(cluster, "n3"))
    cluster.start_node("n3")
    for path, content in contents.items():
        # A merge may have replaced a file that was detected.
        eventually(
            lambda path=path, content=content: not path.exists() or content == path.read_bytes(), f"{path} as sealed"
        )
    assert CORRUPTION_MESSAGE in log_text(cluster, "n3")[log_length:]
    cluster.wait_ready(timeout_s=COPY_TIMEOUT_S)
    assert_all_hold(proxied, "damaged", 1)


# 5


@pytest.mark.slow(36)
def test_recovery_under_full_write_load_finishes(proxied: ProxiedCluster) -> None:
    """Writers never pause while a wiped node recovers: it copies files, catches up and serves, and holds what
    was written meanwhile.

    TDengine 2: every file that changes during its transfer, as the newest always does, aborts the recovery,
    which begins again. Under load it does not end, and groups stay unsynced for hours.
    """
    cluster, ledger = proxied.cluster, Ledger()
    # Writers that never pause take the whole machine: a copy of some seconds is enough.
    write_incompressible(proxied, TEXT_BYTES // 3)
    trim(proxied)
    with WritingThreads(proxied.shared, ledger, (1, 2, 2), 0.0, seed=5):
        eventually(lambda: ledger.rows(Outcome.ACKNOWLEDGED) > 0, "rows that were acknowledged")
        cluster.kill("n3")
        cluster.wipe("n3")
        log_length = len(log_text(cluster, "n3"))
        cluster.start_node("n3")
        written = ledger.rows(Outcome.ACKNOWLEDGED)
        cluster.wait_ready(["n3"], COPY_TIMEOUT_S)
        assert written < ledger.rows(Outcome.ACKNOWLEDGED)
    assert "recovered from files" in log_text(cluster, "n3")[log_length:]
    cluster.wait_ready()
    seal(cluster)
    verify(cluster)
    expectation = Expectation(ledger.entries, messages_of(proxied.shared))
    for name in NODES:
        assert [] == expectation.faults_of(query(cluster.url(name), QUERY)), f"at {name}"


# 6


@pytest.mark.slow(8)
def test_a_full_restart_with_one_member_missing_serves_again(proxied: ProxiedCluster) -> None:
    """All nodes are killed and two return: they lead, serve the acknowledged rows and accept more; the third
    returns later.

    TDengine 2: after a full restart all are unsynced, and nobody becomes master before every single member is
    online. The missing one may have the highest version, so two of three have no master.
    """
    cluster, case, missing = proxied.cluster, "restart", "n1"
    write_values(proxied, case, 1)
    for name in NODES:
        cluster.kill(name)
    present = others_than(missing)
    for name in present:
        cluster.start_node(name)
    cluster.wait_ready(present)
    for name in present:
        assert {1: PUMPS} == values(cluster, name, case)
    write_values(proxied, case, 2)
    for group in NODES:
        eventually(lambda group=group: leader_of(cluster, group, present[0]) in present, f"a leader of group {group}")
    cluster.start_node(missing)
    cluster.wait_ready()
    assert_all_hold(proxied, case, 2)


# 7


@pytest.mark.slow(19)
def test_a_wiped_and_half_copied_replica_neither_leads_nor_serves_nor_is_a_source(proxied: ProxiedCluster) -> None:
    """While a wiped header copies its files, the leaders die: the other member leads; the copying one refuses
    queries, snapshots and seals.

    TDengine 2: an emptied replica that is first in the list may be elected when the exchanged statuses are
    stale. The others then "recover" from it, and everything is lost.
    """
    cluster = proxied.cluster
    write_incompressible(proxied)
    trim(proxied)
    wiped, killed, survivor = "n1", "n2", "n3"
    cluster.kill(wiped)
    cluster.wipe(wiped)
    cluster.start_node(wiped)
    copying = (cluster.data_directory(wiped) / "recovering").rglob
    eventually(
        lambda: any(path.is_file() and path.stat().st_size for path in copying("*")), "copied files", briefly=True
    )
    cluster.kill(killed)
    # A group whose few files the wiped member has copied by now is in sync there, and may be led by it. Until the
    # survivor claims a group, it knows the leader of before.
    eventually(
        lambda: all(
            leader_of(cluster, group, survivor) == survivor
            or (leader_of(cluster, group, survivor) == wiped and group not in groups_recovering(cluster, wiped))
            for group in NODES
        ),
        "a live leader of all groups",
    )
    recovering = groups_recovering(cluster, wiped)
    answers = {
        group: [
            (leader_of(cluster, group, survivor), ""),
            *(post(f"{cluster.url(wiped)}/api/v1/{action}?group={group}", 10.0) for action in ("snapshots", "seal")),
        ]
        for group in recovering
    }
    # What was still being copied after the last answer was so at each of them.
    recovering = {group: each for group, each in groups_recovering(cluster, wiped).items() if group in answers}
    for group, each in recovering.items():
        assert "unsynced" == each["role"]
        (leader, _), (snapshot_code, snapshot), (seal_code, seal) = answers[group]
        assert survivor == leader
        assert (409, True) == (snapshot_code, "not in sync" in snapshot)
        assert (409, True) == (seal_code, "NotLeader" in seal)
    assert recovering, "every group was copied before the test could observe it"
    assert not readiness(cluster, wiped)[0]
    cluster.start_node(killed)
    cluster.wait_ready(timeout_s=COPY_TIMEOUT_S)
    write_values(proxied, "half", 1)
    assert_all_hold(proxied, "half", 1)
