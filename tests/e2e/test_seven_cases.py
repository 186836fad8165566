"""The seven cases in which the original, TDengine 2's replication, fails (DESIGN 6); the index is in docs/internals/replication.md.

All on one cluster whose nodes reach Kafka through proxies, whose leaders trim the logs to the last records and whose copies of files are slow enough
to be looked at. Each test leaves it whole.
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

import pyarrow as pa
import pytest

from connectors.log.kafka import KafkaLog
from connectors.log.topics import Topics
from consumers.membership.quorum import QuorumTimeout
from consumers.replication.duties import UPKEEP_INTERVAL_S
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import (
    ask,
    assert_follows_first,
    eventually_says,
    group_status,
    log_text,
    readiness,
    seal,
    status,
    verify,
    write,
)
from tests.e2e.faults import NODES, ROT_WORDS, Stage, rot, staged
from tests.e2e.ledger import QUERY, Expectation, Ledger, Told, WritingThreads, messages_of
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
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three nodes behind proxies."""
    directory, name = tmp_path_factory.mktemp("cases"), f"t{uuid.uuid4().hex[:12]}"
    with staged(directory, name, lambda _directory, _mebibytes: False, ENVIRONMENT) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(stage: Stage) -> None:
    """Every test begins with a cluster that is in sync."""
    for proxy in stage.proxies.values():
        proxy.heal()
    for name in NODES:
        stage.cluster.kill(name, signal.SIGCONT)
        if not stage.cluster.node(name).running:
            stage.cluster.start_node(name)
    stage.cluster.wait_ready()


def write_values(stage: Stage, case: str, value: int, quorum: int = 2) -> None:
    """One row for each of many pumps, at the same times in every call: a later value takes the place of an earlier one."""
    names = [f"{case}{number}" for number in range(PUMPS)]
    rows = pa.table({"pump": names, "time": pa.array([0] * PUMPS, pa.int64()), "value": [value] * PUMPS})
    write(stage.shared, "cases", rows, ["pump"], quorum=quorum)


def write_much(stage: Stage) -> None:
    """Rows that no compression makes small, so that copying them takes a while, sealed."""
    generator = random.Random(7)
    names = [f"much{number}" for number in range(PUMPS)]
    texts = [generator.randbytes(TEXT_BYTES).hex() for _ in names]
    rows = pa.table({"pump": names, "time": pa.array([0] * PUMPS, pa.int64()), "text": texts})
    write(stage.shared, "much", rows, ["pump"], quorum=2)
    seal(stage.cluster)


def values(cluster: LocalCluster, name: str, case: str) -> dict[int, int]:
    """What a node holds of a case: how many rows of each value."""
    sql = f"SELECT value, count(*) AS rows FROM fleet.cases WHERE pump LIKE '{case}%' GROUP BY 1"
    return {row["value"]: row["rows"] for row in ask(cluster.url(name), sql).to_pylist()}


def assert_all_hold(stage: Stage, case: str, value: int) -> None:
    """Every member answers with the value in every row, and all members are equal."""
    seal(stage.cluster)
    for name in NODES:
        assert {value: PUMPS} == values(stage.cluster, name, case), f"at {name}"
    verify(stage.cluster)


def leader_of(cluster: LocalCluster, group: str, asked: str) -> str:
    """Who leads a group, as a node knows it."""
    return str(group_status(cluster, asked, group)["leader"])


def others_than(name: str) -> list[str]:
    """The other two nodes."""
    return [each for each in NODES if each != name]


def await_other_leader(cluster: LocalCluster, group: str, than: str) -> None:
    """Both other nodes know another leader."""
    for asked in others_than(than):
        eventually(
            lambda asked=asked: leader_of(cluster, group, asked) not in ("", than), f"another leader known to {asked}"
        )


