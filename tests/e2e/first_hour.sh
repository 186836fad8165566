#!/bin/sh
# What a new user types in the first hour, good and bad, in the folder of a running `headrace up`.
#
# Every step names its exit code and a text that it prints; the first step that differs ends the script with 1.
#
# Elsewhere, because a command each would cost more than it shows: values in Spark and other readers, and ingest with
# its lines and metrics (tests/spark); keys, colours and Ctrl-C of `headrace sql` (tests/unit/serve/test_sql_shell.py);
# widths of terminals, metrics, alerts and the page (tests/e2e/test_quick_start.py); all command lines that make no
# sense, as text and as JSON (tests/unit/headrace/cli); compose (tests/unit/test_compose.py).
set -u

# step CODE TEXT COMMAND…: the command exits with CODE, and its output contains TEXT.
step() {
    code=$1 text=$2
    shift 2
    output=$("$@" 2>&1 </dev/null)
    found=$?
    if [ "$found" -ne "$code" ]; then
        printf 'exit code %s, not %s: %s\n%s\n' "$found" "$code" "$*" "$output"
        exit 1
    fi
    case $output in
    *"$text"*) echo "ok: $*" ;;
    *)
        printf 'no "%s" in the output of: %s\n%s\n' "$text" "$*" "$output"
        exit 1
        ;;
    esac
}

# within FOLDER COMMAND…: the command in a folder of its own settings.
within() (
    cd "$1" || exit 99
    shift
    "$@"
)

# of_cluster EXPRESSION: a value of the cluster's files, for the commands that kill a process or name a node.
of_cluster() {
    python3 -c "import json
nodes = {node['name']: node for node in json.load(open('.headrace/cluster.json'))['nodes']}
broker = json.load(open('.headrace/broker/broker.pid'))
print($1)"
}

# wait_until COMMAND…: the command succeeds at the latest after some tries.
wait_until() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.5
    done
    echo "never: $*"
    exit 1
}

# unready: the node n1 does not serve.
unready() {
    ! python3 -c "import urllib.request; urllib.request.urlopen('http://$address/health/ready', timeout=5)"
}

# answer TEXT SQL: the rows are there at the latest after some tries; another process may ask before they are applied.
answer() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        found=$(headrace query "$2" --format csv 2>&1)
        case $found in *"$1"*) echo "ok: $2" && return ;; esac
        sleep 0.5
    done
    printf 'no "%s" in the answer of: %s\n%s\n' "$1" "$2" "$found"
    exit 1
}

# Times: the unit is refused when it looks wrong, and a table keeps its own.
printf 'pump,time,flow\np1,1767225600,1.5\np2,1767225600,2.5\n' > seconds.csv
step 3 '--time-unit s' headrace write seconds.csv --database hour --table seconds --tags pump
step 0 '2 rows' headrace write seconds.csv --database hour --table seconds --tags pump --time-unit s
answer '2026-01-01' 'SELECT min(time) FROM hour.seconds'
printf 'fine,pump=p1 flow=1 1767225600000000001\nfine,pump=p1 flow=2 1767225600000001000\n' > fine.lp
step 3 '1 line refused' headrace write fine.lp --database hour
step 2 'resolution' headrace write fine.lp --database hour --time-resolution ns
printf 'finer,pump=p1 flow=1 1767225600000000001\n' > finer.lp
step 0 '1 row, 1 point' headrace write finer.lp --database hour --time-resolution ns
answer '.000000001' 'SELECT time FROM hour.finer'
printf 'old,pump=p1 flow=1 86400000000000\nold,pump=p2 flow=1 8000000000000000000\n' > old.lp
step 3 '--any-time' headrace write old.lp --database hour
step 0 '2 rows' headrace write old.lp --database hour --any-time

# Rows of one series and time replace each other: not unnoticed.
printf 'site,time,flow\nnorth,2026-01-01T00:00:00Z,1\nsouth,2026-01-01T00:00:00Z,2\n' > sites.csv
step 3 '--no-tags' headrace write sites.csv --database hour --table sites
step 0 '2 rows' headrace write sites.csv --database hour --table sites --tags site
step 0 '"replaced": 1' headrace write sites.csv --database hour --table flat --no-tags --json

# A NaN is a value, and counted.
printf 'nan,pump=p1 flow=nan 1767225600000000000\nnan,pump=p2 flow=1 1767225600000000000\n' > nan.lp
step 3 "field 'flow' is nan" headrace write nan.lp --database hour --reject-nan
step 0 '"nan": 1' headrace write nan.lp --database hour --json

# JSON over several lines.
printf '[\n  {"pump": "p1",\n   "time": "2026-01-01T00:00:00Z",\n   "flow": 1.5},\n  {"pump": "p2", "time": "2026-01-01T00:00:00Z", "flow": 2.5}\n]\n' > pretty.json
step 0 '2 rows' headrace write pretty.json --database hour --table pretty --tags pump
answer '4' 'SELECT sum(flow) FROM hour.pretty'

# A column that no table can have is left out by its name, and not the file.
python3 -c "
import datetime, pyarrow, pyarrow.parquet
rows = {'time': [datetime.datetime(2026, 1, 1)], 'day': [datetime.date(2026, 1, 1)], 'samples': [[1.0]]}
pyarrow.parquet.write_table(pyarrow.table(rows), 'mixed.parquet')"
step 3 "column 'samples' is left out: it has type list" headrace write mixed.parquet --database hour --table mixed

