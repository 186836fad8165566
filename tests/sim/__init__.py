"""A cluster of the classes that ship, on one thread, one virtual clock and one seed.

| here | what it is |
|---|---|
| `world.py` | events, the clock, chance, and how a process is stopped or killed inside any step |
| `broker.py` | the `Log` port over a simulated broker: delays, cuts, repeats, gaps, truncation, topics made again, clock steps |
| `disk.py` | the file layer of a node: power loss, kills, a disk that is full from the nth write on, failing syncs |
| `model_store.py` | a small model behind the interface of `Store` |
| `truth.py` | what every replica must make of a log, by code of its own |
| `parts.py` | the seams: where the shipping modules get the model store, the simulated files and stepped tasks |
| `stubs.py` | topics, members and the one table of the cluster |
| `node.py`, `process.py` | one node, made of the shipping classes, and one run of it |
| `real_store.py` | the store that ships instead of the model: the second, slower simulation |
| `simulation.py`, `reads.py` | clients that write and read |
| `faults.py` | what happens to nodes, disks, logs and clocks |
| `invariants.py`, `liveness.py`, `memory_limits.py` | what must hold |
| `rules.py`, `mutations.py`, `mutations_of_members.py` | the rules of the design, each broken on purpose |
| `membership_*.py`, `test_membership.py` | the same for the metadata group: its log, its leader, requests and changes |
"""
