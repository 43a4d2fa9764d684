# One process of Mooncake's store: `source` keeps blocks, `client` calls what it is told to on
# standard input, a line of JSON each, and answers by a line of JSON.
import json
import mmap
import sys
import threading
import time
import ctypes

from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20


def connect(port, segment_len):
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", segment_len, 128 * MIB, "tcp", "", f"127.0.0.1:{port}"
    )
    if code != 0:
        sys.exit(f"setup ended with {code}")
    return store


class Memory:
    """Memory that is registered once, and touched."""

    def __init__(self, store, length):
        self.map = mmap.mmap(-1, length)
        self.map.write(bytes(range(256)) * (length // 256))
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        code = store.register_buffer(self.at, length)
        if code != 0:
            sys.exit(f"register_buffer ended with {code}")


class Client:
    def __init__(self, store):
        self.store = store
        self.memory = {}
        self.next_key = 0

    def places(self, thread, batch, length):
        needed = batch * length
        known = self.memory.get(thread)
        if known is None or known[1] < needed:
            known = (Memory(self.store, needed), needed)
            self.memory[thread] = known
        return [known[0].at + at * length for at in range(batch)]

    def put(self, keys, places, length):
        if len(keys) == 1:
            codes = [self.store.put_from(keys[0], places[0], length)]
        else:
            codes = self.store.batch_put_from(keys, places, [length] * len(keys))
        return sum(code == 0 for code in codes)

    def get(self, keys, places, length):
        if len(keys) == 1:
            codes = [self.store.get_into(keys[0], places[0], length)]
        else:
            codes = self.store.batch_get_into(keys, places, [length] * len(keys))
        return sum(code == length for code in codes)

    def clear(self):
        self.store.remove_all(True)

    def fill(self, length, count):
        self.clear()
        batch = 16
        places = self.places(0, batch, length)
        for first in range(0, count, batch):
            keys = [f"b{key}" for key in range(first, min(first + batch, count))]
            if self.put(keys, places[: len(keys)], length) != len(keys):
                sys.exit(f"filling failed at {first}")
        return {}

    def run(self, verb, length, batch, threads, seconds, count, bytes_max):
        before = self.next_key
        self.next_key += 1 << 20
        barrier = threading.Barrier(threads + 1)
        results = [None] * threads

        def call(thread):
            places = self.places(thread, batch, length)
            latencies, moved, failed = [], 0, 0
            state = before * 31 + thread + 1
            barrier.wait()
            last = begun = time.perf_counter()
            number = 0
            while last - begun < seconds and moved < bytes_max / threads:
                keys = []
                for _ in range(batch):
                    if verb == "get":
                        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
                        keys.append(f"b{(state >> 33) % count}")
                    else:
                        keys.append(f"p{before}-{thread}-{number}")
                        number += 1
                done = (self.get if verb == "get" else self.put)(keys, places, length)
                moved += done * length
                failed += batch - done
                now = time.perf_counter()
                latencies.append(now - last)
                last = now
            results[thread] = (latencies, moved, failed)

        pool = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
        for thread in pool:
            thread.start()
        barrier.wait()
        begun = time.perf_counter()
        for thread in pool:
            thread.join()
        took = time.perf_counter() - begun
        latencies = sorted(sum((result[0] for result in results), []))
        latencies = latencies or [0.0]
        return {
            "bytes": sum(result[1] for result in results),
            "failed": sum(result[2] for result in results),
            "seconds": took,
            "p50_us": latencies[len(latencies) // 2] * 1e6,
            "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
        }


def main():
    role, port, segment_len = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = connect(port, segment_len if role == "source" else 0)
    print("ready", flush=True)
    client = Client(store)
    for line in sys.stdin:
        told = json.loads(line)
        what = told.pop("do")
        answer = {}
        if what == "clear":
            client.clear()
        else:
            answer = getattr(client, what)(**told)
        print("answer " + json.dumps(answer), flush=True)


main()
