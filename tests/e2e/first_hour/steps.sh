# What the parts of the first hour share; sourced by first_hour.sh.

# step CODE TEXT COMMAND…: the command exits with CODE, and its output, kept in $output, contains TEXT.
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
    *"$text"*) printf 'ok: %s\n' "$*" ;;
    *)
        printf 'no "%s" in the output of: %s\n%s\n' "$text" "$*" "$output"
        exit 1
        ;;
    esac
}

# also TEXT…: the output of the last step contains each of these texts as well.
also() {
    for text in "$@"; do
        case $output in
        *"$text"*) ;;
        *)
            printf 'no "%s" in the output before:\n%s\n' "$text" "$output"
            exit 1
            ;;
        esac
    done
}

# Most commands are forks of a warm process, if the caller offers these: see tests/forked.py. A start of Python and its
# imports would be nine tenths of the CPU time of such a step.
real_path=$PATH
[ -z "${HEADRACE_FORKS:-}" ] || PATH=$parts/bin:$PATH

# real COMMAND…: with a start of Python, as all that has a terminal, gets signals, or runs on.
real() {
    env PATH="$real_path" "$@"
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
    tries=0
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 600 ]; then
            echo "never: $*"
            exit 1
        fi
        sleep 0.5
    done
}

# page PATH OPTION…: what the node n1 serves, as `curl` prints it.
page() {
    path=$1
    shift
    curl --silent --show-error --max-time 20 "$@" "http://$address$path"
}

# ask SQL: the answer of the node n1 as CSV, over HTTP.
ask() {
    page /api/v1/query --get --data format=csv --data-urlencode "q=$1"
}

# answer TEXT SQL: the rows are there at the latest after some tries; another process may ask before they are applied.
answer() {
    shown() { case $(ask "$2" 2>&1) in *"$1"*) ;; *) return 1 ;; esac }
    wait_until shown "$1" "$2"
    printf 'ok: %s\n' "$2"
}

# typed COLUMNS DIALOG COMMAND…: the command in a terminal so wide. Of the dialog, `> KEYS` are typed and `< PATTERN`
# is waited for; keys may have escapes of `printf`. Prints what the terminal shows, without colours.
typed() {
    real python3 "$parts/typed.py" "$@"
}

address=$(of_cluster "nodes['n1']['http']")
kafka=$(sed -n 's/^bootstrap = "\(.*\)"/\1/p' headrace.toml)
