# Command lines, settings, addresses and members: what is wrong or missing is named, with a way out.

step 2 'x.lp: no such file' headrace write x.lp --database hour
step 2 'give `--table NAME` or `--table-column FIELD`' headrace write pretty.json --database hour
step 2 'quorum 4 is more than the 3 members' headrace write fine.lp --database hour --quorum 4
step 2 '"message": "No such option: --nope' headrace status --nope --json
# A port in use is found before the cluster's topics are made: there is no cluster of the name afterwards.
step 1 "cannot listen on $address" headrace node run --cluster nope --id a --nodes a --data-dir deep/a --http "$address"
step 1 "no cluster 'nope' on this Kafka; check the name" headrace status --cluster nope
step 1 'seconds.csv: Not a directory' headrace node run --id a --nodes a --data-dir seconds.csv/a --http 127.0.0.1:0
step 2 'node.advertise http:// is not HOST:PORT' headrace node run --id a --nodes a --data-dir a --advertise http://
step 2 'foo' headrace write fine.lp --database hour -X foo=bar
step 2 'foo' headrace verify -X foo=bar
mkdir empty odd bom
printf '[kafka]\nfoo = "bar"\n' | cat headrace.toml - > odd/headrace.toml
step 2 'foo' within odd headrace query 'SELECT 1'
step 2 '"message": "no cluster configured: run `headrace up`, or set cluster.bootstrap"' within empty headrace seal --json
step 1 'no cluster was started in empty' headrace down --dir empty
# A byte order mark, as some editors write one.
{ printf '\357\273\277' && cat headrace.toml; } > bom/headrace.toml
step 0 'equal' within bom headrace verify
step 0 'seal a group at this many unsealed bytes' headrace config show
# Each help ends with an example.
step 0 'whole message' headrace ingest run --help
also 'Example: headrace ingest run'
step 0 'Example: headrace seal' headrace seal --help
case $output in *--timeout*SECONDS*) ;; *) echo "no unit: $output" && exit 1 ;; esac

# Compose: each node advertises its own name, has a limit of memory, and a health check of its own that starts no JVM.
step 0 'node1 0 1' python3 -c "
import subprocess, sys, yaml
services = yaml.safe_load(open('$parts/../../../docker-compose.yml'))['services']
for name, each in services.items():
    assert each['mem_limit'] and 'java' not in str(each.get('healthcheck')), name
    if each.get('command', [])[:2] == ['node', 'run']:
        assert each['hostname'] == name and f'--advertise={name}:8080' in each['command'], name
        _, python, *words, check = each['healthcheck']['test']
        codes = [
            subprocess.run([python, *words, check.replace('127.0.0.1:8080', there)], capture_output=True).returncode
            for there in ('$address', '127.0.0.1:9')
        ]
        print(name, *codes)"

# Members, slots, and a plan: three nodes with three copies can grow and not shrink.
step 0 '3 copies of each row' headrace cluster show
step 0 '"previous": null' headrace cluster slots --database hour --time 2026-01-01 --bucket 0 --json
step 0 '"to": "n4"' headrace cluster add n4 --dry-run --json
step 1 'add another node first' headrace cluster remove n1 --dry-run
