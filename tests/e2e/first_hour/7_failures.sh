# A member is gone, Kafka is gone, and `up` mends both.

# A setting of a node is in the environment of the `up` that starts it.
other=$(of_cluster "nodes['n3']['http']")
step 0 'n3' env HEADRACE__QUERY__STALE_MAX_S=600 headrace up --restart n3
step 0 "$other" of_cluster "nodes['n3']['http']"

# The others are compared, and the missing one is named.
kill -9 "$(of_cluster "nodes['n2']['pid']")"
step 2 'equal (2 of 3; n2 missing)' headrace verify --timeout 1

# Without Kafka a node answers what it had, to those who allow it; no Python client has to know Kafka for that.
unready() {
    for node in "$address" "$other"; do
        [ "$(curl --silent --output reasons --write-out '%{http_code}' "http://$node/health/ready")" = 503 ] || return 1
    done
}
kill -9 "$(of_cluster "broker['pid']")"
wait_until unready
step 1 'or allow an older answer: --stale 60s' headrace query 'SELECT 1' --node "$address"
step 0 'not current: the answer has everything up to' \
    headrace query 'SELECT sum(flow) FROM hour.pretty' --node "$address" --stale 10m
step 0 '"kind":"NotReady"' page '/api/v1/query?q=SELECT+1'
step 0 'x-headrace-as-of: 2' page '/api/v1/query?q=SELECT+1&stale=10m' --include
# The node whose setting allows it answers those who name no age.
step 0 'x-headrace-as-of: 2' curl --silent --include "http://$other/api/v1/query?q=SELECT+1"
step 0 '2.5 True' python3 -c "
import headrace
with headrace.connect(nodes=['$address']) as client:
    answer = client.query('SELECT sum(flow) AS flow FROM hour.pretty', stale_ok=True)
    print(answer.to_dicts()[0]['flow'], answer.as_of is not None)"
# Ctrl-C ends a command that waits for Kafka; it would be killed, with another exit code, if it took long.
step 130 'interrupted' real timeout --preserve-status --kill-after=5 --signal=INT 8 headrace write fine.lp --database hour

# `up` mends: what was killed is started again, what runs stays, and a second `up` changes nothing.
survivor=$(of_cluster "nodes['n1']['pid']")
step 0 '"started": ["kafka", "n2"]' headrace up --json
step 0 '"started": []' headrace up --json
step 2 'there is no node n9' headrace up --restart n9
step 2 'nodes, not 2' headrace up --nodes 2
step 0 "$survivor" of_cluster "nodes['n1']['pid']"
step 0 "bootstrap = \"$kafka\"" cat headrace.toml
answer '2.5' 'SELECT sum(flow) FROM hour.pretty'
step 0 'equal' headrace verify