# Questions: a file, parameters, an older answer, an empty text.
echo 'SELECT pump FROM hour.pretty WHERE flow > $least' > question.sql
step 0 'p2' headrace query -f question.sql --param least=2
step 1 'no value for parameter $least' headrace query -f question.sql
step 2 'SQL is empty' headrace query ' '
step 0 'p1' headrace query 'SELECT pump FROM hour.pretty' --stale 60s
step 1 'did you mean' headrace query 'SELECT pump FROM hour.prety'
printf '%s\n' '\set least 2' 'SELECT pump,' '  $extra + 1 AS more FROM hour.pretty WHERE flow > $least;' '\d seconds' > report.sql
step 0 'pump' sh -c 'headrace sql --param extra=41 < report.sql'
case $output in *p2*42*BIGINT* | *p2*42*DOUBLE*) ;; *) echo "not the report: $output" && exit 1 ;; esac

# What is missing is named, with a way out.
step 2 'x.lp: no such file' headrace write x.lp --database hour
step 2 'give `--table NAME` or `--table-column FIELD`' headrace write pretty.json --database hour
step 2 'quorum 4 is more than the 3 members' headrace write fine.lp --database hour --quorum 4
# A port in use is found before the cluster's topics are made: there is no cluster of the name afterwards.
address=$(of_cluster "nodes['n1']['http']")
kafka=$(sed -n 's/^bootstrap = "\(.*\)"/\1/p' headrace.toml)
step 1 "cannot listen on $address" headrace node run --cluster nope --id a --nodes a --data-dir a --http "$address"
step 1 "no cluster 'nope' on this Kafka; check \`--cluster\`" headrace status --cluster nope
step 2 'foo' headrace write fine.lp --database hour -X foo=bar
mkdir empty odd bom
printf '[kafka]\nfoo = "bar"\n' | cat headrace.toml - > odd/headrace.toml
step 2 'foo' within odd headrace query 'SELECT 1'
step 2 '"message": "no cluster configured: run `headrace up`, or set cluster.bootstrap"' within empty headrace seal --json
# A byte order mark, as some editors write one.
{ printf '\357\273\277' && cat headrace.toml; } > bom/headrace.toml
step 0 'equal' within bom headrace verify
step 0 'seal a group at this many unsealed bytes' headrace config show
step 0 'whole message' headrace ingest run --help

# Members, slots, and a plan: three nodes with three copies can grow and not shrink.
step 0 '3 copies of each row' headrace cluster show
step 0 '"previous": null' headrace cluster slots --database hour --time 2026-01-01 --bucket 0 --json
step 0 '"to": "n4"' headrace cluster add n4 --dry-run --json
step 1 'add a node first' headrace cluster remove n1 --dry-run

# What goes is shown first, and needs a yes.
step 0 'rows' headrace delete --database hour --table pretty --tag pump=p1 --dry-run
answer '4' 'SELECT sum(flow) FROM hour.pretty'
step 0 '' headrace delete --database hour --table pretty --tag pump=p1
answer '2.5' 'SELECT sum(flow) FROM hour.pretty'
step 2 '--yes' headrace table drop hour.flat
step 0 '' headrace table drop hour.flat --yes
gone() { ! headrace query 'FROM hour.flat'; }
wait_until gone
step 2 'there is no table hour.flat' headrace table drop hour.flat --yes
step 0 'would go' headrace retention set hour.pretty 30d --dry-run
step 2 'pretty' headrace delete --database hour --table prety --tag pump=p1

# A member is gone: the others are compared, and the missing one is named.
kill -9 "$(of_cluster "nodes['n2']['pid']")"
step 2 'equal (2 of 3; n2 missing)' headrace verify --timeout 1

# Without Kafka a node answers what it had, to those who allow it; no Python client has to know Kafka for that.
kill -9 "$(of_cluster "broker['pid']")"
wait_until unready
step 1 'or allow an older answer: --stale 60s' headrace query 'SELECT 1' --node "$address"
step 0 'not current: the answer has everything up to' \
    headrace query 'SELECT sum(flow) FROM hour.pretty' --node "$address" --stale 10m
step 0 '2.5 True' python3 -c "
import headrace
with headrace.connect(nodes=['$address']) as client:
    answer = client.query('SELECT sum(flow) AS flow FROM hour.pretty', stale_ok=True)
    print(answer.to_dicts()[0]['flow'], answer.as_of is not None)"
# Ctrl-C ends a command that waits for Kafka; it would be killed, with another exit code, if it took long.
step 130 'interrupted' timeout --preserve-status --kill-after=5 --signal=INT 8 headrace write fine.lp --database hour

# `up` mends: what was killed is started again, what runs stays, and a second `up` changes nothing.
survivor=$(of_cluster "nodes['n1']['pid']")
step 0 '"started": ["kafka", "n2"]' headrace up --json
step 0 '"started": []' headrace up --json
step 2 'there is no node n9' headrace up --restart n9
step 2 'has 3 nodes, not 4' headrace up --nodes 4
step 0 'n2' headrace up --restart n2
step 0 "$survivor" of_cluster "nodes['n1']['pid']"
step 0 "bootstrap = \"$kafka\"" cat headrace.toml
answer '2.5' 'SELECT sum(flow) FROM hour.pretty'
step 0 'equal' headrace verify
echo 'the first hour is over'
