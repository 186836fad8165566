# Terminals of 40, 80 and 200 columns: no line is wider, and nothing is cut without its number of characters.

# fits COLUMNS TEXT COMMAND…: the command succeeds with TEXT in its output, and no line of its data is too wide.
fits() {
    columns=$1
    shift
    text=$1
    shift
    step 0 "$text" typed "$columns" '' "$@"
    widest=$(printf '%s\n' "$output" | grep -v 'waiting for' | LC_ALL=C.UTF-8 wc -L)
    if [ "$widest" -gt "$columns" ]; then
        printf 'a line of %s columns in a terminal of %s:\n%s\n' "$widest" "$columns" "$output"
        exit 1
    fi
}

x=$(printf '%0150d' 0)
wide="SELECT i AS number, TIMESTAMP '2026-01-01' AS time, '$x' AS text FROM range(3) t(i)"
for columns in 40 80; do
    fits $columns leader headrace status
    fits $columns equal headrace verify
    fits $columns '2026-01-01 00:00:00' headrace query "$wide"
    also '…+'
    case $columns$output in 80* | 40*'── 1 ─'*) ;; *) echo "no records: $output" && exit 1 ;; esac
done
fits 200 "$x" headrace query "$wide"
