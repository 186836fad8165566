# The page and the figures, as a browser and Prometheus fetch them.

step 0 'id="tables-filter"' page /
also 'Download CSV' 'History' 'aria-label="Filter the tables"'
for file in $(printf '%s' "$output" | grep -o '/static/[a-z.]*' | sort -u); do
    step 0 '200' page "$file" --output part --write-out '%{http_code}'
done
# A page of another site, or a name that is not the node's, as those of compose are not here, gets nothing.
step 0 '"kind":"Forbidden"' page /api/v1/status --header 'Host: node1:8080'
step 0 '"kind":"Forbidden"' page /api/v1/status --header 'Origin: http://evil.example'
step 0 '"node"' page /api/v1/status --header "Host: localhost:${address##*:}"

# Every series names its cluster, counters are there from zero, and each metric that a rule names exists.
page /metrics >metrics.txt
curl --silent "http://$metrics/metrics" >>metrics.txt
step 1 '' sh -c "grep '^headrace_' metrics.txt | grep -v 'cluster=\"headrace\"'"
step 0 'why="too_large"} 0.0' grep '^headrace_records_ignored{' metrics.txt
step 0 '' cat "$parts/../../../ops/alerts.yml"
# Those of sync need a sender and a receiver: test_alerts_and_dashboard_find_their_series has them.
for name in $(printf '%s' "$output" | grep -o 'headrace_[a-z0-9_]*' | grep -v '^headrace_sync_' | sort -u); do
    step 0 "$name" grep --max-count 1 "^$name[{ ]" metrics.txt
done
