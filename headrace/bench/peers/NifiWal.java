import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.nifi.wali.SequentialAccessWriteAheadLog;
import org.wali.MinimalLockingWriteAheadLog;
import org.wali.SerDe;
import org.wali.SerDeFactory;
import org.wali.SingletonSerDeFactory;
import org.wali.SyncListener;
import org.wali.UpdateType;
import org.wali.WriteAheadRepository;

/** Drives NiFi's two write-ahead logs the way `headrace bench wal` drives its own; prints one JSON object. */
public final class NifiWal {
    record Entry(long key, byte[] value, UpdateType type) {}

    static final class EntrySerDe implements SerDe<Entry> {
        @Override public void serializeEdit(Entry before, Entry after, DataOutputStream out) throws IOException { serializeRecord(after, out); }

        @Override public void serializeRecord(Entry entry, DataOutputStream out) throws IOException {
            out.writeByte(entry.type.ordinal());
            out.writeLong(entry.key);
            out.writeInt(entry.value.length);
            out.write(entry.value);
        }

        @Override public Entry deserializeEdit(DataInputStream in, Map<Object, Entry> states, int version) throws IOException {
            return deserializeRecord(in, version);
        }

        @Override public Entry deserializeRecord(DataInputStream in, int version) throws IOException {
            UpdateType type = UpdateType.values()[in.readByte()];
            long key = in.readLong();
            byte[] value = new byte[in.readInt()];
            in.readFully(value);
            return new Entry(key, value, type);
        }

        @Override public Object getRecordIdentifier(Entry entry) { return entry.key; }
        @Override public UpdateType getUpdateType(Entry entry) { return entry.type; }
        @Override public String getLocation(Entry entry) { return null; }
        @Override public int getVersion() { return 1; }
    }

    static WriteAheadRepository<Entry> open(String kind, File directory) throws IOException {
        SerDeFactory<Entry> factory = new SingletonSerDeFactory<>(new EntrySerDe());
        if (kind.equals("sequential")) {
            return new SequentialAccessWriteAheadLog<>(directory, factory, SyncListener.NOP_SYNC_LISTENER);
        }
        SortedSet<Path> paths = new TreeSet<>(List.of(directory.toPath()));
        return new MinimalLockingWriteAheadLog<>(paths, 16, factory, null);
    }

    /** Arguments: sequential|partitioned, directory, update CALLERS BYTES SYNC SECONDS WARMUP_SECONDS | fill COUNT BYTES | recover. */
    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        File directory = new File(arguments[1]);
        directory.mkdirs();
        switch (arguments[2]) {
            case "update" -> update(kind, directory, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]),
                Boolean.parseBoolean(arguments[5]), Double.parseDouble(arguments[6]), Double.parseDouble(arguments[7]));
            case "fill" -> fill(kind, directory, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
            default -> recover(kind, directory);
        }
    }

    static void update(String kind, File directory, int callers, int bytes, boolean sync, double seconds, double warmup) throws Exception {
        WriteAheadRepository<Entry> log = open(kind, directory);
        log.recoverRecords();
        byte[] value = new byte[bytes];
        new java.util.Random(1).nextBytes(value);
        run(log, callers, value, sync, warmup);
        long[] result = run(log, callers, value, sync, seconds);
        log.shutdown();
        System.out.printf("{\"updates\": %d, \"nanoseconds\": %d}%n", result[0], result[1]);
    }

    static long[] run(WriteAheadRepository<Entry> log, int callers, byte[] value, boolean sync, double seconds) throws Exception {
        AtomicLong updates = new AtomicLong();
        CountDownLatch go = new CountDownLatch(1);
        List<Thread> threads = new ArrayList<>();
        long[] end = new long[1];
        for (int caller = 0; caller < callers; caller++) {
            long base = caller * 1_000L;
            Thread thread = new Thread(() -> {
                try {
                    go.await();
                    long count = 0;
                    while (System.nanoTime() < end[0]) {
                        Collection<Entry> records = Collections.singleton(new Entry(base + count % 1_000, value, UpdateType.UPDATE));
                        log.update(records, sync);
                        count++;
                    }
                    updates.addAndGet(count);
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        long begin = System.nanoTime();
        end[0] = begin + (long) (seconds * 1e9);
        go.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        return new long[] {updates.get(), System.nanoTime() - begin};
    }

    static void fill(String kind, File directory, int count, int bytes) throws Exception {
        WriteAheadRepository<Entry> log = open(kind, directory);
        log.recoverRecords();
        byte[] value = new byte[bytes];
        new java.util.Random(1).nextBytes(value);
        for (int index = 0; index < count; index++) {
            log.update(Collections.singleton(new Entry(index, value, UpdateType.CREATE)), index == count - 1);
        }
        System.out.println("{}");
        System.out.flush();
        // Without shutdown, as after a crash: everything is in the journal, nothing in a snapshot.
        Runtime.getRuntime().halt(0);
    }

    static void recover(String kind, File directory) throws Exception {
        WriteAheadRepository<Entry> log = open(kind, directory);
        long begin = System.nanoTime();
        int records = log.recoverRecords().size();
        System.out.printf("{\"records\": %d, \"nanoseconds\": %d}%n", records, System.nanoTime() - begin);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
