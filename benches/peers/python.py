"""python.py MODULE HOST PORT   MODULE: redis (its Lock) or redis_lock (python-redis-lock)

"ready"; then for each line N it does N pairs and says how many ns they took, and how many of its CPU time.
"""
import sys
import time

import redis

module, host, port = sys.argv[1:]
client = redis.Redis(host=host, port=int(port))
KEY = "cache:my_key:42"

if module == "redis_lock":
    import redis_lock

    def lock():
        return redis_lock.Lock(client, KEY, expire=60)
else:

    def lock():
        return client.lock("peer-py:" + KEY, timeout=60)


print("ready", flush=True)
for line in sys.stdin:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(int(line)):
        own = lock()
        if not own.acquire(blocking=False):
            raise SystemExit("not acquired")
        own.release()
    print(time.perf_counter_ns() - wall, time.process_time_ns() - cpu, flush=True)
