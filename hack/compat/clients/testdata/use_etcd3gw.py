"""Uses the library etcd3gw. It fails at the first answer that is not etcd's."""

import sys
import threading

import etcd3gw

c = etcd3gw.Etcd3Client(host=sys.argv[1], port=int(sys.argv[2]), api_path="/v3/")
assert c.status()["version"].startswith("3.")
assert len(c.members()) == 1

assert c.put("k", "v")
assert c.get("k") == [b"v"]
assert c.create("once", "1") and not c.create("once", "2")
assert c.replace("k", "v", "w") and not c.replace("k", "v", "x")
for i in range(3):
    c.put("p/%d" % i, str(i))
assert [v for v, _ in c.get_prefix("p/", sort_order="ascend", sort_target="key")] == [b"0", b"1", b"2"]
assert c.delete("k") and not c.delete("k")
assert c.delete_prefix("p/")

lease = c.lease(ttl=60)
assert 0 < lease.ttl() <= 60
assert c.put("leased", "v", lease)
assert lease.keys() == [b"leased"]
assert lease.refresh() == 60
lease.revoke()
assert c.get("leased") == []

events, cancel = c.watch("watched")
threading.Thread(target=c.put, args=("watched", "seen")).start()
assert next(events)["kv"]["value"] == b"seen"
cancel()

lock = c.lock("l", ttl=60)
assert lock.acquire() and lock.is_acquired()
assert lock.release()
print("passed")
