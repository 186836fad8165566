#!/bin/sh
# What a new user types in the first hour, good and bad, in the folder of a running `headrace up`.
#
# Every step names its exit code and a text that it prints; the first step that differs ends the script with 1.
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
step 0 '1 row' headrace write finer.lp --database hour --time-resolution ns
answer '.000000001' 'SELECT time FROM hour.finer'
printf 'old,pump=p1 flow=1 86400000000000\n' > old.lp
step 3 '--any-time' headrace write old.lp --database hour
step 0 '1 row' headrace write old.lp --database hour --any-time

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

# Questions: a file, parameters, an older answer, an empty text.
echo 'SELECT pump FROM hour.pretty WHERE flow > $least' > question.sql
step 0 'p2' headrace query -f question.sql --param least=2
step 1 'no value for parameter $least' headrace query -f question.sql
step 2 'SQL is empty' headrace query ' '
step 0 'p1' headrace query 'SELECT pump FROM hour.pretty' --stale 60s
step 1 'did you mean' headrace query 'SELECT pump FROM hour.prety'

# What is missing is named, with a way out.
step 2 'x.lp: no such file' headrace write x.lp --database hour
step 1 "no cluster 'nope' on this Kafka; check \`--cluster\`" headrace status --cluster nope
step 2 'foo' headrace write fine.lp --database hour -X foo=bar
step 0 'equal' headrace verify

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
step 0 'would go' headrace retention set hour.pretty 30d --dry-run
step 2 'pretty' headrace delete --database hour --table prety --tag pump=p1

# `up` mends: a node that was killed is started again, a second `up` changes nothing.
step 0 'n2' headrace up
pid=$(headrace up --json | python3 -c 'import json, sys; print([n["pid"] for n in json.load(sys.stdin)["nodes"] if n["name"] == "n2"][0])')
kill -9 "$pid"
step 0 'n2' headrace up
step 0 'n2' headrace up --restart n2
answer '2.5' 'SELECT sum(flow) FROM hour.pretty'
echo 'the first hour is over'