def post(url: str, timeout_s: float) -> tuple[int, str]:
    """(status, answer) of a POST."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def begins(cluster: LocalCluster) -> list[int]:
    """Where the log of each group begins."""
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    try:
        return [log.describe(topics.forward(name)).begin for name in NODES]
    finally:
        log.close()


def trim(stage: Stage) -> None:
    """No log has its beginning any more, so that an empty directory needs files."""
    numbers = itertools.count()

    def trimmed() -> bool:
        if all(begins(stage.cluster)):
            return True
        write_values(stage, "trim", next(numbers))
        seal(stage.cluster)
        return False

    eventually(trimmed, "logs that were trimmed")


# 1


def test_a_stale_leader_that_returns_changes_nothing(stage: Stage) -> None:
    """A leader is cut off and goes on as leader for a moment; others take over and acknowledge newer rows; what it did then does not count.

    TDengine 2: a version is a mere count, given by whoever is master. A master that is cut off counts on; the others elect a new one, which gives the
    same versions to other rows. The old one returns with an equal or higher version, is taken for up to date or even for the new master, and
    acknowledged rows are gone or differ from copy to copy. Here the order of the log is the version, and a leader's record counts only under the
    epoch that the log has accepted last.
    """
    cluster = stage.cluster
    write_values(stage, "stale", 1)
    old = leader_of(cluster, "n1", "n2")
    ignored = {name: group_status(cluster, name, "n1")["ignored"].get("not_leader", 0) for name in NODES}
    with ThreadPoolExecutor(1) as pool:
        stage.proxies[old].cut("both")
        late = pool.submit(post, f"{cluster.url(old)}/api/v1/seal?group=n1", 60.0)
        await_other_leader(cluster, "n1", old)
        write_values(stage, "stale", 2)
        for name in others_than(old):
            assert {2: PUMPS} == values(cluster, name, "stale")
        eventually_says(cluster, old, "not read back within 3 s")
        stage.proxies[old].heal()
        cluster.wait_ready()
        code, said = late.result()
    assert (409, True) == (code, "NotLeader" in said)
    for name in NODES:
        eventually(
            lambda name=name: group_status(cluster, name, "n1")["ignored"].get("not_leader", 0) == ignored[name] + 1,
            f"the late seal of the old leader, ignored at {name}",
        )
    assert_all_hold(stage, "stale", 2)


# 2


def test_the_first_action_of_a_leader_that_was_stopped_is_refused(stage: Stage) -> None:
    """SIGSTOP a leader: another one leads; SIGCONT: a seal that was asked of the old one while it stood is refused, and it follows.

    TDengine 2: a master that hangs while its TCP connections stand is not noticed, so nobody else leads; and when it goes on, nothing tells it that
    it no longer leads, so it acts as master once more beside the new one.
    """
    cluster = stage.cluster
    old = leader_of(cluster, "n1", "n2")
    write_values(stage, "stopped", 1)
    cluster.kill(old, signal.SIGSTOP)
    host, port = cluster.node(old).http.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST /api/v1/seal?group=n1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await_other_leader(cluster, "n1", old)
        write_values(stage, "stopped", 2)
        log_before = log_text(cluster, old)
        cluster.kill(old, signal.SIGCONT)
        answer = b"".join(iter(lambda: connection.recv(4_096), b""))
    assert b"409" in answer.split(b"\r\n")[0], answer
    assert b"NotLeader" in answer, answer
    cluster.wait_ready()
    assert_follows_first(cluster, old, "n1", log_before)
    assert_all_hold(stage, "stopped", 2)


def test_writers_with_a_satisfied_quorum_do_not_wait_for_a_stopped_follower(stage: Stage) -> None:
    """SIGSTOP one of three: quorum 2 goes on being confirmed from the first write on; quorum 3 never is, and says who lacks what.

    TDengine 2: the master writes into one TCP connection for each slave; one that hangs fills its connection, and writers wait for it although
    enough others have confirmed.
    """
    cluster = stage.cluster
    follower = next(name for name in NODES if name != leader_of(cluster, "n1", "n2"))
    cluster.kill(follower, signal.SIGSTOP)
    for value in range(1, 31):
        write_values(stage, "follower", value)
    with pytest.raises(QuorumTimeout) as raised:
        write_values(stage, "follower", 31, quorum=3)
    assert all(follower in members for members in raised.value.lagging.values())
    assert follower in str(raised.value)
    cluster.kill(follower, signal.SIGCONT)
    cluster.wait_ready()
    assert_all_hold(stage, "follower", 31)


# 3 is tests/e2e/test_disk_full.py


# 4


def test_a_source_whose_file_rotted_is_found_by_digest_and_passed_over(stage: Stage) -> None:
    """Files of the same size with other bytes at the member that is asked first: the wiped node notices, and takes those of the other.

    TDengine 2: a file that has the right name and size, and a "magic number" that may be its size alone, is taken for the same; a rotten copy is
    then never mended, and spreads to whoever recovers from it.
    """
    cluster = stage.cluster
    write_values(stage, "rotten", 1)
    trim(stage)
    # Beyond the next round of upkeep nobody merges files any more.
    threading.Event().wait(UPKEEP_INTERVAL_S + 1)
    ring = stage.shared.slot_table.nodes
    wiped, first = ring[2], ring[0]
    kept = {path: path.read_bytes() for path in (cluster.data_directory(first) / "segments").rglob("*.parquet")}
    cluster.kill(wiped)
    for path in kept:
        rot(path, random.Random(1))
    cluster.wipe(wiped)
    said = len(log_text(cluster, wiped))
    cluster.start_node(wiped)
    cluster.wait_ready([wiped], COPY_TIMEOUT_S)
    words = log_text(cluster, wiped)[said:]
    assert "is not what the catalogue of its sender says" in words
    assert f"source={first}" in words
    assert {1: PUMPS} == values(cluster, wiped, "rotten")
    cluster.kill(first)
    for path, content in kept.items():
        path.write_bytes(content)
    cluster.start_node(first)
    cluster.wait_ready()
    assert_all_hold(stage, "rotten", 1)


def test_a_file_that_rotted_while_a_node_was_down_is_found_at_its_start(stage: Stage) -> None:
    """One file of every group has other bytes: the node finds each, serves nothing of those groups, and takes the files of others by itself.

    TDengine 2: nothing reads a file again that once was written; a rotten one is served, or fails a query long after, when good copies may be gone.
    """
    cluster = stage.cluster
    write_values(stage, "rotted", 1)
    seal(cluster)
    verify(cluster)
    cluster.kill("n3")
    kept = {}
    for group in NODES:
        path = max((cluster.data_directory("n3") / "segments" / group).rglob("*.parquet"))
        kept[path] = path.read_bytes()
        rot(path, random.Random(2))
    said = len(log_text(cluster, "n3"))
    cluster.start_node("n3")
    for path, content in kept.items():
        # A merge may have taken the place of a file that was found.
        eventually(
            lambda path=path, content=content: not path.exists() or content == path.read_bytes(), f"{path} as sealed"
        )
    assert ROT_WORDS in log_text(cluster, "n3")[said:]
    cluster.wait_ready(timeout_s=COPY_TIMEOUT_S)
    assert_all_hold(stage, "rotted", 1)


# 5


def test_recovery_under_full_write_load_finishes(stage: Stage) -> None:
    """Writers never pause while a wiped node recovers: it copies files, catches up and serves, and holds what was written meanwhile.

    TDengine 2: every file that changes while it is sent, and the newest always do, ends the recovery, which begins again; under load it
    does not end, and groups stay unsynced for hours.
    """
    cluster, ledger = stage.cluster, Ledger()
    write_much(stage)
    trim(stage)
    with WritingThreads(stage.shared, ledger, (1, 2, 2), 0.0, seed=5):
        eventually(lambda: ledger.rows(Told.ACKNOWLEDGED) > 0, "rows that were acknowledged")
        cluster.kill("n3")
        cluster.wipe("n3")
        said = len(log_text(cluster, "n3"))
        cluster.start_node("n3")
        written = ledger.rows(Told.ACKNOWLEDGED)
        cluster.wait_ready(["n3"], COPY_TIMEOUT_S)
        assert written < ledger.rows(Told.ACKNOWLEDGED)
    assert "recovered from files" in log_text(cluster, "n3")[said:]
    cluster.wait_ready()
    seal(cluster)
    verify(cluster)
    expectation = Expectation(ledger.entries, messages_of(stage.shared))
    for name in NODES:
        assert [] == expectation.faults_of(ask(cluster.url(name), QUERY)), f"at {name}"


# 6


def test_a_full_restart_with_one_member_missing_serves_again(stage: Stage) -> None:
    """All are killed, two come back: they lead, serve what was acknowledged and take more; the third comes later.

    TDengine 2: after a full restart all are unsynced, and unless every single member is online nobody becomes master, since the one that is missing
    may have the highest version: no master with two of three there.
    """
    cluster, case, missing = stage.cluster, "restart", "n1"
    write_values(stage, case, 1)
    for name in NODES:
        cluster.kill(name)
    there = others_than(missing)
    for name in there:
        cluster.start_node(name)
    cluster.wait_ready(there)
    for name in there:
        assert {1: PUMPS} == values(cluster, name, case)
    write_values(stage, case, 2)
    for group in NODES:
        eventually(lambda group=group: leader_of(cluster, group, there[0]) in there, f"a leader of group {group}")
    cluster.start_node(missing)
    cluster.wait_ready()
    assert_all_hold(stage, case, 2)


# 7


def test_a_wiped_and_half_copied_replica_neither_leads_nor_serves_nor_is_a_source(stage: Stage) -> None:
    """While a wiped header copies its files the leaders die: the other member leads; the copying one refuses queries, snapshots and seals.

    TDengine 2: an emptied replica that is first in the list may be elected when the statuses that are exchanged are stale, and the others then
    "recover" from it: everything is gone.
    """
    cluster = stage.cluster
    write_much(stage)
    trim(stage)
    wiped, dying, left = "n1", "n2", "n3"
    cluster.kill(wiped)
    cluster.wipe(wiped)
    cluster.start_node(wiped)
    copying = (cluster.data_directory(wiped) / "recovering").rglob
    eventually(lambda: any(path.is_file() and path.stat().st_size for path in copying("*")), "files on their way")
    cluster.kill(dying)
    eventually(
        lambda: all(leader_of(cluster, group, left) == left for group in NODES), "the member with the data leading all"
    )
    if recovering := [each for each in status(cluster, wiped)["groups"] if "recovering files" in each["reason"]]:
        for group in recovering:
            assert "unsynced" == group["role"]
            code, said = post(f"{cluster.url(wiped)}/api/v1/snapshots?group={group['group']}", 10.0)
            assert (409, True) == (code, "not in sync" in said)
            code, said = post(f"{cluster.url(wiped)}/api/v1/seal?group={group['group']}", 10.0)
            assert (409, True) == (code, "NotLeader" in said)
    assert recovering, "every group was copied before the others could be looked at"
    assert not readiness(cluster, wiped)[0]
    cluster.start_node(dying)
    cluster.wait_ready(timeout_s=COPY_TIMEOUT_S)
    write_values(stage, "half", 1)
    assert_all_hold(stage, "half", 1)
